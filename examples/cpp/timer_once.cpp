// A one-shot timer: one call, never early.
#include <chrono>
#include <cstdio>
#include <evix/evix.hpp>

using namespace std::chrono_literals;

int main() {
  evix::Loop loop;
  evix::Timer timer(loop);
  const evix::TimePoint started = loop.now();
  timer.after(20ms, [&] {
    loop.update_now();
    std::printf("fired once, %s\n", loop.now() - started >= 20ms ? "not early" : "early");
  });
  std::puts("waiting 20 ms");
  return loop.run();
}
