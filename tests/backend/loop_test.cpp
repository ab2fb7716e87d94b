#include <evix/evix.hpp>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/stimulus.hpp"

// The turn: what DESIGN section 2 promises, step by step.
namespace evix::test {
namespace {

class LoopTurn : public Conformance {
 protected:
  /** A callback that writes a word down. */
  auto note(std::string word) {
    return [this, word = std::move(word)] { notes.push_back(word); };
  }
  std::vector<std::string> notes;
};
EVIX_OVER_BACKENDS(LoopTurn);

using Notes = std::vector<std::string>;

TEST_P(LoopTurn, HelloWorldAnEmptyLoopEndsAtOnce) {
  EXPECT_FALSE(loop.alive());
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(loop.counters().turns, 0U);
  EXPECT_EQ(loop.counters().waits, 0U);
  EXPECT_FALSE(loop.running());
}

TEST_P(LoopTurn, ImmediatesRunFirstInFirstOut) {
  std::vector<int> order;
  for (int number = 0; number < 3000; ++number) {
    loop.post([&order, number] { order.push_back(number); });
  }
  EXPECT_TRUE(loop.alive());
  EXPECT_EQ(loop.run(), 0);
  ASSERT_EQ(order.size(), 3000U);
  for (int number = 0; number < 3000; ++number) ASSERT_EQ(order[number], number);
  EXPECT_EQ(loop.counters().turns, 1U) << "all that are queued when the phase begins run";
}

TEST_P(LoopTurn, BudgetBoundsImmediatesPostedDuringThePhase) {
  Loop own(LoopOptions{.backend = GetParam(), .immediate_budget = 4});
  int calls = 0;
  own.post([&] {
    for (int number = 0; number < 10; ++number) own.post([&calls] { ++calls; });
  });
  own.post([] {});
  EXPECT_EQ(own.run_ready(), 0);
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(own.counters().immediates_queued, 6U);
  EXPECT_EQ(own.run_ready(), 0);
  EXPECT_EQ(calls, 10) << "what is left over is queued when the next phase begins";
  EXPECT_EQ(own.counters().immediates_queued, 0U);
}

TEST_P(LoopTurn, LeftOverImmediatesMakeTheWaitZero) {
  Loop own(LoopOptions{.backend = GetParam(), .immediate_budget = 1});
  own.post([&] {
    own.post([] {});
    own.post([] {});
  });
  EXPECT_EQ(own.run_once(1h), 0);
  EXPECT_EQ(own.counters().immediates_queued, 1U);
  EXPECT_EQ(own.counters().time_asleep_ns, 0U);
}

TEST_P(LoopTurn, ImmediateRunsBeforeTimerOfZeroDelay) {
  Timer zero(loop);
  Timer negative(loop);
  zero.after(0ns, note("zero"));
  negative.after(-5s, note("negative"));
  loop.post(note("immediate"));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(notes, (Notes{"immediate", "zero", "negative"}));
}

TEST_P(LoopTurn, OnlyBeyondTheBudgetATimerPrecedesAnImmediate) {
  Loop own(LoopOptions{.backend = GetParam(), .immediate_budget = 2});
  Timer timer(own);
  timer.after(0ns, note("timer"));
  own.post([&] {
    for (int number = 0; number < 3; ++number) own.post(note(std::to_string(number)));
  });
  EXPECT_EQ(own.run(), 0);
  EXPECT_EQ(notes, (Notes{"0", "1", "timer", "2"}));
}

TEST_P(LoopTurn, ImmediatePostedByTimerRunsAfterTheTimersThatAreDue) {
  Timer first(loop);
  Timer second(loop);
  first.after(0ns, [&] {
    notes.emplace_back("first");
    loop.post(note("immediate"));
  });
  second.after(0ns, note("second"));
  EXPECT_EQ(loop.run_once(), 0);
  EXPECT_EQ(notes, (Notes{"first", "second"}));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(notes, (Notes{"first", "second", "immediate"}));
}

TEST_P(LoopTurn, CompletionsRunBeforeTimersAndTheirImmediatesAfter) {
  TcpPair pair;
  ASSERT_TRUE(pair.open(loop));
  Timer timer(loop);
  pair.server.receive([&](Result<Buffer> buffer) {
    ASSERT_TRUE(buffer);
    notes.emplace_back("received");
    loop.post(note("immediate"));
  });
  ASSERT_TRUE(pair.client.send_copy("x"));
  timer.after(0ns, note("timer"));
  loop.post(note("posted before"));
  EXPECT_EQ(loop.run_once(), 0);
  EXPECT_EQ(notes, (Notes{"posted before", "received", "timer"}));
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(notes, (Notes{"posted before", "received", "timer", "immediate"}));
}

TEST_P(LoopTurn, NothingRunsInsideTheCallThatStartsIt) {
  bool starting = true;
  const auto check = [&] { EXPECT_FALSE(starting); };
  Timer timer(loop);
  loop.post(check);
  timer.after(0ns, check);
  starting = false;
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(loop.counters().callbacks, 2U);
}

TEST_P(LoopTurn, WaitsUntilTheNearestDeadline) {
  Timer near(loop);
  Timer far(loop);
  const TimePoint start = loop.now();
  TimePoint called{};
  near.after(20ms, [&] { called = loop.now(); });
  far.after(1h, [] {});
  EXPECT_EQ(loop.run_once(), 0);
  EXPECT_GE(called - start, 20ms);
  if (is_sim()) {
    EXPECT_EQ(called - start, 20ms);
  }
  EXPECT_EQ(loop.counters().waits, 1U) << "the wait neither ends early nor spins";
  EXPECT_GE(loop.counters().time_asleep_ns, 19'000'000U);
}

TEST_P(LoopTurn, PostFromAnotherThreadEndsAWaitWithoutLimit) {
  const KeepAlive alive = loop.keep_alive();
  bool called = false;
  std::thread other([poster = loop.poster(), &called, this] {
    ASSERT_TRUE(poster.post([&called, this] {
      called = true;
      loop.stop();
    }));
  });
  EXPECT_EQ(loop.run(), 0);
  other.join();
  EXPECT_TRUE(called);
}

TEST_P(LoopTurn, PostsOfOneThreadKeepTheirOrder) {
  const KeepAlive alive = loop.keep_alive();
  std::vector<int> order;
  std::thread other([this, &order] {
    for (int number = 0; number < 1000; ++number) {
      loop.post([&order, number] { order.push_back(number); });
    }
    loop.post([this] { loop.stop(); });
  });
  EXPECT_EQ(loop.run(), 0);
  other.join();
  ASSERT_EQ(order.size(), 1000U);
  for (int number = 0; number < 1000; ++number) ASSERT_EQ(order[number], number);
}

TEST_P(LoopTurn, StopBeforeRunIsConsumedByIt) {
  loop.post(note("posted"));
  loop.stop();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(notes, Notes{});
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(notes, Notes{"posted"});
}

TEST_P(LoopTurn, StopBeforeEachOtherWayToRun) {
  for (const int way : {0, 1, 2}) {
    loop.post(note("posted"));
    loop.stop();
    EXPECT_EQ(way == 0 ? loop.run_once() : way == 1 ? loop.run_ready() : loop.run_for(1h), 0);
    EXPECT_EQ(notes, Notes{}) << way;
    EXPECT_EQ(loop.run(), 0);
    EXPECT_EQ(notes, Notes{"posted"}) << way;
    notes.clear();
  }
}

TEST_P(LoopTurn, ClearStopForgetsAStop) {
  loop.post(note("posted"));
  loop.stop();
  loop.stop_all();
  loop.clear_stop();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(notes, Notes{"posted"});
}

TEST_P(LoopTurn, StopIsSeenBeforeTheNextCallbackOfEachPhase) {
  Timer first(loop);
  Timer second(loop);
  loop.post([&] {
    notes.emplace_back("immediate");
    loop.stop();
  });
  loop.post(note("next immediate"));
  first.after(0ns, [&] {
    notes.emplace_back("timer");
    loop.stop();
  });
  second.after(0ns, note("next timer"));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(notes, Notes{"immediate"});
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(notes, (Notes{"immediate", "next immediate", "timer"}));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(notes, (Notes{"immediate", "next immediate", "timer", "next timer"}));
}

TEST_P(LoopTurn, StopEndsTheInnermostRunStopAllEveryOne) {
  const KeepAlive alive = loop.keep_alive();
  loop.post([&] {
    loop.post([&] { loop.stop(); });
    EXPECT_EQ(loop.run(), 0);
    notes.emplace_back("inner ended");
    loop.post([&] {
      loop.post([&] { loop.stop_all(); });
      loop.post(note("after stop_all"));
      EXPECT_EQ(loop.run(), 0);
      notes.emplace_back("second inner ended");
    });
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(notes, (Notes{"inner ended", "second inner ended"}));
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(notes.back(), "after stop_all") << "stop_all() was consumed by the outermost run";
}

TEST_P(LoopTurn, RunReadyDoesNotWait) {
  Timer timer(loop);
  timer.after(1h, note("timer"));
  const TimePoint start = loop.now();
  for (int turn = 0; turn < 10; ++turn) EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(loop.counters().turns, 10U);
  EXPECT_EQ(loop.counters().time_asleep_ns, 0U);
  EXPECT_LT(loop.now() - start, 1s);
  EXPECT_EQ(notes, Notes{});
}

TEST_P(LoopTurn, RunOnceWaitsAtMostItsTimeout) {
  const KeepAlive alive = loop.keep_alive();
  loop.update_now();
  const TimePoint start = loop.now();
  EXPECT_EQ(loop.run_once(20ms), 0);
  loop.update_now();
  EXPECT_GE(loop.now() - start, 20ms);
  if (is_sim()) {
    EXPECT_EQ(loop.now() - start, 20ms);
  }
  EXPECT_EQ(loop.run_once(-1ns), 0);
  EXPECT_EQ(loop.run_once(Duration::min()), 0);
  EXPECT_EQ(loop.counters().turns, 3U);
}

TEST_P(LoopTurn, RunOnceOfAnEmptyLoopDoesNotWait) {
  EXPECT_EQ(loop.run_once(forever), 0);
  EXPECT_EQ(loop.counters().turns, 1U);
  EXPECT_EQ(loop.counters().time_asleep_ns, 0U);
}

TEST_P(LoopTurn, RunForRunsTurnsForThatTime) {
  int ticks = 0;
  Timer timer(loop);
  timer.every(10ms, [&] { ++ticks; });
  loop.update_now();
  const TimePoint start = loop.now();
  EXPECT_EQ(loop.run_for(55ms), 0);
  loop.update_now();
  EXPECT_GE(loop.now() - start, 55ms);
  EXPECT_LE(ticks, (loop.now() - start) / 10ms);
  if (is_sim()) {
    EXPECT_EQ(ticks, 5);
    EXPECT_EQ(loop.now() - start, 55ms);
  }
  const int before = ticks;
  EXPECT_EQ(loop.run_for(0ns), 0);
  EXPECT_EQ(loop.run_for(-1s), 0);
  EXPECT_EQ(ticks, before);
}

TEST_P(LoopTurn, RunForEndsAtTheNaturalEndAndAtStop) {
  Timer timer(loop);
  timer.after(1ms, note("timer"));
  EXPECT_EQ(loop.run_for(1h), 0);
  EXPECT_EQ(notes, Notes{"timer"});
  timer.after(1ms, [&] { loop.stop(); });
  Timer far(loop);
  far.after(1h, note("far"));
  EXPECT_EQ(loop.run_for(forever), 0);
  EXPECT_EQ(notes, Notes{"timer"});
}

TEST_P(LoopTurn, UnreferencedHandlesDoNotKeepRunFromReturning) {
  Timer timer(loop);
  timer.after(1h, note("timer"));
  EXPECT_TRUE(loop.alive());
  timer.unreference();
  EXPECT_FALSE(timer.referenced());
  EXPECT_TRUE(timer.active());
  EXPECT_FALSE(loop.alive());
  EXPECT_EQ(loop.counters().handles_active, 0U);
  EXPECT_EQ(loop.run(), 0);
  timer.reference();
  timer.reference();
  EXPECT_EQ(loop.counters().handles_active, 1U);
  timer.unreference();
  timer.unreference();
  EXPECT_EQ(loop.counters().handles_active, 0U);
  timer.stop();
  timer.reference();
  EXPECT_EQ(loop.counters().handles_active, 0U) << "referenced but not started";
}

TEST_P(LoopTurn, UnreferencedHandlesRunWhileSomethingElseKeepsTheLoop) {
  Timer background(loop);
  Timer main(loop);
  background.every(1ms, note("background"));
  background.unreference();
  main.after(10ms, note("main"));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_GE(notes.size(), 2U);
  EXPECT_EQ(std::count(notes.begin(), notes.end(), "main"), 1);
}

TEST_P(LoopTurn, KeepAliveKeepsTheLoopWhileItExists) {
  std::optional<KeepAlive> alive = loop.keep_alive();
  EXPECT_TRUE(loop.alive());
  EXPECT_EQ(loop.counters().handles_active, 1U);
  KeepAlive moved = std::move(*alive);
  alive.reset();
  EXPECT_TRUE(loop.alive()) << "the moved-from one keeps nothing";
  Timer timer(loop);
  timer.after(1ms, [&] { moved = KeepAlive(); });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_FALSE(loop.alive());
}

TEST_P(LoopTurn, KeepAliveMayOutliveTheLoop) {
  KeepAlive alive;
  {
    Loop own(options());
    alive = own.keep_alive();
  }
  alive = KeepAlive();
}

TEST_P(LoopTurn, NestedRunsToADepthOfAHundred) {
  int depth = 0;
  int deepest = 0;
  std::function<void()> enter = [&] {
    deepest = std::max(deepest, ++depth);
    if (depth < 100) {
      loop.post(enter);
      EXPECT_EQ(loop.run(), 0);
    }
    --depth;
  };
  loop.post(enter);
  loop.post(note("outer"));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(deepest, 100);
  EXPECT_EQ(depth, 0);
  EXPECT_EQ(notes, Notes{"outer"}) << "the inner runs drain the same queue";
  EXPECT_FALSE(loop.running());
}

TEST_P(LoopTurn, RunningAndCounters) {
  Timer timer(loop);
  EXPECT_EQ(loop.counters().handles, 1U);
  timer.after(1ms, [&] { EXPECT_TRUE(loop.running()); });
  loop.post([&] { EXPECT_EQ(loop.counters().timers_armed, 1U); });
  EXPECT_EQ(loop.counters().timers_armed, 1U);
  EXPECT_EQ(loop.counters().handles_active, 1U);
  EXPECT_EQ(loop.run(), 0);
  const LoopCounters counters = loop.counters();
  EXPECT_EQ(counters.turns, 1U);
  EXPECT_EQ(counters.waits, 1U);
  EXPECT_EQ(counters.callbacks, 2U);
  EXPECT_GE(counters.time_asleep_ns, 900'000U);
  EXPECT_EQ(counters.timers_armed, 0U);
  EXPECT_EQ(counters.handles_active, 0U);
  EXPECT_EQ(counters.immediates_queued, 0U);
  EXPECT_EQ(counters.send_queue_bytes, 0U);
  timer = Timer();
  EXPECT_EQ(loop.counters().handles, 0U);
}

TEST_P(LoopTurn, CountersAreReadableFromAnotherThread) {
  const KeepAlive alive = loop.keep_alive();
  std::thread other([this] {
    const std::uint64_t before = loop.counters().turns;
    while (loop.counters().turns < before + 100) loop.wake();
    loop.stop();
  });
  EXPECT_EQ(loop.run(), 0);
  other.join();
  EXPECT_GE(loop.counters().turns, 100U);
}

TEST_P(LoopTurn, HooksRunDirectlyAroundEachWait) {
  loop.set_wait_hooks(note("before"), note("after"));
  Timer timer(loop);
  timer.after(1ms, note("timer"));
  loop.post(note("immediate"));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(notes, (Notes{"immediate", "before", "after", "timer"}));
  loop.set_wait_hooks({}, {});
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(notes.size(), 4U);
}

TEST_P(LoopTurn, UserData) {
  EXPECT_EQ(loop.user_data(), nullptr);
  loop.set_user_data(&notes);
  EXPECT_EQ(loop.user_data(), &notes);
}

TEST_P(LoopTurn, NowStandsStillInATurnUntilItIsUpdated) {
  loop.post([this] {
    const TimePoint before = loop.now();
    std::this_thread::sleep_for(1ms);
    EXPECT_EQ(loop.now(), before);
    loop.update_now();
    if (!is_sim()) {
      EXPECT_GE(loop.now() - before, 1ms);
    }
  });
  EXPECT_EQ(loop.run(), 0);
}

TEST_P(LoopTurn, AMovedLoopIsTheSameLoop) {
  Timer timer(loop);
  timer.after(0ns, note("timer"));
  Loop moved = std::move(loop);
  moved.post(note("posted"));
  EXPECT_EQ(moved.run(), 0);
  EXPECT_EQ(notes, (Notes{"posted", "timer"}));
  loop = std::move(moved);
  EXPECT_EQ(loop.run(), 0);
}

TEST_P(LoopTurn, TwoLoopsInOneThreadDoNotMeet) {
  Loop other(options());
  other.post(note("other"));
  loop.post(note("one"));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(notes, Notes{"one"});
  EXPECT_EQ(other.run(), 0);
  EXPECT_EQ(notes, (Notes{"one", "other"}));
}

TEST_P(LoopTurn, RunOfALoopThatAnotherThreadRunsIsAnError) {
  const KeepAlive alive = loop.keep_alive();
  int inside = -1;
  loop.post([&] {
    std::thread other([&] { inside = loop.run_ready(); });
    other.join();
    loop.stop();
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(inside, static_cast<int>(Errc::wrong_thread));
}

TEST_P(LoopTurn, AnotherThreadMayRunTheLoopWhenNobodyDoes) {
  Timer timer(loop);
  timer.after(1ms, note("first"));
  EXPECT_EQ(loop.run(), 0);
  timer.after(1ms, note("second"));
  std::thread other([this] { EXPECT_EQ(loop.run(), 0); });
  other.join();
  EXPECT_EQ(notes, (Notes{"first", "second"}));
}

}  // namespace
}  // namespace evix::test
