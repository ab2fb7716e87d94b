#include <evix/poller.hpp>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

// An edge that came for a direction which the interest had left, in the walk of the same wait, was
// dropped; when the interest took the direction back before the next wait nothing changed for the
// kernel, and the edge never came again.
namespace evix::test {
namespace {

TEST(PausedInWalkLosesEdge, ResumedBeforeTheNextWait) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  auto poller = Poller::create({.kind = BackendKind::epoll});
  ASSERT_TRUE(poller);
  const auto id = poller->add_now(ends[0], Ready::readable | Ready::writable, Trigger::edge, 7);
  ASSERT_TRUE(id);
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  ASSERT_EQ(*poller->wait(Duration::zero()), 1U);
  ASSERT_TRUE(poller->modify(*id, Ready::writable, Trigger::edge));
  const auto narrowed = poller->next();
  ASSERT_TRUE(narrowed);
  EXPECT_EQ(narrowed->ready, Ready::writable);
  ASSERT_TRUE(poller->modify(*id, Ready::readable | Ready::writable, Trigger::edge));
  ASSERT_EQ(*poller->wait(Duration::zero()), 1U);
  const auto again = poller->next();
  ASSERT_TRUE(again);
  EXPECT_TRUE(any(again->ready, Ready::readable));
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace evix::test
