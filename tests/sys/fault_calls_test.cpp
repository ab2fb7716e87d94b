#include "support/fault_calls.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <vector>

namespace evix::detail {
namespace {

TEST(FaultCalls, CountsAndPassesOn) {
  FaultCalls calls;
  EXPECT_EQ(calls.descriptor_flags(-1), -EBADF);
  EXPECT_GT(calls.clock_now(), 0);
  EXPECT_EQ(calls.count(CallId::descriptor_flags), 1U);
  EXPECT_EQ(calls.count(CallId::clock_now), 1U);
  EXPECT_EQ(calls.total(), 2U);
  calls.reset_counts();
  EXPECT_EQ(calls.total(), 0U);
}

TEST(FaultCalls, FailsTheNthCallFromNow) {
  FaultCalls calls;
  const int fd = calls.event_create();
  ASSERT_GE(fd, 0);
  calls.reset_counts();
  calls.fail(CallId::event_write, 2, EINTR);
  EXPECT_EQ(calls.event_write(fd), 8);
  EXPECT_EQ(calls.event_write(fd), -EINTR);
  EXPECT_EQ(calls.event_write(fd), 8);
  calls.reset_counts();
  calls.fail(CallId::event_write, 1, EIO, 2);
  EXPECT_EQ(calls.event_write(fd), -EIO);
  EXPECT_EQ(calls.event_write(fd), -EIO);
  EXPECT_EQ(calls.event_write(fd), 8);
  EXPECT_EQ(calls.count(CallId::event_write), 3U);
  EXPECT_EQ(calls.injected(CallId::event_write), 3U);
  EXPECT_EQ(calls.close(fd), 0);
}

TEST(FaultCalls, RefusesUntilRestored) {
  FaultCalls calls;
  calls.refuse(CallId::poll, ENOSYS);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(calls.poll(nullptr, 0, 0), -ENOSYS);
  calls.restore(CallId::poll);
  EXPECT_EQ(calls.poll(nullptr, 0, 0), 0);
}

TEST(FaultCalls, ShortensTransfers) {
  FaultCalls calls;
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  calls.shorten(CallId::send, 2, 3);
  EXPECT_EQ(calls.send(pair[0], "abcdef", 6), 6);
  EXPECT_EQ(calls.send(pair[0], "abcdef", 6), 3);
  EXPECT_EQ(calls.send(pair[0], "abcdef", 6), 6);
  calls.limit(CallId::receive, 4);
  char bytes[16];
  EXPECT_EQ(calls.receive(pair[1], bytes, 16), 4);
  EXPECT_EQ(calls.receive(pair[1], bytes, 2), 2);
  EXPECT_EQ(calls.injected(CallId::receive), 1U);
  calls.close(pair[0]);
  calls.close(pair[1]);
}

TEST(FaultCalls, FailedCloseStillCloses) {
  FaultCalls calls;
  const int fd = calls.event_create();
  calls.fail(CallId::close, 1, EINTR);
  EXPECT_EQ(calls.close(fd), -EINTR);
  EXPECT_EQ(calls.descriptor_flags(fd), -EBADF);
}

TEST(FaultCalls, HookRunsBeforeTheCall) {
  FaultCalls calls;
  std::vector<CallId> seen;
  calls.before = [&](CallId id) {
    EXPECT_EQ(calls.count(id), 0U);
    seen.push_back(id);
  };
  calls.descriptor_flags(-1);
  EXPECT_EQ(seen, std::vector{CallId::descriptor_flags});
}

TEST(FaultCalls, CountsFromSeveralThreads) {
  FaultCalls calls;
  constexpr std::uint64_t rounds = 10'000;
  const auto write = [&] {
    for (std::uint64_t i = 0; i < rounds; ++i) calls.event_write(-1);
  };
  std::thread other(write);
  write();
  other.join();
  EXPECT_EQ(calls.count(CallId::event_write), 2 * rounds);
}

}  // namespace
}  // namespace evix::detail
