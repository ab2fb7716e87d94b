#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <utility>

// A moved-from loop was used through a null pointer, and an empty callback that was posted was
// called: the program died of a signal in the library, without the words that every other mistake
// gets.
namespace evix::test {
namespace {

TEST(MisuseWithoutMessageDeathTest, EmptyCallbackPosted) {
  Loop loop;
  const char* message = "evix: .*an empty callback was posted";
  EXPECT_DEATH(loop.post(nullptr), message);
  EXPECT_DEATH(loop.post(PostCallback()), message);
  EXPECT_DEATH((void)loop.poster().post(nullptr), message);
}

TEST(MisuseWithoutMessageDeathTest, EmptyCallbackPostedToLoopThread) {
  EXPECT_DEATH(
      {
        LoopThread thread;
        (void)thread.post({});
      },
      "evix: .*an empty callback was posted");
}

TEST(MisuseWithoutMessageDeathTest, MovedFromLoop) {
  Loop loop;
  const Loop other = std::move(loop);
  const char* message = "evix: .*a moved-from loop was used";
  EXPECT_DEATH(loop.run(), message);
  EXPECT_DEATH(loop.run_once(), message);
  EXPECT_DEATH(loop.run_ready(), message);
  EXPECT_DEATH(loop.run_for(Duration::zero()), message);
  EXPECT_DEATH(loop.stop(), message);
  EXPECT_DEATH(loop.stop_all(), message);
  EXPECT_DEATH(loop.clear_stop(), message);
  EXPECT_DEATH((void)loop.running(), message);
  EXPECT_DEATH((void)loop.alive(), message);
  EXPECT_DEATH(loop.post([] {}), message);
  EXPECT_DEATH(loop.wake(), message);
  EXPECT_DEATH((void)loop.poster(), message);
  EXPECT_DEATH((void)loop.keep_alive(), message);
  EXPECT_DEATH((void)loop.now(), message);
  EXPECT_DEATH((void)loop.counters(), message);
  EXPECT_DEATH((void)loop.backend(), message);
  EXPECT_DEATH((void)loop.after_fork(), message);
  EXPECT_DEATH(loop.set_user_data(nullptr), message);
  EXPECT_DEATH(Timer timer(loop), message);
}

TEST(MisuseWithoutMessageDeathTest, MovedFromHandle) {
  Loop loop;
  Timer timer(loop);
  Watcher watcher(loop);
  SignalWatcher signals(loop);
  TcpStream stream(loop);
  TcpListener listener(loop);
  Waker waker(loop, [] {});
  const Timer timer_now = std::move(timer);
  const Watcher watcher_now = std::move(watcher);
  const SignalWatcher signals_now = std::move(signals);
  const TcpStream stream_now = std::move(stream);
  const TcpListener listener_now = std::move(listener);
  const Waker waker_now = std::move(waker);
  const char* message = "evix: .*an empty .* was used";
  EXPECT_DEATH(timer.after(Duration(1), [] {}), message);
  EXPECT_DEATH(timer.stop(), message);
  EXPECT_DEATH((void)timer.active(), message);
  EXPECT_DEATH((void)watcher.start(0, Ready::readable, [](Ready) {}), message);
  EXPECT_DEATH(watcher.stop(), message);
  EXPECT_DEATH((void)signals.start(1, [](int) {}), message);
  EXPECT_DEATH(signals.stop(), message);
  EXPECT_DEATH(stream.close(), message);
  EXPECT_DEATH((void)stream.send_copy("x"), message);
  EXPECT_DEATH((void)stream.closed(), message);
  EXPECT_DEATH((void)listener.listen("127.0.0.1:0"), message);
  EXPECT_DEATH(listener.close(), message);
  EXPECT_DEATH((void)waker.sender(), message);
}

}  // namespace
}  // namespace evix::test
