#include <evix.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "backend/fork_support.hpp"

// In a child of a fork the C API took the thread that ran a loop in the parent for one that runs it
// still: the child could neither rebuild nor destroy that loop. A fork while other threads were
// inside the API left their locks and pins to the child, which waited for them for ever.
namespace evix::test {
namespace {

/** A loop thread whose loop sleeps, with a timer of an hour. */
class CLoopOfForkedChild : public testing::Test {
 protected:
  void SetUp() override {
    thread = evix_loop_thread_create(nullptr, begin, this);
    ASSERT_NE(thread, nullptr);
    loop = evix_loop_thread_loop(thread);
    wait_until_asleep();
  }
  void TearDown() override {
    EXPECT_EQ(evix_loop_thread_stop(thread), 0);
    EXPECT_EQ(evix_loop_thread_join(thread), 0);
  }
  static void begin(evix_loop_t* made, void* data) {
    auto& self = *static_cast<CLoopOfForkedChild*>(data);
    self.timer = evix_timer_create(made, 3'600'000, 0, [](void*) {}, nullptr);
  }
  /** The first wait has been entered, so the thread does nothing until somebody wakes it. */
  void wait_until_asleep() {
    evix_loop_counters_t counters{};
    counters.size = sizeof counters;
    do {
      std::this_thread::yield();
      ASSERT_EQ(evix_loop_counters(loop, &counters), 0);
    } while (counters.waits == 0);
  }

  evix_loop_thread_t* thread = nullptr;
  evix_loop_t* loop = nullptr;
  evix_timer_t* timer = nullptr;
};

void count(void* data) { ++*static_cast<int*>(data); }

TEST_F(CLoopOfForkedChild, IsRebuiltAndRun) {
  EXPECT_EQ(run_child([&] {
              int calls = 0;
              if (evix_loop_running(loop) != 0) return 1;
              if (evix_loop_run(loop) != EVIX_EFORKED) return 2;
              if (evix_loop_after_fork(loop) != 0) return 3;
              if (evix_timer_destroy(timer) != 0) return 4;
              if (evix_timer_create(loop, 1, 0, count, &calls) == nullptr) return 5;
              if (evix_loop_run_once(loop, -1) != 0) return 6;
              if (calls != 1) return 7;
              return evix_loop_destroy(loop) == 0 ? 0 : 8;
            }),
            0);
}

TEST_F(CLoopOfForkedChild, IsDestroyedWithoutBeingRebuilt) {
  EXPECT_EQ(run_child([&] {
              if (evix_loop_destroy(loop) != 0) return 1;
              if (evix_loop_destroy(loop) != EVIX_ESTALE) return 2;
              evix_loop_t* another = evix_loop_create(nullptr);
              if (another == nullptr) return 3;
              return evix_loop_destroy(another) == 0 ? 0 : 4;
            }),
            0);
}

TEST_F(CLoopOfForkedChild, HasNoThreadToJoin) {
  EXPECT_EQ(run_child([&] { return evix_loop_thread_join(thread) == EVIX_EFORKED ? 0 : 1; }), 0);
}

// A child that was forked in a callback is inside that callback.
TEST_F(CLoopOfForkedChild, IsBusyInItsOwnCallback) {
  struct Context {
    evix_loop_t* loop;
    int ended;
  } context{evix_loop_create(nullptr), -1};
  evix_loop_post(
      context.loop,
      [](void* data) {
        auto& self = *static_cast<Context*>(data);
        self.ended = run_child([&] {
          if (evix_loop_running(self.loop) != 1) return 1;
          return evix_loop_destroy(self.loop) == EVIX_EBUSY ? 0 : 2;
        });
      },
      &context);
  EXPECT_EQ(evix_loop_run(context.loop), 0);
  EXPECT_EQ(context.ended, 0);
  EXPECT_EQ(evix_loop_destroy(context.loop), 0);
}

TEST_F(CLoopOfForkedChild, MayBeForkedInTheMiddleOfTheCallsOfOtherThreads) {
  constexpr int threads_count = 3;
  constexpr int forks = 100;
  evix_loop_t* hammered = evix_loop_create(nullptr);
  ASSERT_NE(hammered, nullptr);
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (int number = 0; number < threads_count; ++number) {
    threads.emplace_back([&] {
      while (!ended) {
        evix_poster_t* poster = evix_poster_create(hammered);
        EXPECT_EQ(evix_poster_wake(poster), 0);
        EXPECT_EQ(evix_loop_wake(hammered), 0);
        EXPECT_EQ(evix_poster_destroy(poster), 0);
        evix_loop_t* own = evix_loop_create(nullptr);
        EXPECT_NE(evix_timer_create(own, 0, 0, [](void*) {}, nullptr), nullptr);
        EXPECT_EQ(evix_loop_run(own), 0);
        EXPECT_EQ(evix_loop_destroy(own), 0);
      }
    });
  }
  int child_ended = 0;
  for (int number = 0; number < forks && child_ended == 0; ++number) {
    child_ended = run_child([&] {
      int calls = 0;
      if (evix_loop_after_fork(hammered) != 0) return 1;
      if (evix_loop_post(hammered, count, &calls) != 0) return 2;
      if (evix_loop_run(hammered) != 0 || calls != 1) return 3;
      if (evix_loop_destroy(hammered) != 0) return 4;
      evix_loop_t* own = evix_loop_create(nullptr);
      if (own == nullptr || evix_poster_create(own) == nullptr) return 5;
      return evix_loop_destroy(own) == 0 && evix_loop_destroy(loop) == 0 ? 0 : 6;
    });
    EXPECT_EQ(child_ended, 0) << "fork " << number;
  }
  ended = true;
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(evix_loop_destroy(hammered), 0);
}

}  // namespace
}  // namespace evix::test
