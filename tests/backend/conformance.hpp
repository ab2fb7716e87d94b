#pragma once

#include <evix/evix.hpp>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "support/offered.hpp"
#include "support/sanitizers.hpp"

/** @file
 * The fixture of the conformance suite: one behaviour over every backend.
 */
namespace evix::test {

using namespace std::chrono_literals;

/** Whether to run each trap with its full count (nightly) instead of the default one. */
inline bool full_counts() {
  const char* value = std::getenv("EVIX_TEST_FULL");
  return value != nullptr && std::string_view(value) == "1";
}

/** The count that a trap asks for, or `by_default` where that takes too long for each run. */
inline std::uint64_t scaled(std::uint64_t full, std::uint64_t by_default) {
  return full_counts() ? full : by_default;
}

/** User and system time of RUSAGE_SELF or RUSAGE_THREAD, getrusage(2). */
inline Duration cpu_time(int of_whom) {
  rusage usage{};
  getrusage(of_whom, &usage);
  const auto of = [](const timeval& value) {
    return std::chrono::seconds(value.tv_sec) + std::chrono::microseconds(value.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

inline Duration thread_cpu_time() { return cpu_time(RUSAGE_THREAD); }
inline Duration process_cpu_time() { return cpu_time(RUSAGE_SELF); }

class Conformance : public testing::TestWithParam<BackendKind> {
 public:
  /** Time of the loop that run_until() waits at most. */
  static constexpr Duration patience = 5s;
  /** The resting state may be looked at this often in a second (spin check). */
  static constexpr std::uint64_t idle_turns_max = 5;
  // Of a second. A spinning loop takes all of it; on a loaded virtual machine one wait of a second
  // was charged with 13 ms.
  static constexpr Duration idle_cpu_max = 50ms;

 protected:
  Conformance() : loop(LoopOptions{.backend = GetParam()}) {}

  void SetUp() override { ASSERT_EQ(loop.backend(), GetParam()); }

  static bool is_sim() { return GetParam() == BackendKind::sim; }
  static LoopOptions options() { return LoopOptions{.backend = GetParam()}; }

  /** Turns of `loop` until the predicate holds; fails the test after `patience`. */
  template <std::predicate Predicate>
  [[nodiscard]] testing::AssertionResult run_until(Predicate&& predicate) {
    return run_until(loop, predicate);
  }
  template <std::predicate Predicate>
  [[nodiscard]] static testing::AssertionResult run_until(Loop& loop, Predicate&& predicate) {
    loop.update_now();
    const TimePoint deadline = loop.now() + patience;
    while (!predicate()) {
      if (const int code = loop.run_once(100ms); code != 0) {
        return testing::AssertionFailure()
               << "run_once() = " << code << ", " << loop.error().message();
      }
      loop.update_now();
      if (loop.now() > deadline && !predicate()) {
        return testing::AssertionFailure() << "not so after 5 s of the loop's time";
      }
    }
    return testing::AssertionSuccess();
  }

  /** Spin check: a second (on sim: a virtual one) of idleness costs few turns and no CPU time. */
  [[nodiscard]] testing::AssertionResult rests() { return rests(loop); }
  [[nodiscard]] static testing::AssertionResult rests(Loop& loop) {
    const KeepAlive until_the_time_is_over = loop.keep_alive();
    const std::uint64_t turns_before = loop.counters().turns;
    const Duration cpu_before = thread_cpu_time();
    if (const int code = loop.run_for(1s); code != 0) {
      return testing::AssertionFailure() << "run_for() = " << code;
    }
    const Duration cpu = thread_cpu_time() - cpu_before;
    const std::uint64_t turns = loop.counters().turns - turns_before;
    if (turns <= idle_turns_max && cpu < idle_cpu_max) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "spins: " << turns << " turns and " << cpu.count()
                                       << " ns of CPU time in a second of idleness";
  }

  Loop loop;
};

inline std::string backend_name(const testing::TestParamInfo<BackendKind>& info) {
  return std::string(to_string(info.param));
}

#define EVIX_OVER_BACKENDS(suite)                                                                 \
  INSTANTIATE_TEST_SUITE_P(Backends, suite,                                                       \
                           testing::ValuesIn(offered({BackendKind::epoll, BackendKind::poll,      \
                                                      BackendKind::sim, BackendKind::io_uring})), \
                           ::evix::test::backend_name)

/** For what a backend cannot do. tests/backend/skips.txt lists every one. */
#define EVIX_SKIP_ON(kind, reason)                                            \
  do {                                                                        \
    static_assert((kind) == BackendKind::sim, "only the simulator may skip"); \
    if (GetParam() == (kind)) GTEST_SKIP() << (reason);                       \
  } while (false)

}  // namespace evix::test
