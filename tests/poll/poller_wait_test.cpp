#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>

#include <cerrno>
#include <chrono>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "base/saturating.hpp"
#include "poll/poll_fixture.hpp"
#include "poll/poller_state.hpp"

// How long the poller waits, and what ends a wait. PollerSuite is made in poller_test.cpp.
namespace evix::detail {
namespace {

using std::chrono::hours;

TEST_P(PollerSuite, TimeoutIsNeverEarly) {
  Poller poller = make();
  const Pair pair = stream_pair();
  ASSERT_TRUE(poller.add(pair.a.get(), Ready::readable, Trigger::level, 1));
  for (const bool nanoseconds : {true, false}) {
    if (!nanoseconds) calls.refuse(CallId::epoll_wait_ns, ENOSYS);
    for (const std::int64_t timeout_ns :
         {1, 999, 1'000, 999'999, 1'000'000, 1'000'001, 2'500'000}) {
      const std::int64_t start = now_ns();
      EXPECT_EQ(poller.wait(Duration(timeout_ns)), 0U);
      EXPECT_GE(now_ns() - start, timeout_ns);
    }
  }
}

TEST_P(PollerSuite, ZeroAndNegativeTimeoutsDoNotBlock) {
  Poller poller = make();
  for (const Duration timeout : {Duration::zero(), Duration(-1), Duration::min()}) {
    EXPECT_EQ(poller.wait(timeout), 0U);
  }
}

/** A table on which waits end at once and a clock of its own passes. */
class RecordedWaits : public FaultCalls {
 public:
  int epoll_wait_ns(int, epoll_event*, int, std::int64_t timeout_ns) noexcept override {
    if (!nanoseconds) return -ENOSYS;
    return record(timeout_ns);
  }
  int epoll_wait_ms(int, epoll_event*, int, int timeout_ms) noexcept override {
    return record(timeout_ms < 0 ? -1 : timeout_ms * std::int64_t{1'000'000});
  }
  int poll(pollfd*, std::size_t, std::int64_t timeout_ns) noexcept override {
    return record(timeout_ns);
  }
  std::int64_t clock_now() noexcept override { return now; }

  int record(std::int64_t timeout_ns) {
    waited.push_back(timeout_ns);
    now = add_saturating(now, timeout_ns);
    return 0;
  }

  bool nanoseconds = true;
  std::int64_t now = 0;
  std::vector<std::int64_t> waited;
};

using Waited = std::vector<std::int64_t>;

TEST_P(PollerSuite, TimeoutsReachTheKernelInNanoseconds) {
  RecordedWaits recorded;
  Poller poller = make_over(recorded, GetParam());
  for (const Duration timeout : {Duration(1), Duration(1'500'000), Duration(INT64_MAX - 1)}) {
    EXPECT_EQ(poller.wait(timeout), 0U);
  }
  EXPECT_EQ(poller.wait(forever), 0U);
  EXPECT_EQ(poller.wait(Duration::min()), 0U);
  EXPECT_EQ(recorded.waited, (Waited{1, 1'500'000, INT64_MAX - 1, -1, 0}));
}

TEST(PollerMilliseconds, TimeoutsAreRoundedUpAndHugeOnesWaitedInParts) {
  RecordedWaits recorded;
  recorded.nanoseconds = false;
  Poller poller = make_over(recorded, BackendKind::epoll);
  constexpr std::int64_t millisecond = 1'000'000;
  EXPECT_EQ(poller.wait(Duration(1)), 0U);
  EXPECT_EQ(poller.wait(Duration(millisecond)), 0U);
  EXPECT_EQ(poller.wait(Duration(millisecond + 1)), 0U);
  EXPECT_EQ(poller.wait(Duration::zero()), 0U);
  EXPECT_EQ(poller.wait(forever), 0U);
  EXPECT_EQ(recorded.waited, (Waited{millisecond, millisecond, 2 * millisecond, 0, -1}));
  recorded.waited.clear();
  constexpr std::int64_t cap = INT32_MAX * millisecond;
  EXPECT_EQ(poller.wait(Duration(cap)), 0U);
  EXPECT_EQ(recorded.waited, Waited{cap});
  recorded.waited.clear();
  EXPECT_EQ(poller.wait(Duration(2 * cap + 5)), 0U);
  EXPECT_EQ(recorded.waited, (Waited{cap, cap, millisecond}));
  recorded.waited.clear();
  const std::int64_t start = recorded.now = 0;
  EXPECT_EQ(poller.wait(Duration(INT64_MAX - 1)), 0U);
  EXPECT_EQ(recorded.waited.size(), std::size_t{INT64_MAX / cap + 1});
  EXPECT_GE(static_cast<std::uint64_t>(recorded.now - start), std::uint64_t{INT64_MAX - 1});
}

TEST(PollerMilliseconds, AbsentNanosecondWaitIsAskedForOnce) {
  for (const int error : {ENOSYS, EPERM}) {
    FaultCalls calls;
    calls.refuse(CallId::epoll_wait_ns, error);
    Poller poller = make_over(calls, BackendKind::epoll);
    EXPECT_TRUE(poller.state().driver().waits_nanoseconds());
    const Pair pair = stream_pair();
    ASSERT_TRUE(poller.add(pair.a.get(), Ready::writable, Trigger::level, 1));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(tokens_now(poller), Tokens{1});
    EXPECT_EQ(calls.count(CallId::epoll_wait_ns), 1U);
    EXPECT_EQ(calls.count(CallId::epoll_wait_ms), 3U);
    EXPECT_FALSE(poller.state().driver().waits_nanoseconds());
  }
}

TEST_P(PollerSuite, HugeTimeoutsWait) {
  Poller poller = make();
  for (const bool nanoseconds : {true, false}) {
    if (!nanoseconds) calls.refuse(CallId::epoll_wait_ns, ENOSYS);
    for (const Duration timeout : {Duration(INT64_MAX), Duration(INT64_MAX - 1),
                                   Duration(hours(24 * 365)), Duration(hours(1'000'000))}) {
      const Pair pair = stream_pair();
      const auto id = poller.add(pair.a.get(), Ready::readable, Trigger::level, 1);
      std::binary_semaphore waits(0);  // the wait must have begun for the test to say something
      calls.before = [&, begun = false](CallId call) mutable {
        const bool wait =
            call == CallId::epoll_wait_ns || call == CallId::epoll_wait_ms || call == CallId::poll;
        if (wait && !std::exchange(begun, true)) waits.release();
      };
      std::thread writer([&] {
        waits.acquire();
        put(pair.b);
      });
      EXPECT_EQ(poller.wait(timeout), 1U);
      calls.before = nullptr;
      writer.join();
      EXPECT_TRUE(poller.remove(*id));
    }
  }
}

TEST_P(PollerSuite, InterruptedWaitIsAnError) {
  Poller poller = make();
  struct sigaction action{};
  action.sa_handler = [](int) {};
  struct sigaction before{};
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  itimerval timer{{0, 5'000}, {0, 5'000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &timer, nullptr), 0);
  const auto result = poller.wait(std::chrono::seconds(10));
  timer = {};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), std::errc::interrupted);
  EXPECT_EQ(poller.wait(Duration::zero()), 0U);
}

TEST_P(PollerSuite, FailedWaitGivesNoEvents) {
  Poller poller = make();
  const Pair pair = stream_pair();
  ASSERT_TRUE(poller.add(pair.a.get(), Ready::writable, Trigger::level, 1));
  EXPECT_EQ(poller.wait(Duration::zero()), 1U);
  // Under ThreadSanitizer, which does not know epoll_pwait2(2), waits are in milliseconds.
  for (const CallId wait : {CallId::epoll_wait_ns, CallId::epoll_wait_ms, CallId::poll}) {
    calls.fail(wait, 1, EINTR);
  }
  const auto count = poller.wait(Duration::zero());
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error(), std::errc::interrupted);
  EXPECT_FALSE(poller.next());
  EXPECT_EQ(tokens_now(poller), Tokens{1});
}

}  // namespace
}  // namespace evix::detail
