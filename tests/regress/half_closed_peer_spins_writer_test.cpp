#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>

#include "backend/conformance.hpp"

/** @file
 * A full socket was watched for room, and its peer shut its side: io_uring's polls say POLLRDHUP
 * whether asked or not, so the one shot of a level-triggered watcher came back at once, was not
 * what the watcher waits for, and was made again, 100,000 times a second. Found by
 * Resting.EveryStateRests.
 */
namespace evix::test {
namespace {

class HalfClosedPeer : public Conformance {
 protected:
  HalfClosedPeer() {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends_.data()),
              0);
    const std::string bytes(4096, 'x');
    while (::write(here(), bytes.data(), bytes.size()) > 0) {
    }
    EXPECT_EQ(::shutdown(peer(), SHUT_WR), 0);
  }
  ~HalfClosedPeer() override {
    for (const int end : ends_) ::close(end);
  }
  int here() const { return ends_[0]; }
  int peer() const { return ends_[1]; }
  void make_room() const {
    std::string bytes(4096, '\0');
    while (::read(peer(), bytes.data(), bytes.size()) > 0) {
    }
  }
  /** Of 300 ms with nothing to do. */
  std::uint64_t idle_turns() {
    const KeepAlive keep = loop.keep_alive();
    const std::uint64_t before = loop.counters().turns;
    EXPECT_EQ(loop.run_for(300ms), 0);
    return loop.counters().turns - before;
  }

  Ready told = Ready::none;
  int calls = 0;
  Watcher watcher{loop};

 private:
  std::array<int, 2> ends_{-1, -1};
};
INSTANTIATE_TEST_SUITE_P(Backends, HalfClosedPeer,
                         testing::ValuesIn(offered({BackendKind::epoll, BackendKind::poll,
                                                    BackendKind::io_uring})),
                         backend_name);

TEST_P(HalfClosedPeer, WatcherForRoomRests) {
  ASSERT_TRUE(watcher.start(here(), Ready::writable, [&](Ready) { ++calls; }));
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_LE(idle_turns(), 2U);
  EXPECT_EQ(calls, 0);
}

TEST_P(HalfClosedPeer, RoomIsToldAsLongAsThereIsSome) {
  ASSERT_TRUE(watcher.start(here(), Ready::writable, [&](Ready ready) {
    told |= ready;
    ++calls;
  }));
  for (int round = 1; round <= 3; ++round) {
    for (int i = 0; i < 5; ++i) ASSERT_EQ(loop.run_ready(), 0);
    ASSERT_EQ(calls, 0) << "round " << round;
    make_room();
    while (calls < 5) ASSERT_EQ(loop.run_once(5s), 0);
    EXPECT_EQ(told, Ready::writable);
    const std::string bytes(4096, 'x');
    while (::write(here(), bytes.data(), bytes.size()) > 0) {
    }
    for (int i = 0; i < 5; ++i) ASSERT_EQ(loop.run_ready(), 0);
    calls = 0;
  }
  EXPECT_LE(idle_turns(), 2U);
}

TEST_P(HalfClosedPeer, OtherInterestIsToldAtOnce) {
  ASSERT_TRUE(watcher.start(here(), Ready::writable, [&](Ready ready) {
    told |= ready;
    ++calls;
  }));
  for (int i = 0; i < 5; ++i) ASSERT_EQ(loop.run_ready(), 0);
  ASSERT_TRUE(watcher.set_interest(Ready::readable));
  while (calls < 3) ASSERT_EQ(loop.run_once(5s), 0);
  EXPECT_TRUE(any(told, Ready::read_closed));
  ASSERT_TRUE(watcher.set_interest(Ready::writable));
  calls = 0;
  for (int i = 0; i < 5; ++i) ASSERT_EQ(loop.run_ready(), 0);
  EXPECT_LE(idle_turns(), 2U);
  EXPECT_EQ(calls, 0);
}

TEST_P(HalfClosedPeer, StoppedWatcherIsNotToldOfRoom) {
  ASSERT_TRUE(watcher.start(here(), Ready::writable, [&](Ready) { ++calls; }));
  for (int i = 0; i < 5; ++i) ASSERT_EQ(loop.run_ready(), 0);
  make_room();
  watcher.stop();
  for (int i = 0; i < 5; ++i) ASSERT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace evix::test
