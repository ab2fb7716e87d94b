#include <cstdio>
#include <evix/evix.hpp>

int main() {
  using namespace std::chrono_literals;
  evix::Loop loop;
  evix::Timer tick{loop}, limit{loop};
  tick.every(100ms, [] { std::puts("tick"); });
  limit.after(350ms, [&] { tick.stop(); });
  return loop.run();  // ends by itself: nothing is left to wait for
}
