// Where the state of a callback lives: in an object around the handle, in the data of the loop, or
// inside the callback.
#include <chrono>
#include <cstdio>
#include <evix/evix.hpp>
#include <string>
#include <utility>

using namespace std::chrono_literals;

class Counter {
 public:
  Counter(evix::Loop& loop, std::string mine) : loop_(loop), timer_(loop) {
    timer_.every(1ms, [this, own = std::move(mine)] { tick(own); });
  }
  // The callback points to this object, so it must stay where it is.
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

 private:
  void tick(const std::string& own) {
    if (++count_ < 3) return;
    std::printf("the counter with its timer inside: %d\n", count_);
    std::printf("data of the loop: %s\n", static_cast<std::string*>(loop_.user_data())->c_str());
    std::printf("data of the timer: %s\n", own.c_str());
    timer_.stop();
  }

  evix::Loop& loop_;
  evix::Timer timer_;  // stopped when the counter dies
  int count_ = 0;
};

int main() {
  evix::Loop loop;
  std::string shared = "shared";
  loop.set_user_data(&shared);
  const Counter counter(loop, "mine");
  return loop.run();
}
