#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/conformance.hpp"
#include "task_support.hpp"

// Tasks that run beside each other: scopes, when_all, race, deadlines, cancelling.
namespace evix::test {
namespace {

class TaskScope : public Conformance {};
EVIX_OVER_BACKENDS(TaskScope);

using Events = std::vector<std::string>;

/** Says when its frame goes. */
class Says {
 public:
  Says(Events& events, std::string text) : events_(&events), text_(std::move(text)) {}
  Says(const Says&) = delete;
  Says& operator=(const Says&) = delete;
  ~Says() { events_->push_back(text_); }

 private:
  Events* events_;
  std::string text_;
};

Task<> sleeps_for_ever(Events& events, std::string name) {
  const Says end(events, name + " goes");
  co_await sleep_for(1h);
  events.push_back(name + " woke up");
}

Task<> says_after_turns(Events& events, std::string text, int turns) {
  for (int i = 0; i < turns; ++i) co_await yield();
  events.push_back(std::move(text));
}

Task<> fails_after_turns(int turns, std::string message) {
  for (int i = 0; i < turns; ++i) co_await yield();
  throw std::runtime_error(message);
}

template <class T>
Task<T> gives_after_turns(T value, int turns) {
  for (int i = 0; i < turns; ++i) co_await yield();
  co_return value;
}

template <class T>
T run_here(Loop& loop, Task<T> task) {
  std::optional<T> result;
  loop.spawn([](Task<T> inner, std::optional<T>& into) -> Task<> {
    into.emplace(co_await std::move(inner));
  }(std::move(task), result));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_TRUE(result.has_value());
  EXPECT_EQ(loop.counters().timers_armed, 0U);
  return std::move(*result);
}

// ---- Scope -------------------------------------------------------------------------------------

Task<> joins_two(Events& events) {
  Scope scope;
  scope.spawn(says_after_turns(events, "late", 3));
  scope.spawn(says_after_turns(events, "early", 1));
  EXPECT_FALSE(scope.empty());
  events.push_back("waits");
  co_await scope.join();
  EXPECT_TRUE(scope.empty());
  events.push_back("joined");
}

TEST_P(TaskScope, AJoinWaitsForAllTasks) {
  Events events;
  loop.spawn(joins_two(events));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"waits", "early", "late", "joined"}));
}

Task<> joins_none_and_again(Events& events) {
  Scope scope;
  co_await scope.join();
  scope.spawn(says_after_turns(events, "first", 0));
  co_await scope.join();
  scope.cancel();
  scope.spawn(says_after_turns(events, "never", 0));
  co_await scope.join();
  scope.spawn(says_after_turns(events, "second", 0));
  co_await scope.join();
}

TEST_P(TaskScope, IsUsedAgainAfterAJoinAndACancelledOneBeginsNothing) {
  Events events;
  loop.spawn(joins_none_and_again(events));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"first", "second"}));
}

Task<> joins_a_failure(Events& events) {
  Scope scope;
  scope.spawn(sleeps_for_ever(events, "a"));
  scope.spawn(fails_after_turns(2, "broken"));
  scope.spawn(sleeps_for_ever(events, "b"));
  try {
    co_await scope.join();
  } catch (const std::runtime_error& error) {
    events.emplace_back(error.what());
  }
}

TEST_P(TaskScope, TheFirstFailureCancelsTheOthersAndIsThrownByJoin) {
  Events events;
  loop.spawn(joins_a_failure(events));
  EXPECT_EQ(loop.run(), 0);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[2], "broken");
  EXPECT_EQ(loop.counters().timers_armed, 0U);
}

Task<> leaves_by_exception(Events& events) {
  try {
    const Says outer(events, "outer");
    Scope scope;
    const Says inner(events, "inner");
    scope.spawn(sleeps_for_ever(events, "task"));
    co_await yield();
    throw std::runtime_error("left");
  } catch (const std::runtime_error& error) {
    events.emplace_back(error.what());
  }
  co_await yield();
}

TEST_P(TaskScope, LeavingByAnExceptionEndsTheTasksBeforeWhatWasMadeBeforeTheScope) {
  Events events;
  loop.spawn(leaves_by_exception(events));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"inner", "task goes", "outer", "left"}));
}

Task<> cancels_one_that_waits(Events& events) {
  Scope scope;
  scope.spawn(sleeps_for_ever(events, "sleeper"));
  co_await yield();
  scope.cancel();
  events.push_back("cancelled");  // nothing of another task runs inside the call
  co_await scope.join();
  events.push_back("joined");
}

TEST_P(TaskScope, CancelStopsWhatWaitsInATurn) {
  Events events;
  loop.spawn(cancels_one_that_waits(events));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"cancelled", "sleeper goes", "joined"}));
}

Task<> cancels_its_own(Events& events, Scope& scope) {
  const Says end(events, "goes");
  scope.cancel();
  events.push_back("goes on");
  co_await yield();
  events.push_back("must not be reached");
}
Task<> has_one_that_cancels(Events& events) {
  Scope scope;
  scope.spawn(cancels_its_own(events, scope));
  co_await scope.join();
  events.push_back("joined");
}

TEST_P(TaskScope, ATaskThatCancelsItselfStopsAtItsNextAwait) {
  Events events;
  loop.spawn(has_one_that_cancels(events));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"goes on", "goes", "joined"}));
}

Task<> nests(Events& events, int depth) {
  const Says end(events, std::to_string(depth));
  if (depth == 3) {
    co_await sleep_for(1h);
  } else {
    Scope scope;
    scope.spawn(nests(events, depth + 1));
    co_await scope.join();
    co_await yield();
    events.push_back("must not be reached");
  }
}

TEST_P(TaskScope, ACancelledJoinEndsTheInnerTasksFirst) {
  Events events;
  loop.spawn([](Events& log) -> Task<> {
    Scope scope;
    scope.spawn(nests(log, 0));
    for (int i = 0; i < 5; ++i) co_await yield();
    scope.cancel();
    co_await scope.join();
  }(events));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"3", "2", "1", "0"}));
}

TEST_P(TaskScope, TheLoopsEndDestroysScopesWithTheirTasks) {
  Events events;
  int live = 0;
  {
    Loop other(options());
    other.spawn(nests(events, 0));
    other.spawn([](Events& log, Counted held) -> Task<> {
      Scope scope;
      scope.spawn(sleeps_for_ever(log, "x"));
      co_await with_timeout(2h, sleep_for(1h));
      (void)held;
    }(events, Counted(live)));
    for (int i = 0; i < 5; ++i) other.run_ready();
    EXPECT_EQ(live, 1);
  }
  EXPECT_EQ(live, 0);
  EXPECT_EQ(events, (Events{"3", "2", "1", "0", "x goes"}));
}

TEST_P(TaskScope, ACancelledJoinDoesNotReturnWhenTasksWereStopped) {
  Events events;
  const auto joins_one = [](Events& log, int turns) -> Task<int> {
    Scope scope;
    scope.spawn(turns == 0 ? sleeps_for_ever(log, "task") : says_after_turns(log, "done", turns));
    co_await scope.join();
    log.push_back("joined");
    co_return 7;
  };
  const auto stopped = run_here(loop, detail::as_task(with_timeout(1ms, joins_one(events, 0))));
  EXPECT_FALSE(stopped);
  EXPECT_EQ(events, (Events{"task goes"}));
  events.clear();
  const auto directly = run_here(loop, [](Events& log) -> Task<Result<void>> {
    Scope scope;
    scope.spawn(sleeps_for_ever(log, "task"));
    co_return co_await with_timeout(1ms, scope.join());
  }(events));
  EXPECT_FALSE(directly);
  EXPECT_EQ(events, (Events{"task goes"}));
  EXPECT_EQ(run_here(loop, detail::as_task(with_timeout(1h, joins_one(events, 2)))).value(), 7);
}

TEST_P(TaskScope, TasksThatWaitForEachOthersScopesAreCancelledOnce) {
  Scope first(loop);
  first.spawn([](Scope& outer) -> Task<> {
    Scope inner;
    inner.spawn([](Scope& joined) -> Task<> { co_await joined.join(); }(outer));
    co_await inner.join();
  }(first));
  for (int i = 0; i < 4; ++i) loop.run_ready();
  first.cancel();
  for (int i = 0; i < 4; ++i) loop.run_ready();
  EXPECT_FALSE(first.empty());  // they wait for ever, which the scope's end ends
}

TEST_P(TaskScope, OneThatWaitsInAForeignJoinMayGo) {
  Events events;
  Scope scope(loop);
  scope.spawn(says_after_turns(events, "task", 4));
  {
    Scope waiting(loop);
    waiting.spawn([](Scope& other) -> Task<> { co_await other.join(); }(scope));
    for (int i = 0; i < 3; ++i) loop.run_ready();
    EXPECT_TRUE(events.empty());
  }
  // The one that waited was cancelled, and the tasks that it waited for with it.
  EXPECT_EQ(loop.run(), 0);
  EXPECT_TRUE(events.empty());
  EXPECT_TRUE(scope.empty());
}

TEST_P(TaskScope, MayOutliveItsLoop) {
  Events events;
  std::optional<Scope> scope;
  {
    Loop other(options());
    scope.emplace(other);
    scope->spawn(sleeps_for_ever(events, "x"));
    other.run_ready();
  }
  EXPECT_EQ(events, (Events{"x goes"}));
  EXPECT_TRUE(scope->empty());
  scope->cancel();
  scope->spawn(says_after_turns(events, "never", 0));
  EXPECT_TRUE(scope->empty());
}

/** Sets an event and runs the loop when it goes, at the loop's end. */
class RunsAtTheEnd {
 public:
  RunsAtTheEnd(Event& event, Loop& loop) noexcept : event_(&event), loop_(&loop) {}
  RunsAtTheEnd(RunsAtTheEnd&& other) noexcept
      : event_(std::exchange(other.event_, nullptr)), loop_(other.loop_) {}
  RunsAtTheEnd& operator=(RunsAtTheEnd&&) = delete;
  ~RunsAtTheEnd() {
    if (event_ == nullptr) return;
    event_->set();
    for (int i = 0; i < 3; ++i) loop_->run_ready();
  }

 private:
  Event* event_;
  Loop* loop_;
};

TEST_P(TaskScope, WhenAllAtTheLoopsEndDoesNotReturn) {
  Event event;
  Events events;
  {
    Loop other(options());
    other.spawn([](RunsAtTheEnd held) -> Task<> {
      co_await sleep_for(1h);
      (void)held;
    }(RunsAtTheEnd(event, other)));
    other.spawn([](Event& waited, Events& log) -> Task<> {
      const Says end(log, "goes");
      co_await waited.wait();
      log.push_back("woken");
      const auto both = co_await when_all(gives_after_turns(1, 0), gives_after_turns(2, 0));
      log.push_back("must not be reached");
      (void)both;
    }(event, events));
    for (int i = 0; i < 3; ++i) other.run_ready();
  }
  EXPECT_EQ(events, (Events{"woken", "goes"}));
}

// ---- when_all, race ----------------------------------------------------------------------------

TEST_P(TaskScope, WhenAllGivesEachResult) {
  const auto [number, text, nothing] = run_here(
      loop,
      when_all(gives_after_turns(7, 3), gives_after_turns(std::string("text"), 1), sleep_for(1ms)));
  EXPECT_EQ(number, 7);
  EXPECT_EQ(text, "text");
  (void)nothing;
}

TEST_P(TaskScope, WhenAllThrowsTheFirstFailureWhenTheOthersHaveEnded) {
  Events events;
  loop.spawn([](Events& log) -> Task<> {
    try {
      co_await when_all(sleeps_for_ever(log, "other"), fails_after_turns(1, "first"));
    } catch (const std::runtime_error& error) {
      log.emplace_back(error.what());
    }
  }(events));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"other goes", "first"}));
}

TEST_P(TaskScope, RaceStopsTheLosers) {
  Events events;
  auto race_result =
      run_here(loop, race(sleeps_for_ever(events, "loser"), gives_after_turns(5, 2)));
  EXPECT_EQ(race_result.first, 1U);
  EXPECT_FALSE(race_result.get<0>().has_value());
  EXPECT_EQ(race_result.get<1>(), 5);
  EXPECT_EQ(events, (Events{"loser goes"}));
}

TEST_P(TaskScope, RaceGivesWhatALoserHadGotToo) {
  Channel<int> one(1);
  Channel<int> two(1);
  std::optional<RaceResult<std::optional<int>, std::optional<int>>> result;
  loop.spawn([](Channel<int>& a, Channel<int>& b, auto& into) -> Task<> {
    into.emplace(co_await race(a.pop(), b.pop()));
  }(one, two, result));
  for (int turns = 0; turns < 3; ++turns) loop.run_ready();
  ASSERT_FALSE(result.has_value());
  // Both are given something before either goes on.
  int first = 7;
  int second = 8;
  EXPECT_TRUE(two.try_push(second));
  EXPECT_TRUE(one.try_push(first));
  EXPECT_EQ(loop.run(), 0);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->first, 1U);
  EXPECT_EQ(result->get<0>().value(), 7);
  EXPECT_EQ(result->get<1>().value(), 8);
}

// ---- Deadlines ---------------------------------------------------------------------------------

TEST_P(TaskScope, WithTimeoutStopsWhatTakesTooLong) {
  Events events;
  const auto result =
      run_here(loop, detail::as_task(with_timeout(2ms, sleeps_for_ever(events, "x"))));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), std::errc::timed_out);
  EXPECT_EQ(result.error().message(), "task: connection timed out");
  EXPECT_EQ(events, (Events{"x goes"}));
}

TEST_P(TaskScope, WithTimeoutGivesAResultThatComesInTime) {
  const auto plain = run_here(loop, detail::as_task(with_timeout(1h, gives_after_turns(3, 2))));
  EXPECT_EQ(plain.value(), 3);
  const auto flat =
      run_here(loop, detail::as_task(with_timeout(1h, gives_after_turns(Result<int>(4), 2))));
  static_assert(std::is_same_v<decltype(flat), const Result<int>>);
  EXPECT_EQ(flat.value(), 4);
  const auto never_late =
      run_here(loop, detail::as_task(with_deadline(loop.now() - 1h, gives_after_turns(5, 0))));
  EXPECT_EQ(never_late.value(), 5);
}

Task<Result<void>> sleeps_inside(Events& events, Duration outer, Duration inner) {
  co_return co_await with_timeout(outer, [](Events& log, Duration limit) -> Task<> {
    const auto slept = co_await with_timeout(limit, sleep_for(1h));
    log.push_back(slept ? "slept" : "inner " + slept.error().code().message());
  }(events, inner));
}

TEST_P(TaskScope, OfNestedDeadlinesTheEarliestCounts) {
  Events events;
  EXPECT_TRUE(run_here(loop, sleeps_inside(events, 1h, 1ms)));
  EXPECT_EQ(events.size(), 1U);
  EXPECT_FALSE(run_here(loop, sleeps_inside(events, 1ms, 1h)));
  EXPECT_EQ(events.size(), 1U);
  // Of two that are equal either may count; none is left.
  (void)run_here(loop, sleeps_inside(events, 1ms, 1ms));
  EXPECT_EQ(loop.counters().handles, 0U);
}

TEST_P(TaskScope, ADeadlineReachesTheTasksOfScopesInside) {
  Events events;
  const auto result = run_here(loop, detail::as_task(with_timeout(2ms, nests(events, 0))));
  EXPECT_FALSE(result);
  EXPECT_EQ(events, (Events{"3", "2", "1", "0"}));
}

TEST_P(TaskScope, ATaskThatNeverLooksAtErrorsEndsAllTheSame) {
  Events events;
  const auto loops_for_ever = [](Events& log) -> Task<> {
    const Says end(log, "goes");
    for (;;) (void)co_await with_timeout(1us, sleep_for(1h));
  };
  EXPECT_FALSE(run_here(loop, detail::as_task(with_timeout(2ms, loops_for_ever(events)))));
  EXPECT_EQ(events, (Events{"goes"}));
}

// ---- Tokens ------------------------------------------------------------------------------------

TEST_P(TaskScope, ATokenStopsWhatRunsUnderIt) {
  Events events;
  CancelSource source(loop);
  EXPECT_FALSE(source.token().cancelled());
  loop.spawn([](Events& log, CancelToken token) -> Task<> {
    const auto first = co_await with_cancel(token, sleeps_for_ever(log, "x"));
    log.push_back(first.error().message());
    const auto second = co_await with_cancel(token, sleep_for(1h));  // at once
    log.push_back(second.error().message());
    const auto third = co_await with_cancel(token, gives_after_turns(1, 0));
    log.push_back(third ? "third" : "no third");
    const auto free = co_await with_cancel(CancelToken(), sleep_for(1ns));
    log.push_back(free ? "free" : "not free");
  }(events, source.token()));
  loop.run_ready();
  source.cancel();
  source.cancel();
  EXPECT_TRUE(source.cancelled());
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"x goes", "task: operation canceled", "task: operation canceled",
                            "third", "free"}));
}

TEST_P(TaskScope, AnotherThreadCancels) {
  if (loop.backend() == BackendKind::sim) GTEST_SKIP() << "the simulator has one thread";
  Events events;
  CancelSource source(loop);
  std::thread other([source]() mutable { source.cancel(); });
  const auto result =
      run_here(loop, detail::as_task(with_cancel(source.token(), sleeps_for_ever(events, "x"))));
  other.join();
  EXPECT_FALSE(result);
}

TEST_P(TaskScope, ASourceOutlivesItsLoop) {
  std::optional<CancelSource> source;
  {
    const Loop other(options());
    source.emplace(const_cast<Loop&>(other));
  }
  source->cancel();
  EXPECT_TRUE(source->cancelled());
}

// ---- Cancel at every turn ----------------------------------------------------------------------

Task<int> takes_turns(int& steps, int count) {
  for (int i = 0; i < count; ++i) {
    co_await yield();
    ++steps;
    co_await sleep_for(1ns);
    ++steps;
  }
  co_return steps;
}

TEST_P(TaskScope, CancelledInAnyTurnATaskEndsOnce) {
  int completed = 0;
  int stopped = 0;
  for (int turn = 0; turn < 14; ++turn) {
    int steps = 0;
    CancelSource source(loop);
    std::optional<Result<int>> result;
    loop.spawn([](CancelToken token, int& count, std::optional<Result<int>>& into) -> Task<> {
      into.emplace(co_await with_cancel(token, takes_turns(count, 3)));
    }(source.token(), steps, result));
    for (int i = 0; i < turn; ++i) loop.run_once(i == 0 ? Duration(0) : Duration(1ms));
    source.cancel();
    EXPECT_EQ(loop.run(), 0);
    ASSERT_TRUE(result.has_value());
    ++(*result ? completed : stopped);
    if (*result) {
      EXPECT_EQ(steps, 6);
    }
    EXPECT_EQ(loop.counters().timers_armed, 0U);
    EXPECT_EQ(loop.counters().handles, 0U);
  }
  EXPECT_GT(completed, 0);
  EXPECT_GT(stopped, 3);
}

TEST(TaskScopeMisuse, MadeWithoutALoop) {
  EXPECT_DEATH({ const Scope scope; }, "^evix: a scope was made by a thread that runs no loop\n");
}

TEST(TaskScopeMisuse, DestroyedByATaskOfItsOwn) {
  EXPECT_DEATH(
      {
        Loop loop;
        auto scope = std::make_unique<Scope>(loop);
        scope->spawn([](std::unique_ptr<Scope>& own) -> Task<> {
          own.reset();
          co_return;
        }(scope));
        loop.run();
      },
      "^evix: a task that runs was destroyed: its scope has to outlive it\n");
}

TEST(TaskScopeMisuse, DestroyedWhileATaskWaitsInItsJoin) {
  EXPECT_DEATH(
      {
        Loop loop;
        auto scope = std::make_unique<Scope>(loop);
        scope->spawn([]() -> Task<> { co_await sleep_for(1h); }());
        loop.spawn([](Scope& own) -> Task<> { co_await own.join(); }(*scope));
        loop.run_ready();
        scope.reset();
      },
      "^evix: a scope was destroyed while a task waits in its join\\(\\)\n");
}

TEST(TaskScopeMisuse, ATokenOfAnotherLoop) {
  EXPECT_DEATH(
      {
        Loop loop;
        Loop other;
        CancelSource source(other);
        loop.spawn([](CancelToken token) -> Task<> {
          (void)co_await with_cancel(std::move(token), yield());
        }(source.token()));
        loop.run();
      },
      "^evix: a token was used by a task of another loop than its source's\n");
}

Task<> holds(std::shared_ptr<Scope> own, int turns) {
  for (int i = 0; i < turns; ++i) co_await yield();
  (void)own;
}

TEST(TaskScopeMisuse, OwnedByATaskOfItsOwn) {
  EXPECT_DEATH(
      {
        Loop loop;
        auto scope = std::make_shared<Scope>(loop);
        scope->spawn(holds(scope, 2));
        scope.reset();
        loop.run();
      },
      "^evix: a task that runs was destroyed: its scope has to outlive it\n");
  // The loop's end, where nothing of it runs, is another matter.
  auto loop = std::make_unique<Loop>();
  auto scope = std::make_shared<Scope>(*loop);
  scope->spawn(holds(scope, 1'000'000));
  const std::weak_ptr<Scope> seen = scope;
  scope.reset();
  loop->run_ready();
  EXPECT_FALSE(seen.expired());
  loop.reset();
  EXPECT_TRUE(seen.expired());
}

TEST(TaskScopeMisuse, JoinedByATaskOfItsOwn) {
  EXPECT_DEATH(
      {
        Loop loop;
        Scope scope(loop);
        scope.spawn([](Scope& own) -> Task<> { co_await own.join(); }(scope));
        loop.run();
      },
      "^evix: a task waits in join\\(\\) of its own scope\n");
}

TEST(TaskScopeMisuse, DestroyedBeforeTheOneThatJoinedGoesOn) {
  EXPECT_DEATH(
      {
        Loop loop;
        auto scope = std::make_unique<Scope>(loop);
        scope->spawn([]() -> Task<> { co_await yield(); }());
        loop.spawn([](Scope& own) -> Task<> { co_await own.join(); }(*scope));
        loop.spawn([](std::unique_ptr<Scope>& own) -> Task<> {
          while (!own->empty()) co_await yield();
          own.reset();
        }(scope));
        loop.run();
      },
      "^evix: a scope was destroyed while a task waits in its join\\(\\)\n");
}

TEST(TaskScopeMisuse, JoinedByATaskOfAnotherLoop) {
  EXPECT_DEATH(
      {
        Loop loop;
        Loop other;
        Scope scope(other);
        scope.spawn([]() -> Task<> { co_return; }());
        loop.spawn([](Scope& own) -> Task<> { co_await own.join(); }(scope));
        loop.run();
      },
      "^evix: a task waits in join\\(\\) of another loop's scope\n");
}

TEST(TaskScopeMisuse, ASourceThatWasMovedFrom) {
  Loop loop;
  CancelSource source(loop);
  const CancelSource moved(std::move(source));
  EXPECT_FALSE(source.cancelled());
  EXPECT_DEATH(source.cancel(), "^evix: a cancel source that was moved from was used\n");
}

TEST(TaskScopeMisuse, JoinedByTwo) {
  EXPECT_DEATH(
      {
        Loop loop;
        Scope scope(loop);
        scope.spawn([]() -> Task<> { co_await sleep_for(1h); }());
        for (int i = 0; i < 2; ++i) {
          loop.spawn([](Scope& own) -> Task<> { co_await own.join(); }(scope));
        }
        loop.run();
      },
      "^evix: two tasks wait in join\\(\\) of one scope\n");
}

}  // namespace
}  // namespace evix::test
