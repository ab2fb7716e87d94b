#include <evix/evix.hpp>

#include <array>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/stimulus.hpp"

// What all handles have in common: names, lists, life after the loop, and wrong threads.
namespace evix::test {
namespace {

class Handles : public Conformance {
 protected:
  /** A loop that dies while the handles made by the test live on. */
  std::optional<Loop> own{std::in_place, options()};
};
EVIX_OVER_BACKENDS(Handles);

/** What Handle itself promises, on a handle whose loop is dead. */
void use_base(Handle& handle) {
  EXPECT_TRUE(handle);
  EXPECT_FALSE(handle.active());
  handle.set_name("name");
  EXPECT_EQ(handle.name(), "");
  handle.unreference();
  handle.reference();
  (void)handle.referenced();
}

TEST_P(Handles, ATimerOutlivesItsLoop) {
  Timer timer(*own);
  timer.every(1ms, [] { FAIL(); });
  own.reset();
  use_base(timer);
  timer.after(1ms, [] { FAIL(); });
  timer.every(1ms, [] { FAIL(); });
  timer.after_then_every(1ms, 1ms, [] { FAIL(); });
  timer.at(TimePoint::min(), [] { FAIL(); });
  timer.again();
  timer.stop();
  EXPECT_EQ(timer.remaining(), 0ns);
  EXPECT_EQ(timer.missed_ticks(), 0U);
  EXPECT_FALSE(timer.active());
  const Timer moved = std::move(timer);
}

TEST_P(Handles, AWatcherOutlivesItsLoop) {
  const OwnDescriptor descriptor = readable_descriptor();
  Watcher watcher(*own);
  if (!is_sim()) {
    ASSERT_TRUE(watcher.start(descriptor.get(), Ready::readable, [](Ready) { FAIL(); }));
  }
  own.reset();
  use_base(watcher);
  const auto fail = [](Ready) { FAIL(); };
  EXPECT_EQ(watcher.start(descriptor.get(), Ready::readable, fail).error(), Errc::closed);
  EXPECT_EQ(watcher.once(descriptor.get(), Ready::readable, fail).error(), Errc::closed);
  EXPECT_EQ(watcher.set_interest(Ready::readable).error(), Errc::closed);
  watcher.stop();
  EXPECT_EQ(watcher.handle(), no_handle);
}

TEST_P(Handles, ASignalWatcherOutlivesItsLoop) {
  SignalWatcher watcher(*own);
  ASSERT_TRUE(watcher.start(SIGUSR1, [](int) { FAIL(); }));
  EXPECT_EQ(watcher.signal(), SIGUSR1);
  own.reset();
  use_base(watcher);
  EXPECT_EQ(watcher.start(SIGUSR1, [](int) { FAIL(); }).error(), Errc::closed);
  EXPECT_EQ(watcher.once(SIGUSR1, [](int) { FAIL(); }).error(), Errc::closed);
  watcher.stop();
  EXPECT_EQ(watcher.signal(), 0);
}

TEST_P(Handles, AListenerOutlivesItsLoop) {
  TcpListener listener(*own);
  const auto fail = [](Result<TcpStream>) { FAIL(); };
  ASSERT_TRUE(listener.listen("127.0.0.1:0", fail));
  own.reset();
  use_base(listener);
  EXPECT_EQ(listener.listen("127.0.0.1:0").error(), Errc::closed);
  EXPECT_EQ(listener.listen(Address::parse("127.0.0.1:0").value()).error(), Errc::closed);
  EXPECT_EQ(listener.listen("127.0.0.1:0", fail).error(), Errc::closed);
  listener.accept_start(fail);
  listener.accept(fail);
  listener.accept_stop();
  EXPECT_EQ(listener.local_address().error(), Errc::closed);
  EXPECT_EQ(listener.native(), no_handle);
  EXPECT_TRUE(listener.closed());
  listener.close();
}

TEST_P(Handles, AStreamOutlivesItsLoop) {
  TcpPair pair;
  ASSERT_TRUE(pair.open(*own));
  TcpStream& stream = pair.server;
  std::array<std::byte, 8> bytes{};
  auto guard = std::make_shared<int>(7);
  const auto done = [guard](Result<void>) { FAIL(); };
  const auto received = [guard](Result<Buffer>) { FAIL(); };
  stream.receive(received);
  own.reset();
  use_base(stream);
  stream.connect("127.0.0.1:1", done);
  stream.connect(Address::parse("127.0.0.1:1").value(), done);
  stream.receive(received);
  stream.receive_start(received);
  stream.receive_stop();
  stream.receive_into(bytes, [guard](Result<std::size_t>) { FAIL(); });
  stream.send(bytes, done);
  stream.send(Buffer(), done);
  EXPECT_EQ(stream.send_copy("x").error(), Errc::closed);
  EXPECT_EQ(stream.try_send(bytes).error(), Errc::closed);
  stream.shutdown_send(done);
  stream.set_water_marks({}, [](WaterMark) { FAIL(); });
  EXPECT_EQ(stream.send_queue_bytes(), 0U);
  stream.set_receive_timeout(1s);
  stream.set_send_timeout(1s);
  EXPECT_EQ(stream.set_no_delay(true).error(), Errc::closed);
  EXPECT_EQ(stream.set_keep_alive(1s).error(), Errc::closed);
  EXPECT_EQ(stream.local_address().error(), Errc::closed);
  EXPECT_EQ(stream.peer_address().error(), Errc::closed);
  EXPECT_EQ(stream.native(), no_handle);
  EXPECT_FALSE(stream.connected());
  EXPECT_TRUE(stream.closed());
  stream.close();
  stream.close([guard] { FAIL(); });
  stream.close_gracefully({}, [guard] { FAIL(); });
  stream.abort();
  EXPECT_FALSE(stream.active());
}

TEST_P(Handles, AWakerItsSenderAndAPosterOutliveTheirLoop) {
  int calls = 0;
  Waker waker(*own, [&] { ++calls; });
  const WakeSender sender = waker.sender();
  const Poster poster = own->poster();
  EXPECT_TRUE(sender.wake());
  own.reset();
  use_base(waker);
  EXPECT_FALSE(sender.wake());
  EXPECT_FALSE(waker.sender().wake());
  waker.stop();
  auto payload = std::make_shared<int>(7);
  const auto posted = poster.post([payload] { FAIL(); });
  EXPECT_EQ(posted.error(), Errc::closed);
  EXPECT_EQ(payload.use_count(), 1) << "destroyed before post() returns";
  poster.wake();
  EXPECT_EQ(Poster().post([] {}).error(), Errc::closed) << "an empty poster";
  Poster().wake();
  EXPECT_EQ(calls, 0);
}

// ---- Lists -------------------------------------------------------------------------------------

TEST_P(Handles, NamesAndReferences) {
  Timer timer(loop);
  EXPECT_EQ(timer.name(), "");
  timer.set_name("heartbeat");
  EXPECT_EQ(timer.name(), "heartbeat");
  timer.set_name(std::string(1000, 'n'));
  EXPECT_EQ(timer.name(), std::string(1000, 'n'));
  timer.set_name("");
  EXPECT_EQ(timer.name(), "");
  EXPECT_TRUE(timer.referenced());
  EXPECT_FALSE(Waker(loop, [] {}).referenced());
}

TEST_P(Handles, TheListHasEachWithWhatItWaitsFor) {
  Timer idle(loop);
  Timer timer(loop);
  timer.set_name("heartbeat");
  const auto line = std::source_location::current().line() + 1;
  timer.after(1h, [] {});
  SignalWatcher signal(loop);
  ASSERT_TRUE(signal.start(SIGUSR2, [](int) {}));
  Waker waker(loop, [] {});
  waker.set_name("waker");
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0", [](Result<TcpStream>) {}));
  const std::vector<HandleInfo> infos = loop.handles();
  EXPECT_EQ(infos.size(), 5U);
  EXPECT_EQ(loop.counters().handles, 5U);
  for (const HandleInfo& info : infos) {
    SCOPED_TRACE(to_string(info.kind));
    const bool started = info.active;
    EXPECT_EQ(info.location.line() != 0, started);
    EXPECT_EQ(!info.waits_for.empty(), started);
    if (started) {
      EXPECT_TRUE(std::string_view(info.location.file_name()).ends_with("handle_test.cpp"));
    }
    if (info.name == "heartbeat") {
      EXPECT_EQ(info.kind, HandleKind::timer);
      EXPECT_EQ(info.location.line(), line);
      EXPECT_EQ(info.waits_for, "deadline in 3600000 ms");
      EXPECT_TRUE(info.referenced);
    }
    if (info.kind == HandleKind::signal) {
      EXPECT_EQ(info.handle, SIGUSR2);
      EXPECT_EQ(info.waits_for, "signal 12");
    }
    if (info.kind == HandleKind::waker) {
      EXPECT_FALSE(info.referenced);
    }
    if (info.kind == HandleKind::listener) {
      EXPECT_EQ(info.handle, listener.native());
    }
  }
  {
    const Timer gone = std::move(timer);
  }
  EXPECT_EQ(loop.handles().size(), 4U);
}

// ---- Wrong threads and other misuse end the process with a message -----------------------------

class Misuse : public Conformance {
 protected:
  Misuse() { testing::FLAGS_gtest_death_test_style = "fast"; }
  /** Calls from another thread while this one runs the loop. */
  void from_another_thread(const std::function<void()>& call) {
    (void)loop.after_fork();  // a death test runs in a child
    loop.post([&call] { std::thread(call).join(); });
    loop.run_ready();
  }
};
EVIX_OVER_BACKENDS(Misuse);

#define EXPECT_WRONG_THREAD(call, message) \
  EXPECT_DEATH(from_another_thread([&] { call; }), "^evix: " message "\n")

TEST_P(Misuse, HandlesFromAWrongThread) {
  Timer timer(loop);
  Watcher watcher(loop);
  SignalWatcher signal(loop);
  TcpListener listener(loop);
  TcpStream stream(loop);
  Waker waker(loop, [] {});
  EXPECT_WRONG_THREAD(timer.after(1ms, [] {}),
                      "a timer was used by a thread that does not run its loop");
  EXPECT_WRONG_THREAD((void)watcher.start(0, Ready::readable, [](Ready) {}),
                      "a watcher was used by a thread that does not run its loop");
  EXPECT_WRONG_THREAD((void)signal.start(SIGUSR1, [](int) {}),
                      "a signal watcher was used by a thread that does not run its loop");
  EXPECT_WRONG_THREAD((void)listener.listen("127.0.0.1:0"),
                      "a listener was used by a thread that does not run its loop");
  EXPECT_WRONG_THREAD(stream.receive([](Result<Buffer>) {}),
                      "a stream was used by a thread that does not run its loop");
  EXPECT_WRONG_THREAD(waker.stop(), "a waker was used by a thread that does not run its loop");
  EXPECT_WRONG_THREAD((void)timer.active(),
                      "a handle was used by a thread that does not run its loop");
  EXPECT_WRONG_THREAD(timer = Timer(),
                      "a handle was destroyed by a thread that does not run its loop");
}

TEST_P(Misuse, TheLoopFromAWrongThread) {
  KeepAlive alive = loop.keep_alive();
  EXPECT_WRONG_THREAD((void)loop.now(), "now\\(\\) from a thread that does not run the loop");
  EXPECT_WRONG_THREAD(loop.update_now(),
                      "update_now\\(\\) from a thread that does not run the loop");
  EXPECT_WRONG_THREAD((void)loop.handles(),
                      "handles\\(\\) from a thread that does not run the loop");
  EXPECT_WRONG_THREAD((void)loop.keep_alive(),
                      "keep_alive\\(\\) from a thread that does not run the loop");
  EXPECT_WRONG_THREAD(loop.set_wait_hooks({}, {}),
                      "set_wait_hooks\\(\\) from a thread that does not run the loop");
  EXPECT_WRONG_THREAD((void)loop.after_fork(),
                      "after_fork\\(\\) from a thread that does not run the loop");
  EXPECT_WRONG_THREAD(Loop(std::move(loop)), "a loop was destroyed while another thread runs it");
  EXPECT_WRONG_THREAD(alive = KeepAlive();
                      KeepAlive(std::move(alive)),
                      "a KeepAlive was destroyed by a thread that does not run its loop");
}

TEST_P(Misuse, EmptyHandlesAndLoops) {
  EXPECT_DEATH(Timer().stop(), "^evix: an empty timer was used\n");
  EXPECT_DEATH(Watcher().stop(), "^evix: an empty watcher was used\n");
  EXPECT_DEATH(SignalWatcher().stop(), "^evix: an empty signal watcher was used\n");
  EXPECT_DEATH(TcpListener().close(), "^evix: an empty listener was used\n");
  EXPECT_DEATH(TcpStream().close(), "^evix: an empty stream was used\n");
  EXPECT_DEATH(Waker().stop(), "^evix: an empty waker was used\n");
  EXPECT_DEATH((void)Timer().active(), "^evix: an empty handle was used\n");
}

TEST_P(Misuse, TheLoopDestroyedInACallback) {
  EXPECT_DEATH(
      {
        (void)loop.after_fork();
        loop.post([this] { Loop gone(std::move(loop)); });
        loop.run();
      },
      "^evix: a loop was destroyed inside one of its callbacks\n");
}

}  // namespace
}  // namespace evix::test
