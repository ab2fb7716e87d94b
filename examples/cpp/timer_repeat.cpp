// A repeating timer with another delay before its first call.
#include <chrono>
#include <cstdio>
#include <evix/evix.hpp>

using namespace std::chrono_literals;

int main() {
  evix::Loop loop;
  evix::Timer ticker(loop);
  int ticks = 0;
  ticker.after_then_every(30ms, 10ms, [&] {
    ++ticks;
    std::printf("tick %d%s\n", ticks, ticks == 1 ? ", after the first delay" : "");
    if (ticks == 3) ticker.stop();  // nothing is left to wait for, so the loop ends by itself
  });
  loop.run();
  std::puts("ended");
}
