#define EVIX_LOCATIONS
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "evix.h"

namespace {

void plain(void*) {}
void count(void* data) { ++*static_cast<int*>(data); }

class CLoop : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(evix_loop_destroy(loop), 0); }
  evix_loop_t* loop = evix_loop_create(nullptr);
};

evix_loop_counters_t counters_of(evix_loop_t* loop) {
  evix_loop_counters_t counters{};
  counters.size = sizeof counters;
  EXPECT_EQ(evix_loop_counters(loop, &counters), 0);
  return counters;
}

TEST_F(CLoop, EmptyRunEndsAtOnce) {
  EXPECT_EQ(evix_loop_alive(loop), 0);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(evix_loop_run_for(loop, 1'000'000'000), 0);
}

TEST_F(CLoop, RunOnceWaitsForItsTimeoutAndNotShorter) {
  ASSERT_EQ(evix_loop_ref(loop), 0);
  EXPECT_EQ(evix_loop_update_now(loop), 0);
  const uint64_t before = evix_loop_now_ns(loop);
  EXPECT_EQ(evix_loop_run_once(loop, 20'000'000), 0);
  EXPECT_EQ(evix_loop_update_now(loop), 0);
  EXPECT_GE(evix_loop_now_ns(loop) - before, 20'000'000U);
  EXPECT_EQ(counters_of(loop).waits, 1U);
  EXPECT_EQ(evix_loop_unref(loop), 0);
  EXPECT_EQ(evix_loop_unref(loop), -EINVAL);
}

TEST_F(CLoop, RunForEndsAfterItsDuration) {
  ASSERT_EQ(evix_loop_ref(loop), 0);
  evix_loop_update_now(loop);
  const uint64_t before = evix_loop_now_ns(loop);
  EXPECT_EQ(evix_loop_run_for(loop, 20'000'000), 0);
  evix_loop_update_now(loop);
  EXPECT_GE(evix_loop_now_ns(loop) - before, 20'000'000U);
}

TEST_F(CLoop, StopBeforeRunIsForgottenByRunAndTakenByRunOnce) {
  int calls = 0;
  EXPECT_EQ(evix_loop_stop(loop), 0);
  evix_loop_add_callback(loop, count, &calls);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(evix_loop_stop(loop), 0);
  evix_loop_add_callback(loop, count, &calls);
  EXPECT_EQ(evix_loop_run_once(loop, 0), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(evix_loop_run_once(loop, 0), 0);
  EXPECT_EQ(calls, 2);
}

TEST_F(CLoop, NestedRunDrainsTheSameQueuesAndStopEndsTheInnermost) {
  struct Context {
    evix_loop_t* loop;
    std::string log;
  } context{loop, {}};
  evix_loop_add_callback(
      loop,
      [](void* data) {
        auto& self = *static_cast<Context*>(data);
        self.log += "outer(";
        evix_loop_add_callback(
            self.loop,
            [](void* inner) {
              auto& same = *static_cast<Context*>(inner);
              same.log += "stop";
              EXPECT_EQ(evix_loop_running(same.loop), 1);
              EXPECT_EQ(evix_loop_stop(same.loop), 0);
            },
            data);
        evix_loop_ref(self.loop);
        EXPECT_EQ(evix_loop_run(self.loop), 0);
        evix_loop_unref(self.loop);
        self.log += ")";
      },
      &context);
  evix_timer_create(
      loop, 1, 0, [](void* data) { static_cast<Context*>(data)->log += "timer"; }, &context);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(context.log, "outer(stop)timer");
  EXPECT_EQ(evix_loop_running(loop), 0);
}

TEST_F(CLoop, DestroyInsideACallbackIsRefused) {
  struct Context {
    evix_loop_t* loop;
    int code = 0;
  } context{loop};
  evix_loop_add_callback(
      loop,
      [](void* data) {
        auto& self = *static_cast<Context*>(data);
        self.code = evix_loop_destroy(self.loop);
      },
      &context);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(context.code, EVIX_EBUSY);
}

TEST_F(CLoop, HooksStandDirectlyAroundEachWait) {
  struct Context {
    evix_loop_t* loop;
    std::string log;
    int run_code = 0;
  } context{loop, {}};
  EXPECT_EQ(evix_loop_set_wait_hooks(
                loop, [](void* data) { static_cast<Context*>(data)->log += "b"; },
                [](void* data) {
                  auto& self = *static_cast<Context*>(data);
                  self.log += "a";
                  self.run_code = evix_loop_run(self.loop);
                },
                &context),
            0);
  evix_loop_add_callback(
      loop, [](void* data) { static_cast<Context*>(data)->log += "i"; }, &context);
  evix_timer_create(
      loop, 0, 0, [](void* data) { static_cast<Context*>(data)->log += "t"; }, &context);
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(context.log, "ibat");
  EXPECT_EQ(context.run_code, EVIX_EBUSY);
  EXPECT_EQ(evix_loop_set_wait_hooks(loop, nullptr, nullptr, nullptr), 0);
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(context.log, "ibat");
}

TEST_F(CLoop, DataOfLoopAndHandles) {
  int one = 0;
  int two = 0;
  EXPECT_EQ(evix_loop_data(loop), nullptr);
  EXPECT_EQ(evix_loop_set_data(loop, &one), 0);
  EXPECT_EQ(evix_loop_data(loop), &one);
  evix_timer_t* timer = evix_timer_new(loop);
  EXPECT_EQ(evix_handle_data(timer), nullptr);
  EXPECT_EQ(evix_handle_set_data(timer, &two), 0);
  EXPECT_EQ(evix_handle_data(timer), &two);
  EXPECT_EQ(evix_handle_loop(timer), loop);
}

TEST_F(CLoop, NamesAndReferences) {
  evix_timer_t* timer = evix_timer_create(loop, 3'600'000, 0, plain, nullptr);
  char text[4];
  EXPECT_EQ(evix_handle_set_name(timer, "ticker"), 0);
  EXPECT_EQ(evix_handle_name(timer, text, sizeof text), 6);
  EXPECT_STREQ(text, "tic");
  EXPECT_EQ(evix_handle_name(timer, nullptr, 0), 6);
  EXPECT_EQ(evix_handle_active(timer), 1);
  EXPECT_EQ(evix_handle_referenced(timer), 1);
  EXPECT_EQ(evix_loop_alive(loop), 1);
  EXPECT_EQ(evix_handle_unref(timer), 0);
  EXPECT_EQ(evix_handle_referenced(timer), 0);
  EXPECT_EQ(evix_loop_run(loop), 0) << "an unreferenced timer does not keep it running";
  EXPECT_EQ(evix_handle_ref(timer), 0);
  EXPECT_EQ(evix_loop_alive(loop), 1);
  EXPECT_EQ(evix_timer_stop(loop, timer), 0);
  EXPECT_EQ(evix_handle_active(timer), 0);
}

struct Seen {
  std::string kind, name, waits_for, file;
  int line, active, referenced, fd;
  void* handle;
};

std::vector<Seen> list(evix_loop_t* loop) {
  std::vector<Seen> seen;
  const int visited = evix_loop_each_handle(
      loop,
      [](const evix_handle_info_t* info, void* data) {
        EXPECT_EQ(info->size, sizeof *info);
        static_cast<std::vector<Seen>*>(data)->push_back(
            {info->kind, info->name, info->waits_for, info->file, info->line, info->active,
             info->referenced, info->fd, info->handle});
      },
      &seen);
  EXPECT_EQ(visited, static_cast<int>(seen.size()));
  return seen;
}

TEST_F(CLoop, ListsItsHandlesWithNameAndPlace) {
  EXPECT_TRUE(list(loop).empty());
  const int line = __LINE__ + 1;
  evix_timer_t* timer = evix_timer_create(loop, 60'000, 0, plain, nullptr);
  evix_handle_set_name(timer, "idle");
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  evix_io_t* io = evix_io_create(loop, fds[0], EVIX_IO_READ, plain, nullptr);
  evix_waker_t* waker = evix_waker_create(loop, plain, nullptr);
  const auto seen = list(loop);
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_EQ(seen[0].kind, "timer");
  EXPECT_EQ(seen[0].name, "idle");
  EXPECT_EQ(seen[0].waits_for, "deadline in 60000 ms");
  EXPECT_NE(seen[0].file.find("loop_test.cpp"), std::string::npos) << seen[0].file;
  EXPECT_EQ(seen[0].line, line);
  EXPECT_EQ(seen[0].handle, timer);
  EXPECT_EQ(seen[1].kind, "watcher");
  EXPECT_EQ(seen[1].waits_for, "readable");
  EXPECT_EQ(seen[1].fd, fds[0]);
  EXPECT_EQ(seen[1].handle, io);
  EXPECT_EQ(seen[1].line, line + 4);
  EXPECT_EQ(seen[2].kind, "waker");
  EXPECT_EQ(seen[2].referenced, 0);
  EXPECT_EQ(seen[2].handle, waker);
  evix_io_stop(loop, io);
  EXPECT_EQ(list(loop).size(), 2U);
  close(fds[0]);
  close(fds[1]);
}

TEST_F(CLoop, ListingMayFreeHandles) {
  for (int i = 0; i < 5; ++i) evix_timer_new(loop);
  struct Context {
    int visited = 0;
  } context;
  // Each visit frees the visited one: the next must still be found.
  EXPECT_EQ(evix_loop_each_handle(
                loop,
                [](const evix_handle_info_t* info, void* data) {
                  ++static_cast<Context*>(data)->visited;
                  EXPECT_EQ(evix_timer_destroy(static_cast<evix_timer_t*>(info->handle)), 0);
                },
                &context),
            5);
  EXPECT_EQ(context.visited, 5);
  EXPECT_TRUE(list(loop).empty());
}

TEST_F(CLoop, CountersFillWhatTheProgramKnows) {
  int calls = 0;
  evix_loop_add_callback(loop, count, &calls);
  evix_timer_create(loop, 60'000, 0, plain, nullptr);
  EXPECT_EQ(counters_of(loop).timers_armed, 1U);
  EXPECT_EQ(counters_of(loop).handles, 1U);
  EXPECT_EQ(counters_of(loop).handles_active, 1U);
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(counters_of(loop).turns, 1U);
  EXPECT_EQ(counters_of(loop).callbacks, 1U);
  // A program of an older header: nothing beyond its size is written.
  evix_loop_counters_t old{};
  old.size = offsetof(evix_loop_counters_t, waits);
  old.waits = 77;
  EXPECT_EQ(evix_loop_counters(loop, &old), 0);
  EXPECT_EQ(old.turns, 1U);
  EXPECT_EQ(old.waits, 77U);
  old.size = 0;
  EXPECT_EQ(evix_loop_counters(loop, &old), -EINVAL);
  old.size = sizeof old + 1;
  EXPECT_EQ(evix_loop_counters(loop, &old), -EINVAL);
  EXPECT_EQ(evix_loop_counters(loop, nullptr), -EINVAL);
}

TEST_F(CLoop, NullCallbacksAreRefused) {
  EXPECT_EQ(evix_loop_add_callback(loop, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(evix_loop_post(loop, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(evix_timer_create(loop, 0, 0, nullptr, nullptr), nullptr);
  EXPECT_EQ(evix_io_create(loop, 0, EVIX_IO_READ, nullptr, nullptr), nullptr);
  EXPECT_EQ(evix_signal_create(loop, 10, nullptr, nullptr), nullptr);
  EXPECT_EQ(evix_waker_create(loop, nullptr, nullptr), nullptr);
  EXPECT_EQ(evix_tcp_connect(loop, "127.0.0.1:1", nullptr, nullptr, nullptr), nullptr);
  EXPECT_EQ(evix_loop_each_handle(loop, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(evix_last_error_code(), -EINVAL);
  EXPECT_TRUE(list(loop).empty()) << "a refused call leaves no handle";
}

TEST_F(CLoop, BackendReportNamesTheChosenOne) {
  char text[2048];
  const int size = evix_loop_backend_report(loop, text, sizeof text);
  EXPECT_EQ(size, static_cast<int>(std::string(text).size()));
  EXPECT_NE(std::string(text).find(std::string("* ") + evix_loop_backend_name(loop)),
            std::string::npos)
      << text;
}

TEST_F(CLoop, ThrowingCallbackIsACodeAndTheLoopGoesOn) {
  int calls = 0;
  evix_loop_add_callback(loop, [](void*) { throw std::runtime_error("from a callback"); }, nullptr);
  evix_loop_add_callback(loop, count, &calls);
  EXPECT_EQ(evix_loop_run(loop), EVIX_ETHROWN);
  EXPECT_STREQ(evix_last_error(), "from a callback");
  EXPECT_EQ(evix_loop_running(loop), 0);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 1);
}

TEST_F(CLoop, ChildAfterForkHasToSaySo) {
  int calls = 0;
  evix_timer_create(loop, 1, 0, count, &calls);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int refused = evix_loop_run(loop);
    const int rebuilt = evix_loop_after_fork(loop);
    const int ran = evix_loop_run(loop);
    _exit(refused == EVIX_EFORKED && rebuilt == 0 && ran == 0 && calls == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 1);
}

TEST_F(CLoop, RebuildKeepsWhatIsInFlight) {
  int calls = 0;
  evix_timer_create(loop, 1, 0, count, &calls);
  EXPECT_EQ(evix_loop_rebuild(loop), 0);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(evix_loop_rebuild(nullptr), EVIX_ESTALE);
}

TEST(CLoopOptions, SizeAndDefaults) {
  evix_loop_options_t options{};
  EXPECT_EQ(evix_loop_create_ex(&options), nullptr) << "size 0";
  options.size = sizeof options + 8;
  EXPECT_EQ(evix_loop_create_ex(&options), nullptr) << "newer than the library";
  EXPECT_EQ(evix_last_error_code(), -EINVAL);
  evix_loop_t* loop = evix_loop_create_ex(nullptr);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
  // Only the first two fields are known to this program.
  options.size = offsetof(evix_loop_options_t, sim_seed);
  options.backend = evix_sim_backend();
  loop = evix_loop_create_ex(&options);
  EXPECT_STREQ(evix_loop_backend_name(loop), "sim");
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(CErrors, TextAndCodeOfTheThread) {
  EXPECT_STREQ(evix_error_text(0), "success");
  EXPECT_STREQ(evix_error_text(-ECONNREFUSED), "connection refused");
  EXPECT_STREQ(evix_error_text(EVIX_ESTALE), "the handle has ended or never existed");
  EXPECT_STREQ(evix_error_text(EVIX_ETHROWN), "a callback threw an exception");
  EXPECT_EQ(evix_loop_run(nullptr), EVIX_ESTALE);
  EXPECT_STREQ(evix_last_error(), "evix_loop_run: the handle has ended or never existed");
  EXPECT_EQ(evix_last_error_code(), EVIX_ESTALE);
}

}  // namespace
