// A job that is done at fixed times, each time for at most as long as it may take.
#include <chrono>
#include <cstdio>
#include <evix/evix.hpp>

using namespace std::chrono_literals;

evix::Task<int> job(int round) {
  if (round == 2) co_await evix::sleep_for(1h);  // one hangs
  co_await evix::yield();
  co_return round * 10;
}

evix::Task<> every(evix::Duration period, int rounds) {
  evix::Loop& loop = co_await evix::this_loop();
  evix::TimePoint next = loop.now();
  for (int round = 1; round <= rounds; ++round) {
    next += period;  // from the plan, not from the end of the last one: it does not drift
    const auto result = co_await evix::with_deadline(next, job(round));
    if (result) {
      std::printf("round %d: %d\n", round, *result);
    } else {
      std::printf("round %d: given up\n", round);
    }
    co_await evix::sleep_until(next);
  }
}

int main() { evix::run(every(50ms, 3)); }
