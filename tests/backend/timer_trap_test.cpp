#include <evix/evix.hpp>

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/stimulus.hpp"
#include "support/fault_calls.hpp"
#include "sys/calls.hpp"

// The traps of section J, timers and clocks, with the counts of their test lines.
namespace evix::test {
namespace {

class TimerTraps : public Conformance {
 protected:
  /** The clock itself, not the time that the loop remembers. */
  TimePoint clock() {
    if (!is_sim()) return TimePoint(Duration(detail::Calls::kernel().clock_now()));
    loop.update_now();
    return loop.now();
  }
  /** A callback that takes this long. On sim callbacks take no time: its clock moves in waits. */
  void work(Duration duration) {
    const TimePoint end = clock() + duration;
    while (!is_sim() && clock() < end) {
    }
  }
};
EVIX_OVER_BACKENDS(TimerTraps);

// Bound in turns, not in milliseconds: a busy machine may take the processor away at any moment.
// On sim the timer asks for 10 us, as time would otherwise never move.
TEST_P(TimerTraps, TrapT082ZeroDelayTimerStarvation) {
  TcpPair pair;
  ASSERT_TRUE(pair.open(loop));
  const Duration delay = is_sim() ? Duration(10us) : 0ns;
  Timer zero(loop);
  Timer second(loop);
  std::uint64_t zero_calls = 0;
  std::uint64_t turn_of_last = 0;
  const TimePoint start = clock();
  const TimePoint due = start + 10ms;  // of the second
  std::uint64_t turns_due = 0;
  std::function<void()> rearm = [&] {
    ++zero_calls;
    if (second.active() && loop.now() >= due) ++turns_due;
    if (loop.counters().turns == turn_of_last) {
      loop.stop();
      FAIL() << "twice in one turn";
    }
    turn_of_last = loop.counters().turns;
    ASSERT_TRUE(pair.client.send_copy("x"));
    zero.after(delay, rearm);
  };
  std::uint64_t received = 0;
  pair.server.receive_start([&](Result<Buffer> buffer) {
    ASSERT_TRUE(buffer);
    ++received;
    EXPECT_EQ(loop.counters().turns, turn_of_last + 1) << "the socket waits behind the timer";
  });
  Duration second_after{};
  second.at(due, [&] { second_after = loop.now() - start; });
  zero.after(delay, rearm);
  const std::uint64_t turns_before = loop.counters().turns;
  EXPECT_EQ(loop.run_for(100ms), 0);
  const std::uint64_t turns = loop.counters().turns - turns_before;
  EXPECT_GE(zero_calls + 3, is_sim() ? turns / 2 : turns) << "once each turn";
  EXPECT_GE(received + 1, zero_calls);
  zero.after(delay, [this] { loop.stop(); });
  EXPECT_EQ(loop.run(), 0) << "stop() works";
  // Also where the machine took the processor away for the 100 ms: the second one is due earlier.
  EXPECT_GE(second_after, 10ms);
  EXPECT_LE(turns_due, 1U) << "the second timer waits behind the first";
}

// 10^6 timers in the full run, 20,000 by default.
TEST_P(TimerTraps, TrapT083FiresEarly) {
  const std::uint64_t total = scaled(1'000'000, 20'000);
  std::minstd_rand random(83);
  std::deque<Timer> timers;
  std::vector<Duration> lateness;
  std::uint64_t started = 0;
  std::uint64_t early = 0;
  std::function<void(Timer&)> arm = [&](Timer& timer) {
    if (started == total) return;
    ++started;
    if (random() % 200 == 0) work(std::chrono::nanoseconds(random() % 3'000'000));
    const Duration delay(random() % 5'000'000);
    const TimePoint before = clock();
    timer.after(delay, [&, before, delay] {
      const Duration late = clock() - before - delay;
      if (late < 0ns) ++early;
      lateness.push_back(late);
      arm(timer);
    });
  };
  for (int number = 0; number < 1000; ++number) arm(timers.emplace_back(loop));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(early, 0U);
  ASSERT_EQ(lateness.size(), total);
  std::sort(lateness.begin(), lateness.end());
  RecordProperty("max_lateness_ns", std::to_string(lateness.back().count()));
  RecordProperty("p999_lateness_ns", std::to_string(lateness[total - total / 1000].count()));
}

// 2 s in the full run, 300 ms by default.
TEST_P(TimerTraps, TrapT084SubMillisecondRemainderSpins) {
  detail::FaultCalls calls;
  calls.refuse(detail::CallId::epoll_wait_ns, ENOSYS);
  Loop own(LoopOptions{.backend = GetParam(), .system_calls = is_sim() ? nullptr : &calls});
  Timer timer(own);
  std::uint64_t fired = 0;
  timer.every(1500us, [&] { ++fired; });
  const auto duration = std::chrono::milliseconds(scaled(2000, 300));
  const Duration cpu_before = thread_cpu_time();
  EXPECT_EQ(own.run_for(duration), 0);
  const Duration cpu = thread_cpu_time() - cpu_before;
  EXPECT_GT(fired, 0U);  // 200 where no other program wants the processor
  EXPECT_LE(own.counters().waits, 2 * fired + 2);
  // A spin takes 33 %. The trap's 3 % are for an optimised build on a machine with nothing to do.
  EXPECT_LT(cpu, duration * (full_counts() ? 3 : 15) / 100);
  if (GetParam() == BackendKind::epoll) {
    EXPECT_GE(calls.count(detail::CallId::epoll_wait_ms), fired) << "the path under test";
  }
}

TEST_P(TimerTraps, TrapT086HugeTimeouts) {
  using std::chrono::milliseconds;
  const std::array<milliseconds, 8> delays{
      milliseconds((1LL << 31) - 1), milliseconds(1LL << 31), milliseconds(1LL << 32),
      milliseconds(1LL << 53),       milliseconds::max(),     milliseconds(0x7fffffffffffLL),
      milliseconds(1LL << 33),       milliseconds(1LL << 62)};
  std::deque<Timer> timers;
  std::vector<std::pair<std::size_t, Duration>> fired;
  const TimePoint start = loop.now();
  for (std::size_t index = 0; index < delays.size(); ++index) {
    timers.emplace_back(loop).after(delays[index],
                                    [&, index] { fired.emplace_back(index, loop.now() - start); });
  }
  timers.emplace_back(loop).after(Duration(1LL << 53),
                                  [] { FAIL() << "104 days have not passed"; });
  EXPECT_TRUE(rests());
  EXPECT_EQ(fired.size(), 0U);
  Timer small(loop);
  small.after(10ms, [this] { loop.stop(); });
  EXPECT_EQ(loop.run(), 0) << "a 10 ms timer still works";
  timers.pop_back();
  if (!is_sim()) return;
  Timer limit(loop);
  limit.after(24h * 365 * 200, [this] { loop.stop(); });
  EXPECT_EQ(loop.run(), 0);
  const std::vector<std::pair<std::size_t, Duration>> expected{
      {0, delays[0]}, {1, delays[1]}, {2, delays[2]}, {6, delays[6]}};
  EXPECT_EQ(fired, expected) << "at the true deadlines, to the nanosecond";
}

TEST_P(TimerTraps, TrapT088OnceFiresTwice) {
  for (const Duration repeat : {Duration(1s), 1ns}) {
    Timer timer(loop);
    int calls = 0;
    timer.after_then_every(0ns, repeat, [&] { ++calls; });
    EXPECT_EQ(loop.run_once(), 0);
    EXPECT_EQ(calls, 1) << repeat.count();
  }
}

/** What a 10 ms timer did whose second call was late by a callback that took `block`. */
struct Stall {
  struct Call {
    Duration now;
    Duration next;  ///< deadline
    std::uint64_t missed;
    std::uint64_t turn;
    std::uint64_t received;
  };
  std::vector<Call> calls;
};

class MissedTickTraps : public TimerTraps {
 protected:
  static constexpr Duration period = 10ms;
  // 1 s in the full run, 100 ms by default.
  const std::chrono::milliseconds block{scaled(1000, 100)};

  /** Runs for so many calls, and on until the timer has caught up: a busy machine stalls it too. */
  void stall(MissedTicks policy, std::size_t calls_wanted) {
    ASSERT_TRUE(pair.open(loop));
    pair.server.receive_start([this](Result<Buffer> buffer) {
      ASSERT_TRUE(buffer);
      ++received;
      ASSERT_TRUE(pair.client.send_copy("x"));
    });
    Timer timer(loop);
    const TimePoint start = loop.now();
    timer.every(
        period,
        [&] {
          const Duration now = loop.now() - start;
          calls.push_back({now, now + timer.remaining(), timer.missed_ticks(),
                           loop.counters().turns, received});
          if (calls.size() == 1) {
            work(block);
            if (!is_sim()) {
              ASSERT_TRUE(pair.client.send_copy("x"));
            }
          }
          if (calls.size() >= calls_wanted && timer.remaining() > 0ns) loop.stop();
        },
        policy);
    EXPECT_EQ(loop.run(), 0);
    ASSERT_GE(calls.size(), calls_wanted);
    if (is_sim()) {
      ASSERT_EQ(calls.size(), calls_wanted);
      for (std::size_t index = 0; index < calls_wanted; ++index) {
        EXPECT_EQ(calls[index].now, period * (index + 1));
        EXPECT_EQ(calls[index].missed, 0U);
      }
      return;
    }
    EXPECT_GE(calls[1].now, calls[0].now + block) << "one call at once";
    EXPECT_EQ(calls[1].turn, calls[0].turn + 1);
  }

  TcpPair pair;
  std::uint64_t received = 0;
  std::vector<Stall::Call> calls;
};
EVIX_OVER_BACKENDS(MissedTickTraps);

TEST_P(MissedTickTraps, TrapT090Skip) {
  stall(MissedTicks::skip, 3);
  if (HasFailure() || is_sim()) return;
  const Duration late = calls[1].now - calls[0].next;
  EXPECT_EQ(calls[1].missed, static_cast<std::uint64_t>(late / period));
  EXPECT_EQ((calls[1].next - calls[0].next) % period, 0ns) << "the phase is kept";
  EXPECT_GT(calls[1].next, calls[1].now);
  EXPECT_LE(calls[1].next, calls[1].now + period);
  EXPECT_GE(calls[2].now, calls[1].next);
}

TEST_P(MissedTickTraps, TrapT090Delay) {
  stall(MissedTicks::delay, 3);
  if (HasFailure() || is_sim()) return;
  EXPECT_EQ(calls[1].missed, static_cast<std::uint64_t>((calls[1].now - calls[0].next) / period));
  EXPECT_EQ(calls[1].next, calls[1].now + period);
  EXPECT_GE(calls[2].now, calls[1].next);
}

TEST_P(MissedTickTraps, TrapT090Burst) {
  const auto ticks = static_cast<std::size_t>(block / period);
  stall(MissedTicks::burst, ticks + 3);
  if (HasFailure() || is_sim()) return;
  // The last call is in time, so what comes after it tells the phase of all.
  const Duration last = calls.back().next;
  for (std::size_t index = 1; index < calls.size(); ++index) {
    EXPECT_EQ(calls[index].missed, 0U);
    const Duration planned = last - period * (calls.size() - 1 - index);
    EXPECT_EQ(calls[index].next, std::max(planned, calls[index].now)) << "a call for each tick";
    EXPECT_GT(calls[index].turn, calls[index - 1].turn) << "one a turn";
  }
  EXPECT_GE(calls.back().received, calls[1].received + ticks - 2) << "input between the calls";
}

/** A clock that a test moves, and waits that end at once after the clock has moved. */
class JumpCalls final : public detail::FaultCalls {
 public:
  Duration offset{};
  Duration jump{};  ///< of the next wait

  std::int64_t clock_now() noexcept override {
    return detail::FaultCalls::clock_now() + offset.count();
  }
  int epoll_wait_ns(int epoll_fd, epoll_event* events, int count_max,
                    std::int64_t timeout_ns) noexcept override {
    if (take_jump()) timeout_ns = 0;
    return detail::FaultCalls::epoll_wait_ns(epoll_fd, events, count_max, timeout_ns);
  }
  int epoll_wait_ms(int epoll_fd, epoll_event* events, int count_max,
                    int timeout_ms) noexcept override {
    if (take_jump()) timeout_ms = 0;
    return detail::FaultCalls::epoll_wait_ms(epoll_fd, events, count_max, timeout_ms);
  }
  int poll(pollfd* entries, std::size_t count, std::int64_t timeout_ns) noexcept override {
    if (take_jump()) timeout_ns = 0;
    return detail::FaultCalls::poll(entries, count, timeout_ns);
  }
  int ring_enter(int fd, unsigned submit_count, unsigned wait_count, unsigned flags,
                 const void* argument, std::size_t argument_size) noexcept override {
    if (take_jump()) wait_count = 0;
    return detail::FaultCalls::ring_enter(fd, submit_count, wait_count, flags, argument,
                                          argument_size);
  }

 private:
  bool take_jump() noexcept {
    offset += jump;
    return std::exchange(jump, 0ns) != 0ns;
  }
};

TEST_P(TimerTraps, TrapT091ClockJumpsForward) {
  for (const Duration jump :
       {Duration(1s), Duration(1h), Duration(24h * 30), Duration(24h * 365)}) {
    JumpCalls calls;
    Loop own(LoopOptions{.backend = GetParam(), .system_calls = is_sim() ? nullptr : &calls});
    const std::vector<Duration> delays{1s, 1min, 1h, 24h, 24h * 30, 24h * 365};
    std::vector<std::size_t> order;
    std::deque<Timer> timers;
    for (std::size_t index = 0; index < delays.size(); ++index) {
      timers.emplace_back(own).after(delays[index] - 1us, [&, index] { order.push_back(index); });
    }
    Timer repeating(own);
    std::uint64_t repeats = 0;
    repeating.every(500ms, [&] { ++repeats; });
    if (is_sim()) repeating.stop();
    const auto due = static_cast<std::size_t>(
        std::count_if(delays.begin(), delays.end(), [&](Duration delay) { return delay <= jump; }));
    calls.jump = jump;
    if (is_sim()) {
      EXPECT_EQ(own.run_for(jump), 0);
    } else {
      EXPECT_EQ(own.run_once(), 0);
      EXPECT_EQ(repeats, 1U) << "no storm";
      EXPECT_EQ(repeating.missed_ticks() / 2 * 2, static_cast<std::uint64_t>(jump / 1s * 2) - 2);
    }
    std::vector<std::size_t> expected(due);
    for (std::size_t index = 0; index < due; ++index) expected[index] = index;
    EXPECT_EQ(order, expected) << "each that is due once, in order";
    EXPECT_EQ(own.run_ready(), 0);
    EXPECT_EQ(order.size(), due) << "and not again";
  }
}

/**
 * In a child: 100 timers and a repeating one, while the parent stops the process. The loop lasts
 * until `continued` can be read, or the parent may find that it has ended. On sim, which cannot
 * watch a pipe and does not wait for its timers, it just ends.
 */
int child_that_is_stopped(BackendKind backend, int report, int continued) {
  Loop own(LoopOptions{.backend = backend});
  Watcher until_continued(own);
  if (backend != BackendKind::sim) {
    if (!until_continued.once(continued, Ready::readable, [](Ready) {})) return 7;
  }
  std::deque<Timer> timers;
  std::array<int, 100> calls{};
  Timer repeating(own);
  std::uint64_t ticks = 0;
  TimePoint first{};  // deadline
  bool exact = true;
  repeating.every(1ms, [&] {
    const TimePoint next = own.now() + repeating.remaining();
    if (ticks == 0) {
      if (write(report, "x", 1) != 1) std::_Exit(2);
      first = next - 1ms * (1 + repeating.missed_ticks());
    }
    ticks += 1 + repeating.missed_ticks();
    exact = exact && next == first + 1ms * ticks;
  });
  repeating.unreference();
  const TimePoint start = own.now();
  for (std::size_t index = 0; index < calls.size(); ++index) {
    timers.emplace_back(own).after(5ms + 1ms * index, [&calls, index] { ++calls[index]; });
  }
  if (own.run() != 0) return 3;
  if (std::any_of(calls.begin(), calls.end(), [](int count) { return count != 1; })) return 4;
  const auto elapsed = static_cast<std::uint64_t>((own.now() - start) / 1ms);
  if (!exact || ticks > elapsed) return 5;
  // At most two for each timer and each millisecond, and the one of the watcher.
  return own.counters().turns <= 2 * (100 + elapsed) + 1 ? 0 : 6;
}

// Stopped for 2 s in the full run, 200 ms by default.
TEST_P(TimerTraps, TrapT091StoppedAndContinued) {
  std::array<int, 2> report{};
  std::array<int, 2> continued{};
  ASSERT_EQ(pipe(report.data()), 0);
  ASSERT_EQ(pipe(continued.data()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(continued[1]);  // so that it ends when the parent does
    std::_Exit(child_that_is_stopped(GetParam(), report[1], continued[0]));
  }
  char byte = 0;
  ASSERT_EQ(read(report[0], &byte, 1), 1);
  int status = 0;
  if (!is_sim()) {  // there the child has long finished
    ASSERT_EQ(kill(child, SIGSTOP), 0);
    ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    ASSERT_TRUE(WIFSTOPPED(status));
    std::this_thread::sleep_for(std::chrono::milliseconds(scaled(2000, 200)));
    ASSERT_EQ(kill(child, SIGCONT), 0);
    ASSERT_EQ(write(continued[1], "x", 1), 1);
  }
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  for (const int end : {report[0], report[1], continued[0], continued[1]}) close(end);
}

struct Model {
  TimePoint deadline;
  std::uint64_t order;
  std::size_t index;
  bool operator<(const Model& other) const {
    return std::tie(deadline, order) < std::tie(other.deadline, other.order);
  }
};

// 10^5 timers in the full run, 10,000 by default, each with three seeds.
TEST_P(TimerTraps, TrapT092SameDeadlineOrder) {
  const std::size_t count = scaled(100'000, 10'000);
  for (const unsigned seed : {1U, 2U, 3U}) {
    std::minstd_rand random(seed);
    const TimePoint base = clock();
    const auto deadline = [&] { return base - 1ms + 40us * (random() % 50); };
    std::deque<Timer> timers;
    std::vector<std::optional<Model>> model(count);
    std::vector<std::size_t> fired;
    std::uint64_t order = 0;
    const auto start = [&](std::size_t index) {
      model[index] = Model{deadline(), ++order, index};
      timers[index].at(model[index]->deadline, [&fired, index] { fired.push_back(index); });
    };
    for (std::size_t index = 0; index < count; ++index) {
      timers.emplace_back(loop);
      start(index);
    }
    for (std::size_t index = 0; index < count; ++index) {
      const auto lot = random() % 10;
      if (lot < 3) {
        timers[index].stop();
        model[index].reset();
      } else if (lot < 5) {
        start(index);
      }
    }
    work(2ms);
    std::vector<Model> expected;
    for (const auto& entry : model) {
      if (entry) expected.push_back(*entry);
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(loop.run(), 0);
    ASSERT_EQ(fired.size(), expected.size());
    for (std::size_t place = 0; place < fired.size(); ++place) {
      ASSERT_EQ(fired[place], expected[place].index) << "seed " << seed << " place " << place;
    }
  }
}

TEST_P(TimerTraps, TrapT095StopAndRestartInsideTheCallback) {
  std::deque<Timer> timers;
  for (int number = 0; number < 3; ++number) timers.emplace_back(loop);
  std::vector<int> order;
  const TimePoint start = clock();
  Duration third{};
  timers[0].after(2ms, [&] {
    order.push_back(1);
    timers[1].stop();
    timers[2].after(50ms, [&] {
      order.push_back(3);
      third = loop.now() - start;
    });
  });
  timers[1].after(2ms, [&] { order.push_back(2); });
  timers[2].after(2ms, [&] { order.push_back(-3); });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(order, (std::vector<int>{1, 3}));
  EXPECT_GE(third, 52ms);
  if (is_sim()) {
    EXPECT_EQ(third, 52ms);
  }
}

enum class Act { stop, again, restart };

/** Three timers due together; the first does `acts[n]` to timer n, itself included. */
void act_in_callback(Loop& loop, const std::array<Act, 3>& acts, bool exact) {
  struct Fired {
    std::uint64_t turn;
    Duration after;
  };
  std::array<std::vector<Fired>, 3> fired;
  std::deque<Timer> timers;
  const TimePoint start = loop.now();
  const auto note = [&](std::size_t index) {
    fired[index].push_back({loop.counters().turns, loop.now() - start});
  };
  for (int number = 0; number < 3; ++number) timers.emplace_back(loop);
  timers[0].after(2ms, [&] {
    note(0);
    if (fired[0].size() > 1) return;
    for (std::size_t index = 0; index < 3; ++index) {
      if (acts[index] == Act::stop) timers[index].stop();
      if (acts[index] == Act::again) timers[index].again();
      if (acts[index] == Act::restart) timers[index].after(5ms, [&note, index] { note(index); });
    }
  });
  timers[1].after(2ms, [&] { note(1); });
  timers[2].after(2ms, [&] { note(2); });
  EXPECT_EQ(loop.run(), 0);
  ASSERT_GE(fired[0].size(), 1U);
  const Fired first = fired[0].front();
  fired[0].erase(fired[0].begin());
  for (std::size_t index = 0; index < 3; ++index) {
    ASSERT_EQ(fired[index].size(), acts[index] == Act::stop ? 0U : 1U) << index;
    if (acts[index] == Act::stop) continue;
    const Duration delay = acts[index] == Act::again ? 2ms : 5ms;
    EXPECT_GT(fired[index][0].turn, first.turn) << "not in the same pass";
    EXPECT_GE(fired[index][0].after, first.after + delay);
    if (exact) {
      EXPECT_EQ(fired[index][0].after, first.after + delay);
    }
  }
}

TEST_P(TimerTraps, TrapT095All27Combinations) {
  constexpr std::array<Act, 3> every{Act::stop, Act::again, Act::restart};
  for (const Act self : every) {
    for (const Act second : every) {
      for (const Act third : every) {
        SCOPED_TRACE(std::to_string(static_cast<int>(self)) +
                     std::to_string(static_cast<int>(second)) +
                     std::to_string(static_cast<int>(third)));
        loop.update_now();
        act_in_callback(loop, {self, second, third}, is_sim());
      }
    }
  }
}

}  // namespace
}  // namespace evix::test
