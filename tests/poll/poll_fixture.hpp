#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <evix/poller.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/fault_calls.hpp"
#include "sys/fd.hpp"

/** @file
 * What the poller tests share: the parameterised suite, descriptors, the spin check.
 */
namespace evix::detail {

inline Fd own(int fd) { return {Calls::kernel(), fd}; }

/** Two connected descriptors; of a pipe, `a` is the reading end. */
struct Pair {
  Fd a;
  Fd b;
};

inline Pair stream_pair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {own(fds[0]), own(fds[1])};
}

inline Pair pipe_pair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
  return {own(fds[0]), own(fds[1])};
}

inline void put(const Fd& fd) { ASSERT_EQ(::write(fd.get(), "x", 1), 1); }

inline std::size_t drain(int fd) {
  char bytes[256];
  std::size_t sum = 0;
  for (ssize_t size; (size = ::read(fd, bytes, sizeof bytes)) > 0;) {
    sum += static_cast<std::size_t>(size);
  }
  return sum;
}

inline std::int64_t now_ns() { return Calls::kernel().clock_now(); }

inline std::int64_t cpu_ns() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto to_ns = [](timeval time) {
    return time.tv_sec * 1'000'000'000LL + time.tv_usec * 1'000LL;
  };
  return to_ns(usage.ru_utime) + to_ns(usage.ru_stime);
}

/** What AnyPoller names its interests with. */
template <class AnyPoller>
using IdOf = std::remove_cvref_t<
    decltype(std::declval<AnyPoller&>().add(0, Ready::none, Trigger::level, 0).value())>;

/** What a program saw that waited for `seconds` as a loop does. */
struct Idle {
  int waits = 0;
  int events = 0;
  std::int64_t cpu_ns = 0;
};

template <class AnyPoller>
Idle idle(AnyPoller& poller, Duration length = std::chrono::seconds(1)) {
  Idle seen;
  const std::int64_t cpu_start = cpu_ns();
  const std::int64_t end = now_ns() + length.count();
  // The bound ends a test whose subject spins.
  for (std::int64_t now = now_ns(); now < end && seen.waits < 200'000; now = now_ns()) {
    EXPECT_TRUE(poller.wait(Duration(end - now)));
    ++seen.waits;
    while (poller.next()) ++seen.events;
  }
  seen.cpu_ns = cpu_ns() - cpu_start;
  return seen;
}

/** traps.md: over 1 s of idleness < 10 ms CPU and <= 5 turns. */
inline void expect_no_spin(const Idle& seen) {
  EXPECT_LE(seen.waits, 5);
  EXPECT_LT(seen.cpu_ns, 10'000'000);
}

class PollerSuite : public testing::TestWithParam<BackendKind> {
 protected:
  Poller make(std::size_t events_max = 256) {
    PollerOptions options;
    options.kind = GetParam();
    options.events_max = events_max;
    options.system_calls = &calls;
    auto poller = Poller::create(std::move(options));
    EXPECT_TRUE(poller);
    EXPECT_EQ(poller->kind(), GetParam());
    return *std::move(poller);
  }
  bool is_epoll() const { return GetParam() == BackendKind::epoll; }
  std::uint64_t control_calls() const { return calls.count(CallId::epoll_control); }

  FaultCalls calls;
};

/** For what poll(2) does not have: a set in the kernel, edges. */
class EpollSuite : public PollerSuite {};

/** Ends the test program when there is no such poller. */
inline Poller make_over(Calls& calls, BackendKind kind) {
  PollerOptions options;
  options.kind = kind;
  options.system_calls = &calls;
  return *Poller::create(std::move(options));
}

/** Waits without blocking and gives what there is. */
inline std::vector<PollEvent> events_now(Poller& poller) {
  EXPECT_TRUE(poller.wait(Duration::zero()));
  std::vector<PollEvent> events;
  while (const auto event = poller.next()) events.push_back(*event);
  return events;
}

inline std::vector<std::uint64_t> tokens_now(Poller& poller) {
  std::vector<std::uint64_t> tokens;
  for (const PollEvent& event : events_now(poller)) tokens.push_back(event.token);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

using Tokens = std::vector<std::uint64_t>;

}  // namespace evix::detail
