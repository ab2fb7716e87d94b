#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "backend/conformance.hpp"
#include "support/allocations.hpp"
#include "task_support.hpp"

// Tasks and the loop that runs them: who lives how long, when which one goes on.
namespace evix::test {
namespace {

class TaskLoop : public Conformance {};
EVIX_OVER_BACKENDS(TaskLoop);

using Events = std::vector<std::string>;

// ---- Turns -------------------------------------------------------------------------------------

Task<> says(Events& events, std::string name) {
  events.push_back(std::move(name));
  co_return;
}

TEST_P(TaskLoop, SpawnedTasksBeginInATurnInTheirOrder) {
  Events events;
  loop.spawn(says(events, "first"));
  loop.spawn(says(events, "second"));
  loop.spawn(says(events, "third"));
  EXPECT_TRUE(events.empty());
  EXPECT_TRUE(loop.alive());
  loop.run_ready();
  EXPECT_EQ(events, (Events{"first", "second", "third"}));
  EXPECT_FALSE(loop.alive());
}

Task<> counts_turns(std::vector<std::uint64_t>& turns) {
  Loop& here = co_await this_loop();
  for (int i = 0; i < 4; ++i) {
    turns.push_back(here.counters().turns);
    co_await yield();
  }
}

TEST_P(TaskLoop, AYieldLastsOneTurn) {
  std::vector<std::uint64_t> turns;
  loop.spawn(counts_turns(turns));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(turns, (std::vector<std::uint64_t>{1, 2, 3, 4}));
}

Task<> says_and_yields(Events& events, std::string name) {
  for (int i = 0; i < 3; ++i) {
    events.push_back(name + std::to_string(i));
    co_await yield();
  }
}

TEST_P(TaskLoop, YieldingTasksTakeTurnsAndLetCallbacksRun) {
  Events events;
  Timer timer(loop);
  timer.after(0ns, [&] {
    events.push_back("timer");
    loop.post([&] { events.push_back("post"); });
  });
  loop.spawn(says_and_yields(events, "a"));
  loop.spawn(says_and_yields(events, "b"));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"a0", "b0", "timer", "post", "a1", "b1", "a2", "b2"}));
}

Task<> runs_the_loop(Events& events) {
  Loop& here = co_await this_loop();
  here.spawn(says_and_yields(events, "inner"));
  EXPECT_EQ(here.run(), 0);
  events.push_back("outer");
}

TEST_P(TaskLoop, ANestedRunInATaskReturnsWhenTheOthersHaveEnded) {
  Events events;
  loop.spawn(runs_the_loop(events));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"inner0", "inner1", "inner2", "outer"}));
}

Task<> asks_before_and_after(Loop*& before, Loop*& after) {
  before = &co_await this_loop();
  co_await yield();
  after = &co_await this_loop();
}

TEST_P(TaskLoop, ThisLoopIsTheOneThatRunsIt) {
  Loop* before = nullptr;
  Loop* after = nullptr;
  loop.spawn(asks_before_and_after(before, after));
  loop.run_ready();
  Loop moved(std::move(loop));
  EXPECT_EQ(moved.run(), 0);
  EXPECT_EQ(before, &loop);
  EXPECT_EQ(after, &moved);
  loop = std::move(moved);
  loop.spawn(asks_before_and_after(before, after));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(before, &loop);
}

// ---- Sleeps ------------------------------------------------------------------------------------

Task<> sleeps(Events& events, Duration delay, std::string name) {
  Loop& here = co_await this_loop();
  here.update_now();
  const TimePoint begin = here.now();
  co_await sleep_for(delay);
  EXPECT_GE(here.now() - begin, delay);
  // Where running takes no time a sleep lasts what it was asked for.
  if (here.backend() == BackendKind::sim) {
    EXPECT_EQ(here.now() - begin, delay);
  }
  events.push_back(std::move(name));
}

TEST_P(TaskLoop, SleepsEndInTheOrderOfTheirDeadlinesNeverEarly) {
  Events events;
  // They begin in one turn, so that one reading of the clock counts for all.
  loop.spawn(sleeps(events, 6ms, "third"));
  loop.spawn(sleeps(events, 1ns, "first"));
  loop.spawn(sleeps(events, 3ms, "second"));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"first", "second", "third"}));
}

Task<> sleeps_until(Events& events, TimePoint deadline, std::string name) {
  co_await sleep_until(deadline);
  Loop& here = co_await this_loop();
  EXPECT_GE(here.now(), deadline);
  events.push_back(std::move(name));
}

TEST_P(TaskLoop, EqualDeadlinesKeepTheOrderOfTheAwaits) {
  Events events;
  const TimePoint deadline = loop.now() + 2ms;
  loop.spawn(sleeps_until(events, deadline, "a"));
  loop.spawn(sleeps_until(events, deadline, "b"));
  loop.spawn(sleeps_until(events, loop.now() - 1h, "past"));
  loop.spawn(sleeps_until(events, deadline, "c"));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"past", "a", "b", "c"}));
}

Task<> sleeps_at_once(std::vector<std::uint64_t>& turns) {
  Loop& here = co_await this_loop();
  for (const Duration delay : {0ns, Duration(-1), Duration::min()}) {
    co_await sleep_for(delay);
    turns.push_back(here.counters().turns);
  }
}

TEST_P(TaskLoop, ASleepOfNothingWaitsForTheTimersOfTheNextTurn) {
  std::vector<std::uint64_t> turns;
  loop.spawn(sleeps_at_once(turns));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(turns, (std::vector<std::uint64_t>{2, 3, 4}));
}

Task<> sleeps_and_counts(Duration delay, int& awake) {
  co_await sleep_for(delay);
  ++awake;
}

TEST_P(TaskLoop, AThousandSleepsBeginInOneTurn) {
  int awake = 0;
  for (int i = 0; i < 1000; ++i) loop.spawn(sleeps_and_counts(Duration(1000 - i), awake));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(awake, 1000);
}

// ---- Listing -----------------------------------------------------------------------------------

Task<> yields_then_sleeps() {
  co_await yield();
  co_await sleep_for(1h);
}

TEST_P(TaskLoop, TasksAreListed) {
  loop.spawn(yields_then_sleeps());
  const auto line = static_cast<std::uint32_t>(__LINE__ - 1);
  ASSERT_EQ(loop.handles().size(), 1U);
  EXPECT_EQ(loop.handles()[0].kind, HandleKind::task);
  EXPECT_EQ(to_string(loop.handles()[0].kind), "task");
  EXPECT_EQ(loop.handles()[0].location.line(), line);
  EXPECT_EQ(loop.handles()[0].waits_for, "its turn");
  EXPECT_TRUE(loop.handles()[0].active);
  loop.run_ready();
  EXPECT_EQ(loop.handles()[0].waits_for, "its turn");
  loop.run_ready();
  EXPECT_EQ(loop.handles()[0].waits_for, "deadline in 3600000 ms");
  EXPECT_EQ(loop.counters().handles, 1U);
}

// ---- The end of the loop -----------------------------------------------------------------------

/** Says when it is destroyed. */
struct Says {
  Events& events;
  std::string name;
  Says(Events& all, std::string what) : events(all), name(std::move(what)) {}
  Says(const Says&) = delete;
  ~Says() { events.push_back(name); }
};

enum class Rest { sleep, yield };

Task<int> rests_at(int depth, Rest rest, Events& events, int& live) {
  const Counted counted(live);
  const Says outer(events, "outer" + std::to_string(depth));
  const Says inner(events, "inner" + std::to_string(depth));
  if (depth > 0) co_return co_await rests_at(depth - 1, rest, events, live);
  if (rest == Rest::sleep) co_await sleep_for(forever);
  if (rest == Rest::yield) co_await yield();
  ADD_FAILURE() << "went on after the loop's end";
  co_return 0;
}
Task<> rests_below(Rest rest, Events& events, int& live) {
  const Counted counted(live);
  co_await rests_at(1, rest, events, live);
}

TEST_P(TaskLoop, TheLoopDestroysSuspendedTasksOnceInnermostFirst) {
  for (const Rest rest : {Rest::sleep, Rest::yield}) {
    int live = 0;
    Events events;
    {
      Loop other(options());
      other.spawn(rests_below(rest, events, live));
      other.run_ready();
      EXPECT_EQ(live, 3);
    }
    EXPECT_EQ(live, 0);
    EXPECT_EQ(events, (Events{"inner0", "outer0", "inner1", "outer1"}));
  }
}

Task<> holds(Counted argument) {
  static_cast<void>(argument);
  ADD_FAILURE() << "began at the loop's end";
  co_return;
}

TEST_P(TaskLoop, TheLoopDestroysTasksThatHaveNotBegun) {
  int live = 0;
  {
    Loop other(options());
    for (int i = 0; i < 100; ++i) other.spawn(holds(Counted(live)));
    EXPECT_EQ(live, 100);
  }
  EXPECT_EQ(live, 0);
}

/** At the end of its task, which is the loop's end, it uses the loop. */
struct UsesTheLoop {
  Loop& loop;
  int& live;
  Timer& outside;
  ~UsesTheLoop() {
    loop.spawn(holds(Counted(live)));
    loop.post([counted = Counted(live)] { ADD_FAILURE() << "a post ran"; });
    outside.after(0ns, [counted = Counted(live)] { ADD_FAILURE() << "a timer fired"; });
    Timer inside(loop);
    inside.after(0ns, [] {});
  }
};
Task<> uses_the_loop_last(int& live, Timer& outside) {
  const UsesTheLoop last{co_await this_loop(), live, outside};
  Timer own(last.loop);
  own.after(1h, [] {});
  co_await sleep_for(forever);
}

TEST_P(TaskLoop, DestructorsOfTasksMayUseTheLoopAtItsEnd) {
  int live = 0;
  Timer outside;
  {
    Loop other(options());
    outside = Timer(other);
    for (int i = 0; i < 3; ++i) other.spawn(uses_the_loop_last(live, outside));
    other.run_ready();
  }
  EXPECT_EQ(live, 0);
  EXPECT_FALSE(outside.active());
}

// ---- Memory ------------------------------------------------------------------------------------

Task<int> leaf(int value) {
  if (value % 2 == 0) co_await yield();
  co_return value;
}
Task<> sums(int& sum) {
  for (int i = 0; i < 4; ++i) sum += co_await leaf(i);
  co_await sleep_for(0ns);
}
Task<> spawns_rounds(int& sum, int rounds) {
  Loop& here = co_await this_loop();
  for (int i = 0; i < rounds; ++i) {
    here.spawn(sums(sum));
    for (int turns = 0; turns < 5; ++turns) co_await yield();
  }
}

TEST_P(TaskLoop, TasksAllocateNothingAfterWarmUp) {
  EVIX_NEEDS_ALLOCATIONS();
#ifdef EVIX_TEST_ADDRESS_SANITIZED
  GTEST_SKIP() << "frames are not recycled, so that AddressSanitizer sees who uses them too late";
#endif
  int sum = 0;
  loop.spawn(spawns_rounds(sum, 20));
  EXPECT_EQ(loop.run(), 0);
  loop.spawn(spawns_rounds(sum, 200));
  const CountAllocations allocations;
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_EQ(sum, 220 * 6);
}

Task<> has(Counted argument, int& begun) {
  static_cast<void>(argument);
  ++begun;
  co_return;
}

TEST_P(TaskLoop, ASpawnWithoutMemoryHasDoneNothing) {
  EVIX_NEEDS_ALLOCATIONS();
  int live = 0;
  int begun = 0;
  int failures = 0;
  for (bool again = true; again; ++failures) {
    Loop other(options());
    try {
      const FailAllocation fail(failures + 1);
      other.spawn(has(Counted(live), begun));
      again = fail.happened();
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(live, 0);
      EXPECT_TRUE(other.handles().empty());
      EXPECT_FALSE(other.alive());
    }
    EXPECT_EQ(other.run(), 0);
  }
  // At least the frame, the frames to keep, the timers, the store and its first chunk.
  EXPECT_GE(failures, 6);
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(live, 0);
}

}  // namespace
}  // namespace evix::test
