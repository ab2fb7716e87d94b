#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "evix.h"

// On the simulated backend time is exact.

namespace {

void count(void* data) { ++*static_cast<int*>(data); }

class CTimer : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(evix_loop_destroy(loop), 0); }
  evix_loop_t* loop = evix_loop_create(evix_sim_backend());
  int calls = 0;
};

/** Notes the time of each call, and works for as long as it is told to. */
struct Clocked {
  evix_loop_t* loop;
  evix_timer_t* timer = nullptr;
  int calls_max = 3;
  uint64_t start = evix_loop_now_ns(loop);
  std::vector<uint64_t> at_ms{};

  static void call(void* data) {
    auto& self = *static_cast<Clocked*>(data);
    self.at_ms.push_back((evix_loop_now_ns(self.loop) - self.start) / MS_TO_NS);
    if (static_cast<int>(self.at_ms.size()) == self.calls_max) {
      EXPECT_EQ(evix_timer_destroy(self.timer), 0);
    }
  }
};

TEST_F(CTimer, OneShotAtItsTimeAndThenGone) {
  const uint64_t start = evix_loop_now_ns(loop);
  evix_timer_t* timer = evix_timer_create(loop, 250, 0, count, &calls);
  EXPECT_EQ(evix_timer_remaining_ns(timer), 250 * MS_TO_NS);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(evix_loop_now_ns(loop) - start, 250U * MS_TO_NS);
  EXPECT_EQ(evix_timer_remaining_ns(timer), EVIX_ESTALE);
}

TEST_F(CTimer, FirstDelayThenPeriod) {
  Clocked clocked{loop};
  clocked.timer = evix_timer_create(loop, 30, 10, Clocked::call, &clocked);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(clocked.at_ms, (std::vector<uint64_t>{30, 40, 50}));
}

TEST_F(CTimer, Nanoseconds) {
  const uint64_t start = evix_loop_now_ns(loop);
  evix_timer_create_ns(loop, 1'500, 0, count, &calls);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(evix_loop_now_ns(loop) - start, 1'500U);
}

TEST_F(CTimer, StoppedTimerStartsAgain) {
  evix_timer_t* timer = evix_timer_create(loop, 10, 0, count, &calls);
  EXPECT_EQ(evix_timer_stop(loop, timer), 0);
  EXPECT_EQ(evix_timer_stop(loop, timer), 0);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(evix_timer_again(timer), 0);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(evix_timer_again(timer), EVIX_ESTALE);
}

TEST_F(CTimer, ReusableTimerDoesNotFreeItself) {
  evix_timer_t* timer = evix_timer_new(loop);
  EXPECT_EQ(evix_timer_again(timer), 0) << "never started: nothing happens";
  EXPECT_EQ(evix_loop_run(loop), 0);
  for (int round = 1; round <= 2; ++round) {
    EXPECT_EQ(evix_timer_start_ns(timer, 5, 0, EVIX_MISSED_SKIP, count, &calls), 0);
    EXPECT_EQ(evix_loop_run(loop), 0);
    EXPECT_EQ(calls, round);
  }
  const uint64_t now = evix_loop_now_ns(loop);
  EXPECT_EQ(evix_timer_start_at_ns(timer, now + 700, count, &calls), 0);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(evix_loop_now_ns(loop), now + 700);
  EXPECT_EQ(evix_timer_start_ns(timer, 5, 0, 3, count, &calls), -EINVAL);
  EXPECT_EQ(evix_timer_start_ns(timer, 5, 0, -1, count, &calls), -EINVAL);
  EXPECT_EQ(evix_timer_start_ns(timer, 5, 0, 0, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(evix_timer_destroy(timer), 0);
}

TEST_F(CTimer, HugeDelaysAreNever) {
  for (const uint64_t delay : {EVIX_NEVER, static_cast<uint64_t>(INT64_MAX), EVIX_NEVER - 1}) {
    evix_timer_t* in_ms = evix_timer_create(loop, delay, 0, count, &calls);
    evix_timer_t* in_ns = evix_timer_create_ns(loop, delay, delay, count, &calls);
    EXPECT_EQ(evix_timer_remaining_ns(in_ms), INT64_MAX) << delay;
    EXPECT_EQ(evix_timer_remaining_ns(in_ns), INT64_MAX) << delay;
    EXPECT_EQ(evix_handle_unref(in_ms), 0);
    EXPECT_EQ(evix_handle_unref(in_ns), 0);
  }
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(calls, 0);
}

// The first of three calls works for more than three periods, in real time.
TEST(CTimerPolicy, MissedTicks) {
  struct Busy {
    evix_loop_t* loop;
    evix_timer_t* timer = evix_timer_new(loop);
    std::vector<int64_t> missed{};

    static void call(void* data) {
      auto& self = *static_cast<Busy*>(data);
      self.missed.push_back(evix_timer_missed(self.timer));
      const uint64_t end = evix_loop_now_ns(self.loop) + 35U * MS_TO_NS;
      while (self.missed.size() == 1 && evix_loop_now_ns(self.loop) < end) {
        evix_loop_update_now(self.loop);
      }
      if (self.missed.size() == 3) evix_timer_destroy(self.timer);
    }
  };
  for (const int policy : {EVIX_MISSED_SKIP, EVIX_MISSED_BURST, EVIX_MISSED_DELAY}) {
    evix_loop_t* loop = evix_loop_create(nullptr);
    Busy busy{loop};
    evix_timer_start_ns(busy.timer, 10 * MS_TO_NS, 10 * MS_TO_NS, policy, Busy::call, &busy);
    EXPECT_EQ(evix_loop_run(loop), 0);
    ASSERT_EQ(busy.missed.size(), 3U);
    if (policy == EVIX_MISSED_BURST) {
      EXPECT_EQ(busy.missed, (std::vector<int64_t>{0, 0, 0}));
    } else {
      EXPECT_GE(busy.missed[1], 2) << policy;
    }
    EXPECT_EQ(evix_loop_destroy(loop), 0);
  }
}

}  // namespace
