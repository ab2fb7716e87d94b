// A pipeline: stages joined by bounded channels, so that the slowest one sets the pace.
#include <chrono>
#include <cstdio>
#include <evix/evix.hpp>
#include <string>

using namespace std::chrono_literals;

using Numbers = evix::Channel<int>;
using Lines = evix::Channel<std::string>;

evix::Task<> reads(Numbers& out) {
  for (int number = 1; number <= 6; ++number) {
    if (!co_await out.push(number)) co_return;  // waits while the next stage is busy
  }
  out.close();
}

evix::Task<> works(Numbers& in, Lines& out) {
  while (const auto number = co_await in.pop()) {
    co_await evix::sleep_for(1ms);
    std::string line = std::to_string(*number) + " squared is " + std::to_string(*number * *number);
    if (!co_await out.push(std::move(line))) co_return;
  }
  out.close();
}

evix::Task<> writes(Lines& in) {
  while (const auto line = co_await in.pop()) std::puts(line->c_str());
}

evix::Task<> pipeline() {
  Numbers numbers(2);
  Lines lines(2);
  evix::Scope scope;  // after the channels: its tasks go before them
  scope.spawn(reads(numbers));
  scope.spawn(works(numbers, lines));
  scope.spawn(writes(lines));
  co_await scope.join();
}

int main() { evix::run(pipeline()); }
