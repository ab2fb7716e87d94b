// A repeating timer that another timer stops.
#include <chrono>
#include <cstdio>
#include <evix/evix.hpp>

using namespace std::chrono_literals;

int main() {
  evix::Loop loop;
  evix::Timer ticker(loop);
  evix::Timer limit(loop);
  int ticks = 0;
  ticker.every(10ms, [&] {
    if (ticks++ == 0) std::puts("first tick");
  });
  limit.after(55ms, [&] {
    ticker.stop();
    std::puts("stopped by the other timer");
  });
  loop.run();
  std::puts("ended");
}
