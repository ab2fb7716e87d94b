#include <evix/evix.hpp>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/conformance.hpp"

// Timers: what timer.hpp promises. The traps are in timer_trap_test.cpp.
namespace evix::test {
namespace {

class Timers : public Conformance {
 protected:
  /** Time since the test began, at the turn that asks. */
  Duration elapsed() { return loop.now() - start; }
  TimePoint start = loop.now();
};
EVIX_OVER_BACKENDS(Timers);

TEST_P(Timers, OneShotCallsOnceAndIsDone) {
  Timer timer(loop);
  EXPECT_FALSE(timer.active());
  int calls = 0;
  timer.after(3ms, [&] {
    ++calls;
    EXPECT_FALSE(timer.active()) << "its state is final before the callback runs";
    EXPECT_EQ(timer.remaining(), 0ns);
  });
  EXPECT_TRUE(timer.active());
  EXPECT_GT(timer.remaining(), 2ms);
  EXPECT_LE(timer.remaining(), 3ms);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_GE(elapsed(), 3ms);
}

TEST_P(Timers, EveryKeepsItsPhase) {
  Timer timer(loop);
  std::vector<Duration> deadlines;
  timer.every(5ms, [&] {
    deadlines.push_back(elapsed() + timer.remaining());
    if (deadlines.size() == 10) timer.stop();
  });
  EXPECT_EQ(loop.run(), 0);
  ASSERT_EQ(deadlines.size(), 10U);
  for (std::size_t call = 1; call < 9; ++call) {
    EXPECT_EQ((deadlines[call] - deadlines[0]) % 5ms, 0ns) << call;
    if (is_sim()) {
      EXPECT_EQ(deadlines[call], 5ms * (call + 2));
    }
  }
}

TEST_P(Timers, AnotherDelayBeforeTheFirstCall) {
  Timer timer(loop);
  std::vector<Duration> calls;
  timer.after_then_every(2ms, 6ms, [&] {
    calls.push_back(elapsed());
    if (calls.size() == 3) timer.stop();
  });
  EXPECT_EQ(loop.run(), 0);
  ASSERT_EQ(calls.size(), 3U);
  for (std::size_t call = 0; call < 3; ++call) EXPECT_GE(calls[call], 2ms + 6ms * call);
  if (is_sim()) {
    EXPECT_EQ(calls, (std::vector<Duration>{2ms, 8ms, 14ms}));
  }
}

TEST_P(Timers, PeriodsBelowOneNanosecondAreOne) {
  for (const Duration period : {0ns, -1ns, Duration::min()}) {
    Timer timer(loop);
    int calls = 0;
    std::uint64_t turn = 0;
    timer.every(period, [&] {
      EXPECT_NE(loop.counters().turns, turn) << "at most once a turn";
      turn = loop.counters().turns;
      if (++calls == 100) timer.stop();
    });
    EXPECT_EQ(loop.run(), 0);
    EXPECT_EQ(calls, 100);
  }
}

TEST_P(Timers, AtADeadline) {
  Timer future(loop);
  Timer past(loop);
  Timer never(loop);
  std::vector<std::string> order;
  future.at(loop.now() + 4ms, [&] {
    order.emplace_back("future");
    EXPECT_GE(elapsed(), 4ms);
    never.stop();
  });
  past.at(loop.now() - 1h, [&] { order.emplace_back("past"); });
  never.at(TimePoint::max(), [&] { order.emplace_back("never"); });
  EXPECT_EQ(never.remaining(), forever);
  EXPECT_EQ(past.remaining(), 0ns);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(order, (std::vector<std::string>{"past", "future"}));
}

TEST_P(Timers, StartingAStartedTimerRestartsIt) {
  Timer timer(loop);
  std::string called;
  timer.after(0ns, [&] { called += "first"; });
  timer.after(2ms, [&] { called += "second"; });
  EXPECT_EQ(loop.counters().timers_armed, 1U);
  EXPECT_EQ(loop.counters().handles_active, 1U);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(called, "second");
}

TEST_P(Timers, StoppingTwiceDoesNothing) {
  Timer timer(loop);
  timer.stop();
  timer.after(0ns, [] { FAIL(); });
  timer.stop();
  timer.stop();
  EXPECT_FALSE(timer.active());
  EXPECT_EQ(timer.remaining(), 0ns);
  EXPECT_EQ(loop.counters().timers_armed, 0U);
  EXPECT_EQ(loop.run(), 0);
}

TEST_P(Timers, AgainCountsTheSameDelayFromNow) {
  Timer idle(loop);
  Timer activity(loop);
  idle.again();
  EXPECT_FALSE(idle.active()) << "it was never started";
  int activities = 0;
  Duration last{};
  Duration called{};
  idle.after(20ms, [&] { called = elapsed(); });
  activity.every(4ms, [&] {
    idle.again();
    last = elapsed();
    if (++activities == 10) activity.stop();
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(activities, 10);
  EXPECT_GE(called, last + 20ms);
  if (is_sim()) {
    EXPECT_EQ(called, 60ms);
  }
}

TEST_P(Timers, AgainInItsOwnCallbackAndAfterStop) {
  Timer timer(loop);
  int calls = 0;
  timer.after(1ms, [&] {
    if (++calls < 3) timer.again();
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 3);
  timer.again();
  timer.stop();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 3);
  timer.again();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 4) << "stop() keeps the callback for again()";
}

TEST_P(Timers, AgainOfARepeatingTimerBeginsANewPeriod) {
  Timer timer(loop);
  Timer other(loop);
  std::vector<Duration> calls;
  timer.every(10ms, [&] {
    calls.push_back(elapsed());
    if (calls.size() == 2) timer.stop();
  });
  Duration again_at{};
  other.after(5ms, [&] {
    again_at = elapsed();
    timer.again();
  });
  EXPECT_EQ(loop.run(), 0);
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_GE(calls[0], again_at + 10ms);
  if (is_sim()) {
    EXPECT_EQ(calls, (std::vector<Duration>{15ms, 25ms}));
  }
}

TEST_P(Timers, ACallbackMayReplaceItself) {
  Timer timer(loop);
  auto guard = std::make_shared<int>(7);
  const std::weak_ptr<int> watch = guard;
  bool second = false;
  timer.after(0ns, [&, guard = std::move(guard)] {
    timer.after(0ns, [&] { second = true; });
    EXPECT_EQ(*guard, 7) << "what the running callback holds lives until it returns";
  });
  EXPECT_EQ(loop.run_once(), 0);
  EXPECT_FALSE(second) << "started in the timer phase: the next turn's";
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(loop.run(), 0);
  EXPECT_TRUE(second);
}

TEST_P(Timers, ARepeatingTimerMayStopRestartAndDieInItsCallback) {
  std::optional<Timer> timer(std::in_place, loop);
  int calls = 0;
  timer->every(1ms, [&] {
    ++calls;
    timer->stop();
    EXPECT_FALSE(timer->active());
    timer->every(1ms, [&] {
      ++calls;
      timer.reset();
    });
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(loop.counters().handles, 0U);
  EXPECT_EQ(loop.counters().timers_armed, 0U);
}

TEST_P(Timers, AnArmedTimerMayMove) {
  std::vector<Timer> timers;
  int calls = 0;
  for (int number = 0; number < 100; ++number) {
    timers.emplace_back(loop);
    timers.back().after(1ms, [&] { ++calls; });
  }
  Timer moved = std::move(timers[0]);
  EXPECT_FALSE(timers[0]);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 100);
}

TEST_P(Timers, ADestroyedTimerDoesNotCall) {
  {
    Timer timer(loop);
    timer.after(0ns, [] { FAIL(); });
  }
  EXPECT_EQ(loop.counters().timers_armed, 0U);
  EXPECT_EQ(loop.counters().handles_active, 0U);
  EXPECT_EQ(loop.run(), 0);
}

TEST_P(Timers, DelaysAreNotRoundedToMilliseconds) {
  Timer timer(loop);
  Duration called{};
  timer.after(1500us, [&] { called = elapsed(); });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_GE(called, 1500us);
  if (is_sim()) {
    EXPECT_EQ(called, 1500us);
  }
}

// ---- Durations that make no sense ------------------------------------------------------------

enum class Fires { at_once, never };

/** Starts a timer with this duration and sees whether it fires in the next turn, or not at all. */
template <class Delay>
void expect_fires(Loop& loop, Delay delay, Fires expected, const std::string& what) {
  Timer timer(loop);
  int calls = 0;
  timer.after(delay, [&] { ++calls; });
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, expected == Fires::at_once ? 1 : 0) << what;
  EXPECT_EQ(timer.active(), expected == Fires::never) << what;
  EXPECT_EQ(timer.remaining(), expected == Fires::never ? forever : 0ns) << what;
}

TEST_P(Timers, BadDurationsAreZeroOrNever) {
  using DoubleSeconds = std::chrono::duration<double>;
  using FloatHours = std::chrono::duration<float, std::ratio<3600>>;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  expect_fires(loop, 0ns, Fires::at_once, "zero");
  expect_fires(loop, -1ns, Fires::at_once, "-1 ns");
  expect_fires(loop, Duration::min(), Fires::at_once, "-2^63 ns");
  expect_fires(loop, std::chrono::hours::min(), Fires::at_once, "the fewest hours");
  expect_fires(loop, std::chrono::milliseconds(-(1LL << 31)), Fires::at_once, "-2^31 ms");
  expect_fires(loop, DoubleSeconds(std::nan("")), Fires::at_once, "NaN");
  expect_fires(loop, DoubleSeconds(-infinity), Fires::at_once, "-inf");
  expect_fires(loop, DoubleSeconds(-0.0), Fires::at_once, "-0.0");
  expect_fires(loop, DoubleSeconds(infinity), Fires::never, "inf");
  expect_fires(loop, DoubleSeconds(1e300), Fires::never, "1e300 s");
  expect_fires(loop, FloatHours(std::numeric_limits<float>::max()), Fires::never, "float hours");
  expect_fires(loop, forever, Fires::never, "2^63-1 ns");
  expect_fires(loop, Duration::max() - 1ns, Fires::never, "2^63-2 ns and the time of day");
  expect_fires(loop, std::chrono::hours::max(), Fires::never, "the most hours");
  expect_fires(loop, std::chrono::milliseconds(1LL << 53), Fires::never, "2^53 ms");
  expect_fires(loop, std::chrono::milliseconds::max(), Fires::never, "2^63-1 ms");
  expect_fires(loop, std::chrono::duration<std::uint64_t>(UINT64_MAX), Fires::never,
               "UINT64_MAX s");
}

TEST_P(Timers, BadPeriodsAreANanosecondOrNever) {
  using DoubleSeconds = std::chrono::duration<double>;
  Timer timer(loop);
  int calls = 0;
  timer.after_then_every(0ns, DoubleSeconds(std::nan("")), [&] { ++calls; });
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_LE(timer.remaining(), 1ns);
  timer.after_then_every(0ns, std::chrono::hours::max(), [&] { ++calls; });
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(timer.remaining(), forever);
  EXPECT_TRUE(timer.active()) << "it repeats, but never again in 292 years";
}

TEST_P(Timers, BadTimeoutsOfTheLoop) {
  loop.post([this] { loop.stop(); });
  EXPECT_EQ(loop.run_for(Duration::max() - 1ns), 0);
  EXPECT_EQ(loop.run_once(Duration::min()), 0);
  EXPECT_EQ(loop.run_for(Duration::min()), 0);
  Timer timer(loop);
  timer.after(1ms, [] {});
  EXPECT_EQ(loop.run_once(Duration::max() - 1ns), 0);
  EXPECT_FALSE(timer.active());
}

}  // namespace
}  // namespace evix::test
