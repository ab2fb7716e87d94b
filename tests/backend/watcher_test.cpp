#include <evix/evix.hpp>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/stimulus.hpp"

// Watchers: what watcher.hpp promises. The traps are in watcher_trap_test.cpp.
namespace evix::test {
namespace {

class Watchers : public Conformance {
 protected:
  void SetUp() override {
    EVIX_SKIP_ON(BackendKind::sim, "watches real descriptors");
    Conformance::SetUp();
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    here = OwnDescriptor(ends[0]);
    there = OwnDescriptor(ends[1]);
  }
  void give_byte() { ASSERT_EQ(write(there.get(), "x", 1), 1); }
  void take_byte() {
    char byte = 0;
    ASSERT_EQ(read(here.get(), &byte, 1), 1);
  }

  OwnDescriptor here;
  OwnDescriptor there;
};
EVIX_OVER_BACKENDS(Watchers);

TEST_P(Watchers, PersistentCallsOnceATurnWhileReady) {
  Watcher watcher(loop);
  EXPECT_EQ(watcher.handle(), no_handle);
  std::vector<Ready> calls;
  ASSERT_TRUE(watcher.start(here.get(), Ready::readable, [&](Ready r) { calls.push_back(r); }));
  EXPECT_TRUE(watcher.active());
  EXPECT_EQ(watcher.handle(), here.get());
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls.size(), 0U);
  give_byte();
  for (int turn = 0; turn < 3; ++turn) EXPECT_EQ(loop.run_once(), 0);
  EXPECT_EQ(calls, std::vector<Ready>(3, Ready::readable));
  take_byte();
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls.size(), 3U);
  watcher.stop();
  watcher.stop();
  EXPECT_FALSE(watcher.active());
  EXPECT_EQ(watcher.handle(), no_handle);
  give_byte();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls.size(), 3U);
}

TEST_P(Watchers, OneShotFiresOnceThenIsGone) {
  Watcher watcher(loop);
  int calls = 0;
  ASSERT_TRUE(watcher.once(here.get(), Ready::readable, [&](Ready) {
    ++calls;
    EXPECT_FALSE(watcher.active()) << "stopped when its callback runs";
    EXPECT_EQ(watcher.handle(), no_handle);
  }));
  give_byte();
  EXPECT_EQ(loop.run(), 0) << "nothing is left after the call";
  EXPECT_EQ(calls, 1);
}

TEST_P(Watchers, OneShotMayBeStartedAgainInItsCallback) {
  Watcher watcher(loop);
  int calls = 0;
  std::function<void(Ready)> again = [&](Ready) {
    if (++calls == 5) return;
    ASSERT_TRUE(watcher.once(here.get(), Ready::readable, again));
  };
  ASSERT_TRUE(watcher.once(here.get(), Ready::readable, again));
  give_byte();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(loop.counters().turns, 5U) << "once a turn";
}

TEST_P(Watchers, AllBitsOfATurnComeTogether) {
  Watcher watcher(loop);
  Ready got = Ready::none;
  ASSERT_TRUE(
      watcher.once(here.get(), Ready::readable | Ready::writable, [&](Ready r) { got = r; }));
  give_byte();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(got, Ready::readable | Ready::writable);
}

TEST_P(Watchers, SeveralOnOneDescriptorGetWhatTheyAskedFor) {
  Watcher reader(loop);
  Watcher writer(loop);
  Watcher both(loop);
  std::array<std::vector<Ready>, 3> calls;
  ASSERT_TRUE(reader.start(here.get(), Ready::readable, [&](Ready r) { calls[0].push_back(r); }));
  ASSERT_TRUE(writer.start(here.get(), Ready::writable, [&](Ready r) { calls[1].push_back(r); }));
  EXPECT_EQ(loop.run_once(), 0);
  EXPECT_TRUE(calls[0].empty());
  EXPECT_EQ(calls[1], std::vector<Ready>{Ready::writable});
  give_byte();
  ASSERT_TRUE(both.once(here.get(), Ready::readable | Ready::writable,
                        [&](Ready r) { calls[2].push_back(r); }));
  EXPECT_EQ(loop.run_once(), 0);
  EXPECT_EQ(calls[0], std::vector<Ready>{Ready::readable});
  EXPECT_EQ(calls[1], (std::vector<Ready>{Ready::writable, Ready::writable}));
  EXPECT_EQ(calls[2], std::vector<Ready>{Ready::readable | Ready::writable});
  writer.stop();
  take_byte();
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls[0].size(), 1U);
  EXPECT_EQ(calls[1].size(), 2U) << "the union shrank with the writer";
  EXPECT_TRUE(rests());
}

TEST_P(Watchers, SetInterestKeepsTheCallback) {
  Watcher watcher(loop);
  std::vector<Ready> calls;
  EXPECT_EQ(watcher.set_interest(Ready::readable).error(), Errc::closed) << "not started";
  ASSERT_TRUE(watcher.start(here.get(), Ready::readable, [&](Ready r) { calls.push_back(r); }));
  ASSERT_TRUE(watcher.set_interest(Ready::writable));
  EXPECT_EQ(loop.run_once(), 0);
  ASSERT_TRUE(watcher.set_interest(Ready::none));
  give_byte();
  EXPECT_EQ(loop.run_ready(), 0);
  ASSERT_TRUE(watcher.set_interest(Ready::readable));
  EXPECT_EQ(loop.run_once(), 0);
  EXPECT_EQ(calls, (std::vector<Ready>{Ready::writable, Ready::readable}));
}

TEST_P(Watchers, SetInterestInTheCallback) {
  Watcher watcher(loop);
  std::vector<Ready> calls;
  ASSERT_TRUE(watcher.start(here.get(), Ready::readable, [&](Ready r) {
    calls.push_back(r);
    ASSERT_TRUE(watcher.set_interest(any(r, Ready::readable) ? Ready::writable : Ready::none));
  }));
  give_byte();
  for (int turn = 0; turn < 4; ++turn) EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, (std::vector<Ready>{Ready::readable, Ready::writable}));
}

TEST_P(Watchers, StartingAStartedWatcherRestartsIt) {
  const OwnDescriptor other = readable_descriptor();
  Watcher watcher(loop);
  int first = 0;
  int second = 0;
  give_byte();
  ASSERT_TRUE(watcher.start(here.get(), Ready::readable, [&](Ready) { ++first; }));
  ASSERT_TRUE(watcher.start(other.get(), Ready::readable, [&](Ready) { ++second; }));
  EXPECT_EQ(loop.run_once(), 0);
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 1);
  EXPECT_EQ(loop.counters().handles_active, 1U);
}

TEST_P(Watchers, HangUpGoesToEveryWatcherWhateverItAskedFor) {
  Watcher writer(loop);
  Watcher reader(loop);
  Ready to_writer = Ready::none;
  Ready to_reader = Ready::none;
  there.reset();
  ASSERT_TRUE(writer.once(here.get(), Ready::writable, [&](Ready r) { to_writer = r; }));
  ASSERT_TRUE(reader.once(here.get(), Ready::readable, [&](Ready r) { to_reader = r; }));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_TRUE(any(to_writer, Ready::hangup));
  EXPECT_TRUE(any(to_reader, Ready::hangup));
  EXPECT_TRUE(any(to_reader, Ready::readable)) << "the end can be read";
}

TEST_P(Watchers, PeerHalfCloseIsReadClosed) {
  Watcher reader(loop);
  Ready got = Ready::none;
  ASSERT_EQ(shutdown(there.get(), SHUT_WR), 0);
  ASSERT_TRUE(reader.once(here.get(), Ready::readable, [&](Ready r) { got = r; }));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(got, Ready::readable | Ready::read_closed);
}

TEST_P(Watchers, DescriptorsThatCannotBeWatchedAreAnErrorAtOnce) {
  const OwnDescriptor path(open("/", O_PATH | O_CLOEXEC));
  ASSERT_GE(path.get(), 0);
  const int closed = dup(here.get());
  close(closed);
  Watcher watcher(loop);
  for (const int bad : {-1, INT_MIN, closed, INT_MAX, 1'000'000'000, path.get()}) {
    for (const Ready interest : {Ready::readable, Ready::writable, Ready::none}) {
      const auto started = watcher.start(bad, interest, [](Ready) { FAIL(); });
      ASSERT_FALSE(started) << bad;
      EXPECT_EQ(started.error(), std::errc::bad_file_descriptor) << bad;
      EXPECT_EQ(started.error().message(),
                "watch descriptor " + std::to_string(bad) + ": bad file descriptor");
      EXPECT_FALSE(watcher.active());
      EXPECT_EQ(watcher.handle(), no_handle);
    }
    EXPECT_EQ(watcher.once(bad, Ready::readable, [](Ready) { FAIL(); }).error(),
              std::errc::bad_file_descriptor);
  }
  EXPECT_EQ(loop.run(), 0) << "the failure leaves nothing behind";
  int calls = 0;
  give_byte();
  ASSERT_TRUE(watcher.once(here.get(), Ready::readable, [&](Ready) { ++calls; }));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 1) << "the same watcher works afterwards";
}

TEST_P(Watchers, AFailedRestartStopsTheWatcher) {
  Watcher watcher(loop);
  give_byte();
  ASSERT_TRUE(watcher.start(here.get(), Ready::readable, [](Ready) { FAIL(); }));
  EXPECT_FALSE(watcher.start(-1, Ready::readable, [](Ready) { FAIL(); }));
  EXPECT_FALSE(watcher.active());
  EXPECT_EQ(loop.run(), 0);
}

TEST_P(Watchers, ADescriptorOfAStreamIsAlreadyRegistered) {
  TcpPair pair;
  ASSERT_TRUE(pair.open(loop));
  pair.server.receive([](Result<Buffer>) {});
  EXPECT_EQ(loop.run_ready(), 0);
  Watcher watcher(loop);
  const auto started = watcher.start(pair.server.native(), Ready::readable, [](Ready) { FAIL(); });
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error(), Errc::already_registered);
}

TEST_P(Watchers, AWatcherMayMoveAndDieInItsCallback) {
  auto watcher = std::make_unique<Watcher>(loop);
  auto guard = std::make_shared<int>(7);
  const std::weak_ptr<int> watch = guard;
  int calls = 0;
  give_byte();
  ASSERT_TRUE(watcher->start(here.get(), Ready::readable, [&, guard = std::move(guard)](Ready) {
    ++calls;
    watcher.reset();
    EXPECT_EQ(*guard, 7) << "what the running callback holds lives until it returns";
  }));
  Watcher moved = std::move(*watcher);
  *watcher = std::move(moved);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(watch.expired());
}

TEST_P(Watchers, AnUnreferencedWatcherDoesNotKeepRunFromReturning) {
  Watcher watcher(loop);
  ASSERT_TRUE(watcher.start(here.get(), Ready::readable, [](Ready) {}));
  watcher.unreference();
  EXPECT_EQ(loop.run(), 0);
}

TEST_P(Watchers, HandlesTellWhatIsWaitedFor) {
  Watcher watcher(loop);
  watcher.set_name("control");
  ASSERT_TRUE(watcher.start(here.get(), Ready::readable | Ready::writable, [](Ready) {}));
  const std::vector<HandleInfo> infos = loop.handles();
  ASSERT_EQ(infos.size(), 1U);
  EXPECT_EQ(infos[0].kind, HandleKind::watcher);
  EXPECT_EQ(infos[0].name, "control");
  EXPECT_EQ(infos[0].handle, here.get());
  EXPECT_EQ(infos[0].waits_for, "readable writable");
  EXPECT_TRUE(std::string_view(infos[0].location.file_name()).ends_with("watcher_test.cpp"));
}

}  // namespace
}  // namespace evix::test
