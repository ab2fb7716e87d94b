#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <concepts>
#include <coroutine>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "backend/conformance.hpp"
#include "task_support.hpp"

// What a task gives, throws and owns, and what evix::run() makes of it.
namespace evix::test {
namespace {

class Tasks : public Conformance {};
EVIX_OVER_BACKENDS(Tasks);

// ---- Results -----------------------------------------------------------------------------------

Task<int> number(int value) { co_return value; }
Task<std::string> text(std::string value) { co_return value; }
Task<std::unique_ptr<int>> move_only(int value) { co_return std::make_unique<int>(value); }
Task<> nothing(int& calls) {
  ++calls;
  co_return;
}

struct NoDefault {
  NoDefault(int first, int second) : sum(first + second) {}
  int sum;
};
Task<NoDefault> from_braces() { co_return {3, 4}; }

Task<int> sum_of_all(int& calls) {
  co_await nothing(calls);
  const std::unique_ptr<int> moved = co_await move_only(20);
  const std::string words = co_await text("four");
  co_return co_await number(1) + *moved + static_cast<int>(words.size()) +
      (co_await from_braces()).sum;
}

TEST_P(Tasks, ResultsOfEveryKind) {
  int calls = 0;
  EXPECT_EQ(run(sum_of_all(calls), options()), 32);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(*run(move_only(5), options()), 5);
  EXPECT_EQ(run(text("a text that is longer than a small string holds"), options()),
            "a text that is longer than a small string holds");
  EXPECT_EQ(run(from_braces(), options()).sum, 7);
  run(nothing(calls), options());
  EXPECT_EQ(calls, 2);
}

Task<Counted> counted(int& live) { co_return Counted(live); }
Task<int> drop_and_keep(int& live) {
  co_await counted(live);
  EXPECT_EQ(live, 0) << "a result that nobody takes goes with its task";
  const Counted kept = co_await counted(live);
  EXPECT_EQ(live, 1);
  co_return live;
}

TEST_P(Tasks, ResultsAreDestroyedOnce) {
  int live = 0;
  EXPECT_EQ(run(drop_and_keep(live), options()), 1);
  EXPECT_EQ(live, 0);
}

static_assert(!std::is_copy_constructible_v<Task<int>>);
static_assert(std::is_nothrow_move_constructible_v<Task<int>>);
static_assert(sizeof(Task<std::string>) == sizeof(void*));

// ---- Exceptions --------------------------------------------------------------------------------

Task<int> fails(const char* what) {
  throw std::runtime_error(what);
  co_return 0;
}
Task<int> passes_on(const char* what) { co_return co_await fails(what) + 1; }

Task<std::string> catches() {
  std::string caught;
  for (const char* what : {"first", "second"}) {
    try {
      co_await passes_on(what);
      caught += "nothing ";
    } catch (const std::runtime_error& error) {
      caught += error.what();
      caught += ' ';
    }
  }
  co_return caught + std::to_string(co_await number(3));
}

TEST_P(Tasks, ExceptionsAreThrownAtTheAwait) {
  EXPECT_EQ(run(catches(), options()), "first second 3");
}

TEST_P(Tasks, RunRethrows) {
  try {
    run(passes_on("out of the task"), options());
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "out of the task");
  }
}

Task<> fails_after_a_turn(int& live) {
  const Counted local(live);
  co_await yield();
  throw std::runtime_error("detached");
}
Task<> yields_thrice(int& resumed) {
  for (int i = 0; i < 3; ++i) {
    co_await yield();
    ++resumed;
  }
}

TEST_P(Tasks, AnExceptionOfASpawnedTaskLeavesRunAndNothingIsLost) {
  int live = 0;
  int resumed = 0;
  loop.spawn(fails_after_a_turn(live));
  loop.spawn(yields_thrice(resumed));
  EXPECT_THROW(loop.run(), std::runtime_error);
  EXPECT_EQ(live, 0);
  EXPECT_LT(resumed, 3);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(resumed, 3);
  EXPECT_TRUE(loop.handles().empty());
}

// ---- Lazy, and owned ---------------------------------------------------------------------------

Task<> records(std::vector<std::string>& events, std::string name, Counted argument) {
  static_cast<void>(argument);
  events.push_back(std::move(name));
  co_return;
}

TEST_P(Tasks, ATaskThatNobodyAwaitsNeverBegins) {
  int live = 0;
  std::vector<std::string> events;
  {
    Task<> dropped = records(events, "dropped", Counted(live));
    EXPECT_EQ(live, 1);
    Task<> replaced = records(events, "replaced", Counted(live));
    EXPECT_EQ(live, 2);
    replaced = std::move(dropped);
    EXPECT_EQ(live, 1);
    EXPECT_TRUE(replaced);
    EXPECT_FALSE(dropped);
  }
  EXPECT_EQ(live, 0);
  EXPECT_TRUE(events.empty());
}

Task<> parent_of_two(std::vector<std::string>& events, int& live) {
  events.push_back("begin");
  Task<> later = records(events, "later", Counted(live));
  Task<> never = records(events, "never", Counted(live));
  co_await records(events, "first", Counted(live));
  EXPECT_EQ(live, 2) << "an awaited task is gone when its await is over";
  co_await std::move(later);
  EXPECT_EQ(live, 1);
  events.push_back("end");
}

TEST_P(Tasks, AnAwaitedTaskRunsAtTheAwait) {
  int live = 0;
  std::vector<std::string> events;
  run(parent_of_two(events, live), options());
  EXPECT_EQ(events, (std::vector<std::string>{"begin", "first", "later", "end"}));
  EXPECT_EQ(live, 0);
}

// ---- run() -------------------------------------------------------------------------------------

Task<> sleeps_for_ever(int& live) {
  const Counted local(live);
  co_await sleep_for(forever);
}
Task<BackendKind> leaves_another_behind(int& live) {
  Loop& here = co_await this_loop();
  here.spawn(sleeps_for_ever(live));
  co_await yield();
  co_await yield();
  EXPECT_EQ(live, 1);
  co_return here.backend();
}

TEST_P(Tasks, RunEndsWithItsTask) {
  int live = 0;
  EXPECT_EQ(run(leaves_another_behind(live), options()), GetParam());
  EXPECT_EQ(live, 0);
}

Task<int> is_stopped(int& live) {
  const Counted local(live);
  Loop& here = co_await this_loop();
  here.post([&here] { here.stop(); });
  co_await sleep_for(forever);
  co_return 1;
}

TEST_P(Tasks, RunThatIsStoppedThrows) {
  int live = 0;
  try {
    run(is_stopped(live), options());
    FAIL() << "nothing was thrown";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::operation_canceled);
  }
  EXPECT_EQ(live, 0);
}

Task<int> has_a_failing_other(int& live) {
  const Counted local(live);
  Loop& here = co_await this_loop();
  here.spawn(fails_after_a_turn(live));
  co_await sleep_for(forever);
  co_return 1;
}

TEST_P(Tasks, RunThrowsWhatLeftAnotherTask) {
  int live = 0;
  EXPECT_THROW(run(has_a_failing_other(live), options()), std::runtime_error);
  EXPECT_EQ(live, 0);
}

// ---- Misuse ends the process with a message ----------------------------------------------------

class TaskMisuse : public Conformance {
 protected:
  TaskMisuse() { testing::FLAGS_gtest_death_test_style = "fast"; }
};
EVIX_OVER_BACKENDS(TaskMisuse);

Task<> awaits_twice() {
  Task<int> once = number(1);
  co_await std::move(once);
  co_await std::move(once);
}

TEST_P(TaskMisuse, AnEmptyTask) {
  EXPECT_DEATH(run(awaits_twice(), options()), "^evix: an empty task was used\n");
  EXPECT_DEATH(run(Task<int>(), options()), "^evix: an empty task was used\n");
  EXPECT_DEATH(loop.spawn(Task<>()), "^evix: an empty task was used\n");
}

TEST_P(TaskMisuse, SpawnFromAWrongThread) {
  int calls = 0;
  EXPECT_DEATH(
      {
        (void)loop.after_fork();
        loop.post([&] { std::thread([&] { loop.spawn(nothing(calls)); }).join(); });
        loop.run_ready();
      },
      "^evix: spawn\\(\\) from a thread that does not run the loop\n");
}

/** Waits until somebody resumes the chain that it hands out. */
class HandsOut : public detail::TaskAwaitable {
 public:
  explicit HandsOut(detail::TaskChain*& chain) noexcept : chain_(chain) {}

  bool await_ready() const noexcept { return false; }
  template <std::derived_from<detail::TaskPromiseBase> Promise>
  void await_suspend(std::coroutine_handle<Promise> task) const noexcept {
    chain_ = &task.promise().chain();
  }
  void await_resume() const noexcept {}

 private:
  detail::TaskChain*& chain_;
};

Task<> waits_twice(detail::TaskChain*& chain, bool resumes_itself) {
  co_await HandsOut(chain);
  if (resumes_itself) detail::resume_chain(*chain);
  co_await HandsOut(chain);
}

TEST_P(TaskMisuse, ResumedByTheWrongThreadOrWhileItRuns) {
  detail::TaskChain* chain = nullptr;
  loop.spawn(waits_twice(chain, false));
  loop.run_ready();
  EXPECT_DEATH(
      {
        (void)loop.after_fork();
        loop.post([&] { std::thread([&] { detail::resume_chain(*chain); }).join(); });
        loop.run_ready();
      },
      "^evix: a task was resumed by a thread that does not run its loop\n");
  loop.post([&] { detail::resume_chain(*chain); });
  loop.run_ready();
  EXPECT_EQ(loop.handles().size(), 1U);
  loop.post([&] { detail::resume_chain(*chain); });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_TRUE(loop.handles().empty());

  loop.spawn(waits_twice(chain, true));
  loop.run_ready();
  EXPECT_DEATH(detail::resume_chain(*chain), "^evix: a task was resumed that does not wait\n");
}

}  // namespace
}  // namespace evix::test
