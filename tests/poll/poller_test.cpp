#include <evix/poller.hpp>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace evix {
namespace {

TEST(Smoke, Works) {
  for (auto kind : {BackendKind::epoll, BackendKind::poll}) {
    PollerOptions options;
    options.kind = kind;
    auto poller = Poller::create(std::move(options));
    ASSERT_TRUE(poller);
    EXPECT_EQ(poller->kind(), kind);
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    auto id = poller->add(pair[0], Ready::readable, Trigger::level, 42);
    ASSERT_TRUE(id);
    EXPECT_EQ(poller->wait(Duration::zero()), 0U);
    ASSERT_EQ(::write(pair[1], "x", 1), 1);
    EXPECT_EQ(poller->wait(forever), 1U);
    auto event = poller->next();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->token, 42U);
    EXPECT_EQ(event->id, *id);
    EXPECT_EQ(event->ready, Ready::readable);
    EXPECT_FALSE(poller->next());
    EXPECT_TRUE(poller->remove(*id));
    EXPECT_EQ(poller->remove(*id).error(), Errc::stale_handle);
    EXPECT_EQ(poller->wait(Duration::zero()), 0U);
    ::close(pair[0]);
    ::close(pair[1]);
  }
}

}  // namespace
}  // namespace evix
