#include <gtest/gtest.h>

#include <evix/timer_queue.hpp>
#include <optional>
#include <stdexcept>
#include <vector>

#include "base/prng.hpp"
#include "poll/poll_fixture.hpp"

namespace evix::detail {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

using Order = std::vector<int>;

TimePoint at(std::int64_t time_ns) { return TimePoint(Duration(time_ns)); }

/** Waits as a program would, until `queue` is empty. */
void run_all(TimerQueue& queue, Poller& poller) {
  for (Duration timeout = queue.run(); queue.size() != 0; timeout = queue.run()) {
    ASSERT_TRUE(poller.wait(timeout));
  }
}

TEST(TimerQueue, EmptyQueueIsNeverDue) {
  TimerQueue queue;
  EXPECT_EQ(queue.size(), 0U);
  EXPECT_EQ(queue.due(), TimePoint::max());
  EXPECT_EQ(queue.run(), forever);
}

TEST(TimerQueue, RunsByDeadlineThenByOrderOfAdding) {
  TimerQueue queue;
  Order order;
  const std::int64_t now = now_ns();
  queue.add_at(at(now - 1), [&] { order.push_back(3); });
  queue.add_at(at(now - 5), [&] { order.push_back(1); });
  queue.add_at(at(now - 5), [&] { order.push_back(2); });
  queue.add_at(at(INT64_MIN), [&] { order.push_back(0); });
  EXPECT_EQ(queue.size(), 4U);
  EXPECT_EQ(queue.run(), forever);
  EXPECT_EQ(order, (Order{0, 1, 2, 3}));
  EXPECT_EQ(queue.size(), 0U);
}

TEST(TimerQueue, DueIsTheExactDeadline) {
  TimerQueue queue;
  const std::int64_t hour_from_now = now_ns() + Duration(hours(1)).count();
  queue.add_at(at(hour_from_now + 1), [] {});
  queue.add_at(at(hour_from_now), [] {});
  EXPECT_EQ(queue.due(), at(hour_from_now));
}

TEST(TimerQueue, RunSaysHowLongTheWaitMayLast) {
  TimerQueue queue;
  const std::int64_t start = now_ns();
  const std::int64_t deadline = start + Duration(hours(1)).count();
  queue.add_at(at(deadline), [] {});
  const Duration timeout = queue.run();
  EXPECT_LE(timeout.count(), deadline - start);
  EXPECT_GE(timeout.count(), deadline - now_ns());
}

TEST(TimerQueue, NeverEarlyAndBelowAMillisecond) {
  auto poller = Poller::create();
  ASSERT_TRUE(poller);
  for (const std::int64_t delay_ns : {0, 1, 1'000, 250'000, 1'500'000}) {
    TimerQueue queue;
    const std::int64_t start = now_ns();
    std::int64_t fired = 0;
    queue.add(Duration(delay_ns), [&] { fired = now_ns(); });
    run_all(queue, *poller);
    EXPECT_GE(fired - start, delay_ns);
  }
}

TEST(TimerQueue, NegativeIsZeroAndForeverIsNever) {
  TimerQueue queue;
  Order order;
  queue.add(Duration(-5), [&] { order.push_back(1); });
  queue.add(Duration::min(), [&] { order.push_back(2); });
  const TimerId never = queue.add(forever, [&] { order.push_back(3); });
  const TimerId also_never = queue.add(Duration(INT64_MAX - 1), [&] { order.push_back(4); });
  queue.add_at(TimePoint::max(), [&] { order.push_back(5); });
  EXPECT_EQ(queue.run(), forever);
  EXPECT_EQ(order, (Order{1, 2}));
  EXPECT_EQ(queue.size(), 3U);
  EXPECT_EQ(queue.due(), TimePoint::max());
  EXPECT_TRUE(queue.cancel(never));
  EXPECT_TRUE(queue.cancel(also_never));
  EXPECT_EQ(queue.size(), 1U);
}

TEST(TimerQueue, CancelledDoesNotRun) {
  TimerQueue queue;
  Order order;
  const TimerId id = queue.add(Duration::zero(), [&] { order.push_back(1); });
  queue.add(Duration::zero(), [&] { order.push_back(2); });
  EXPECT_TRUE(queue.cancel(id));
  EXPECT_FALSE(queue.cancel(id));
  EXPECT_FALSE(queue.cancel(TimerId{}));
  EXPECT_FALSE(queue.cancel(TimerId{UINT32_MAX, 1}));
  queue.run();
  EXPECT_EQ(order, Order{2});
}

TEST(TimerQueue, IdIsStaleOnceTheTimerRuns) {
  TimerQueue queue;
  TimerId id;
  std::optional<bool> cancelled;
  id = queue.add(Duration::zero(), [&] { cancelled = queue.cancel(id); });
  queue.run();
  EXPECT_EQ(cancelled, false);
  const TimerId reused = queue.add(Duration::zero(), [] {});
  EXPECT_EQ(reused.slot, id.slot);
  EXPECT_NE(reused, id);
  EXPECT_FALSE(queue.cancel(id));
  EXPECT_EQ(queue.size(), 1U);
}

TEST(TimerQueue, AddedInACallbackWaitsForTheNextRun) {
  TimerQueue queue;
  int runs = 0;
  queue.add(Duration::zero(), [&] {
    ++runs;
    queue.add(Duration::zero(), [&] { ++runs; });
  });
  EXPECT_EQ(queue.run(), Duration::zero());
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(queue.run(), forever);
  EXPECT_EQ(runs, 2);
}

TEST(TimerQueue, TrapT013CancelledByAnEarlierCallback) {
  TimerQueue queue;
  int runs = 0;
  std::vector<TimerId> ids;
  for (int i = 0; i < 64; ++i) {
    ids.push_back(queue.add(Duration::zero(), [&] {
      ++runs;
      for (const TimerId id : ids) queue.cancel(id);
    }));
  }
  queue.run();
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(queue.size(), 0U);
}

TEST(TimerQueue, ExceptionLeavesTheRestForTheNextRun) {
  TimerQueue queue;
  Order order;
  queue.add(Duration::zero(), [&] {
    order.push_back(1);
    throw std::runtime_error("callback");
  });
  queue.add(Duration::zero(), [&] { order.push_back(2); });
  EXPECT_THROW(queue.run(), std::runtime_error);
  EXPECT_EQ(order, Order{1});
  EXPECT_EQ(queue.run(), forever);
  EXPECT_EQ(order, (Order{1, 2}));
}

TEST(TimerQueue, EmptyCallbackIsATimerThatDoesNothing) {
  TimerQueue queue;
  queue.add(Duration::zero(), nullptr);
  EXPECT_EQ(queue.run(), forever);
}

TEST(TimerQueue, DestroysWhatItHolds) {
  const auto held = std::make_shared<int>(1);
  {
    TimerQueue queue;
    queue.add(hours(1), [held] {});
    const TimerId id = queue.add(hours(1), [held] {});
    queue.add(Duration::zero(), [held] {});
    EXPECT_EQ(held.use_count(), 4);
    queue.cancel(id);
    EXPECT_EQ(held.use_count(), 3);
    queue.run();
    EXPECT_EQ(held.use_count(), 2);
    TimerQueue moved = std::move(queue);
    EXPECT_EQ(moved.size(), 1U);
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(TimerQueue, ManyRandomTimersInExactOrder) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Prng random(seed);
    TimerQueue queue;
    const std::int64_t base = now_ns() - 2'000'000'000;
    std::int64_t last = 0;
    std::size_t runs = 0;
    std::size_t cancelled = 0;
    for (int i = 0; i < 10'000; ++i) {
      const std::int64_t deadline = base + static_cast<std::int64_t>(random.below(1'000'000'000));
      const TimerId id = queue.add_at(at(deadline), [&, deadline] {
        EXPECT_LE(last, deadline) << "seed " << seed;
        last = deadline;
        ++runs;
      });
      if (random.below(4) == 0) cancelled += queue.cancel(id) ? 1 : 0;
    }
    EXPECT_EQ(queue.run(), forever);
    EXPECT_EQ(runs + cancelled, 10'000U);
  }
}

}  // namespace
}  // namespace evix::detail
