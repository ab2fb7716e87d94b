// Coroutines: tasks that await each other, sleep, and take turns on one loop.
#include <chrono>
#include <cstdio>
#include <evix/evix.hpp>
#include <stdexcept>

using namespace std::chrono_literals;

evix::Task<int> slow_square(int number) {
  co_await evix::sleep_for(5ms);
  if (number > 3) throw std::range_error("too large a number");
  co_return number* number;
}

evix::Task<> ticks(const char* name) {
  for (int i = 1; i <= 2; ++i) {
    std::printf("%s %d\n", name, i);
    co_await evix::yield();  // the other one's turn
  }
}

evix::Task<int> sum_of_squares() {
  evix::Loop& loop = co_await evix::this_loop();
  loop.spawn(ticks("tick"));  // runs beside this one, until it ends or the loop does
  loop.spawn(ticks("tock"));
  int sum = 0;
  for (int number = 1; number <= 3; ++number) sum += co_await slow_square(number);
  try {
    co_await slow_square(4);
  } catch (const std::range_error& error) {
    std::printf("an exception arrives at the co_await: %s\n", error.what());
  }
  co_return sum;
}

int main() { std::printf("sum %d\n", evix::run(sum_of_squares())); }
