#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "capi/api_table.hpp"

// What another thread may call while a loop runs, and what happens when it calls the rest.

namespace {

void plain(void*) {}
void count(void* data) { ++*static_cast<int*>(data); }

/** A loop that runs on a thread of its own, with a handle of each kind. */
struct RunningLoop {
  evix_loop_t* loop = nullptr;
  evix_timer_t* timer = nullptr;
  evix_io_t* io = nullptr;
  evix_signal_t* signal = nullptr;
  evix_waker_t* waker = nullptr;
  evix_listener_t* listener = nullptr;
  evix_stream_t* stream = nullptr;
  std::atomic<bool> ready{false};
  evix_loop_thread_t* thread = evix_loop_thread_create(nullptr, &begin, this);

  RunningLoop() { ready.wait(false); }
  ~RunningLoop() {
    EXPECT_EQ(evix_loop_thread_stop(thread), 0);
    EXPECT_EQ(evix_loop_thread_join(thread), 0);
  }

  static void begin(evix_loop_t* loop, void* data) {
    auto& self = *static_cast<RunningLoop*>(data);
    self.loop = loop;
    self.timer = evix_timer_new(loop);
    self.io = evix_io_create(loop, 0, EVIX_IO_PRIORITY, [](void*) {}, nullptr);
    self.signal = evix_signal_create(loop, 10, [](evix_signal_t*, int, void*) {}, nullptr);
    self.waker = evix_waker_create(loop, plain, nullptr);
    self.listener = evix_tcp_listen(loop, "127.0.0.1:0", nullptr, nullptr, nullptr);
    self.stream =
        evix_tcp_connect(loop, "127.0.0.1:1", nullptr, [](evix_stream_t*, int, void*) {}, nullptr);
    self.ready = true;
    self.ready.notify_one();
  }
};

class WrongThread : public testing::TestWithParam<ApiCall> {};

TEST_P(WrongThread, IsRefusedOrAllowed) {
  const ApiCall& api = GetParam();
  RunningLoop running;
  for (void* handle : handles_of_loop(running, api.needs)) {
    ASSERT_NE(handle, nullptr);
    const std::int64_t result = api.call(handle, running.loop);
    if (api.any_thread) {
      EXPECT_GE(result, 0) << api.name << ": " << evix_last_error();
    } else {
      EXPECT_TRUE(result == EVIX_EWRONGTHREAD || result == 0) << result;
      EXPECT_EQ(evix_last_error_code(), EVIX_EWRONGTHREAD) << api.name;
    }
  }
}

std::vector<ApiCall> calls_of_loops() {
  std::vector<ApiCall> calls;
  for (const ApiCall& api : api_calls()) {
    if (api.needs <= Needs::any_handle) calls.push_back(api);
  }
  return calls;
}

INSTANTIATE_TEST_SUITE_P(Api, WrongThread, testing::ValuesIn(calls_of_loops()),
                         [](const auto& tested) { return tested.param.name; });

TEST(LoopThread, BeginThenPostsInOrderThenJoin) {
  struct Context {
    std::vector<int> order;
    std::thread::id begin_on, post_on;
  } context;
  evix_loop_thread_t* thread = evix_loop_thread_create(
      nullptr,
      [](evix_loop_t*, void* data) {
        auto& self = *static_cast<Context*>(data);
        self.begin_on = std::this_thread::get_id();
        self.order.push_back(0);
      },
      &context);
  ASSERT_NE(thread, nullptr) << evix_last_error();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(evix_loop_thread_post(
                  thread,
                  [](void* data) {
                    auto& self = *static_cast<Context*>(data);
                    self.post_on = std::this_thread::get_id();
                    self.order.push_back(static_cast<int>(self.order.size()));
                  },
                  &context),
              0);
  }
  EXPECT_EQ(evix_loop_thread_join(thread), 0);
  EXPECT_EQ(context.order, (std::vector<int>{0, 1, 2}));
  EXPECT_NE(context.begin_on, std::this_thread::get_id());
  EXPECT_EQ(context.begin_on, context.post_on);
  EXPECT_EQ(evix_loop_thread_join(thread), EVIX_ESTALE);
}

TEST(LoopThread, StopRightAfterTheStartIsNotForgotten) {
  for (int round = 0; round < 50; ++round) {
    evix_loop_thread_t* thread = evix_loop_thread_create(
        nullptr,
        [](evix_loop_t* loop, void*) {
          evix_timer_create(loop, 3'600'000, 0, [](void*) {}, nullptr);
        },
        nullptr);
    EXPECT_EQ(evix_loop_thread_stop(thread), 0);
    EXPECT_EQ(evix_loop_thread_join(thread), 0);
  }
}

TEST(LoopThread, PostAfterItsEndIsClosedAndItsLoopStale) {
  evix_loop_thread_t* thread = evix_loop_thread_create(nullptr, nullptr, nullptr);
  evix_loop_t* loop = evix_loop_thread_loop(thread);
  EXPECT_EQ(evix_loop_thread_stop(thread), 0);
  while (evix_loop_wake(loop) != EVIX_ESTALE) std::this_thread::yield();
  int calls = 0;
  int code = 0;
  // The loop is stale a little before it is destroyed: a post in between is taken, and dropped.
  while ((code = evix_loop_thread_post(thread, count, &calls)) == 0) std::this_thread::yield();
  EXPECT_EQ(code, EVIX_ECLOSED);
  EXPECT_EQ(evix_loop_post(loop, count, &calls), EVIX_ESTALE);
  EXPECT_EQ(evix_loop_thread_stop(thread), 0);
  EXPECT_EQ(evix_loop_thread_join(thread), 0);
  EXPECT_EQ(calls, 0);
}

TEST(LoopThread, JoinFromItsOwnThreadIsRefused) {
  struct Context {
    evix_loop_thread_t* thread = evix_loop_thread_create(nullptr, nullptr, nullptr);
    std::atomic<int> code{0};
  } context;
  evix_loop_thread_post(
      context.thread,
      [](void* data) {
        auto& self = *static_cast<Context*>(data);
        self.code = evix_loop_thread_join(self.thread);
        self.code.notify_one();
      },
      &context);
  context.code.wait(0);
  EXPECT_EQ(context.code, EVIX_EWRONGTHREAD);
  EXPECT_EQ(evix_loop_thread_join(context.thread), 0);
}

TEST(LoopThread, FailedLoopIsToldToTheStarter) {
  evix_loop_options_t options{};
  options.size = sizeof options;
  evix_backend_t backend{};
  options.backend = &backend;
  EXPECT_EQ(evix_loop_thread_create(&options, nullptr, nullptr), nullptr);
  EXPECT_EQ(evix_last_error_code(), -EINVAL);
}

TEST(Poster, OutlivesItsLoop) {
  evix_loop_t* loop = evix_loop_create(nullptr);
  evix_poster_t* poster = evix_poster_create(loop);
  int calls = 0;
  EXPECT_EQ(evix_poster_post(poster, count, &calls), 0);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
  EXPECT_EQ(evix_poster_post(poster, count, &calls), EVIX_ECLOSED);
  EXPECT_EQ(evix_poster_wake(poster), 0);
  EXPECT_EQ(evix_poster_post(poster, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(evix_poster_destroy(poster), 0);
  EXPECT_EQ(calls, 1);
}

// A thread that posts all the time and a loop that dies: every post either runs or is refused, and
// nothing is touched after its end (the sanitizers watch).
TEST(Threads, PostWhileTheLoopIsDestroyed) {
  for (int round = 0; round < 100; ++round) {
    evix_loop_t* loop = evix_loop_create(nullptr);
    evix_waker_t* waker = evix_waker_create(loop, plain, nullptr);
    std::atomic<int> attempts{0};
    std::thread other([&] {
      int code = 0;
      while (code != EVIX_ESTALE) {
        code = evix_loop_post(loop, plain, nullptr);
        evix_loop_wake(loop);
        evix_loop_stop(loop);
        evix_waker_wake(waker);
        evix_loop_counters_t counters{};
        counters.size = sizeof counters;
        evix_loop_counters(loop, &counters);
        ++attempts;
      }
    });
    while (attempts == 0) {
      EXPECT_EQ(evix_loop_run_ready(loop), 0);
    }
    EXPECT_EQ(evix_loop_destroy(loop), 0);
    other.join();
  }
}

TEST(Threads, WakerMergesAndDoesNotKeepTheLoopRunning) {
  evix_loop_t* loop = evix_loop_create(nullptr);
  int calls = 0;
  evix_waker_t* waker = evix_waker_create(loop, count, &calls);
  EXPECT_EQ(evix_loop_run(loop), 0);
  std::thread other([&] {
    for (int i = 0; i < 5; ++i) EXPECT_EQ(evix_waker_wake(waker), 0);
  });
  other.join();
  EXPECT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(evix_waker_destroy(waker), 0);
  EXPECT_EQ(evix_waker_wake(waker), EVIX_ESTALE);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(Threads, HandlesOfManyThreadsHaveDifferentPointers) {
  constexpr int threads = 4;
  constexpr int rounds = 500;
  std::vector<std::thread> running;
  std::vector<std::vector<evix_timer_t*>> made(threads);
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&made, t] {
      evix_loop_t* loop = evix_loop_create(nullptr);
      for (int i = 0; i < rounds; ++i) {
        evix_timer_t* timer = evix_timer_new(loop);
        made[t].push_back(timer);
        if (i % 2 == 0) {
          EXPECT_EQ(evix_timer_destroy(timer), 0);
        }
      }
      EXPECT_EQ(evix_loop_destroy(loop), 0);
    });
  }
  for (auto& thread : running) thread.join();
  std::vector<evix_timer_t*> all;
  for (const auto& part : made) all.insert(all.end(), part.begin(), part.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
  EXPECT_EQ(all.size(), static_cast<std::size_t>(threads * rounds));
}

}  // namespace
