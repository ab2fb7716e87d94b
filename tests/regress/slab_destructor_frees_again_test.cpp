#include <evix/timer_queue.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>

// What a cancelled timer of a queue captured cancelled the same timer in its destructor: its record
// was still found, destroyed twice and put in the list of free ones twice.
namespace evix::test {
namespace {

using namespace std::chrono_literals;

/** Runs a task when it dies, once. */
template <class Task>
auto at_death(Task task) {
  auto run = [task](int* token) {
    task();
    delete token;
  };
  return std::unique_ptr<int, decltype(run)>(new int(0), run);
}

TEST(SlabDestructorFreesAgain, CancelInsideCancel) {
  TimerQueue queue;
  TimerId id;
  int cancelled_again = 0;
  int deaths = 0;
  id = queue.add(1h, [guard = at_death([&] {
                        ++deaths;
                        if (queue.cancel(id)) ++cancelled_again;
                      })] {});
  EXPECT_TRUE(queue.cancel(id));
  EXPECT_EQ(deaths, 1);
  EXPECT_EQ(cancelled_again, 0);
  EXPECT_EQ(queue.size(), 0U);
  // A slot that was freed twice is given out twice.
  const TimerId first = queue.add(1h, [] {});
  const TimerId second = queue.add(1h, [] {});
  EXPECT_NE(first.slot, second.slot);
  EXPECT_EQ(queue.size(), 2U);
}

TEST(SlabDestructorFreesAgain, AddInsideCancel) {
  TimerQueue queue;
  int added = 0;
  const TimerId id =
      queue.add(1h, [guard = at_death([&] { queue.add(0ms, [&] { ++added; }); })] {});
  EXPECT_TRUE(queue.cancel(id));
  EXPECT_EQ(queue.size(), 1U);
  queue.run();
  EXPECT_EQ(added, 1);
  EXPECT_EQ(queue.size(), 0U);
}

TEST(SlabDestructorFreesAgain, AddAndCancelWhileTheQueueDies) {
  const auto token = std::make_shared<int>(0);
  int cancels = 0;
  {
    TimerId victim;
    TimerId self;
    TimerQueue queue;
    victim = queue.add(1h, [token] {});
    self = queue.add(1h, [&, guard = at_death([&, token] {
                               cancels += queue.cancel(victim) ? 1 : 0;
                               cancels += queue.cancel(self) ? 1 : 0;
                               queue.add(1h, [token] {});
                             })] {});
  }
  EXPECT_EQ(cancels, 0) << "the first has died before, in the order of the slots";
  EXPECT_EQ(token.use_count(), 1);
}

}  // namespace
}  // namespace evix::test
