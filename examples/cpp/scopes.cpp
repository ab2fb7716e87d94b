// Tasks that run beside each other and end together: all of them, the first, or none in time.
#include <chrono>
#include <cstdio>
#include <evix/evix.hpp>
#include <stdexcept>
#include <string>

using namespace std::chrono_literals;

struct Guard {  // what has to be put in order is in destructors: a stopped await does not return
  const char* name;
  ~Guard() { std::printf("%s ends\n", name); }
};

evix::Task<std::string> answers(const char* name, evix::Duration after) {
  const Guard guard{name};
  co_await evix::sleep_for(after);
  co_return std::string(name) + " answers";
}

evix::Task<> fails() {
  co_await evix::sleep_for(1ms);
  throw std::runtime_error("out of paper");
}

evix::Task<> ignores(const char* name) { co_await answers(name, 1h); }

evix::Task<> shows() {
  const auto [one, two] = co_await evix::when_all(answers("one", 2ms), answers("two", 1ms));
  std::printf("all: %s, %s\n", one.c_str(), two.c_str());

  auto race = co_await evix::race(answers("slow", 1h), answers("quick", 1ms));
  std::printf("first: %s\n", race.get<1>()->c_str());

  const auto late = co_await evix::with_timeout(1ms, answers("late", 1h));
  std::printf("in time: %s\n", late ? late->c_str() : late.error().message().c_str());

  evix::Scope scope;
  scope.spawn(ignores("printer"));
  scope.spawn(fails());
  try {
    co_await scope.join();
  } catch (const std::runtime_error& error) {
    std::printf("the scope: %s\n", error.what());
  }
}

int main() { evix::run(shows()); }
