#include <evix/evix.hpp>

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>

// A callback ran the loop, and the inner run found the same handle ready again: it called an empty
// callback, or let go of the one that was still running.
namespace evix::test {
namespace {

using namespace std::chrono_literals;

TEST(NestedRunSameHandle, Timer) {
  Loop loop;
  Timer timer{loop};
  int calls = 0;
  int depth = 0;
  int depth_max = 0;
  timer.every(1ms, [&] {
    depth_max = std::max(depth_max, ++depth);
    if (++calls < 3) loop.run_once();
    if (calls >= 3) timer.stop();
    --depth;
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(depth_max, 3);
}

TEST(NestedRunSameHandle, Watcher) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  Loop loop;
  Watcher watcher{loop};
  int calls = 0;
  ASSERT_TRUE(watcher.start(ends[0], Ready::readable, [&](Ready) {
    if (++calls < 3) loop.run_ready();
    watcher.stop();
  }));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 3);
  close(ends[0]);
  close(ends[1]);
}

TEST(NestedRunSameHandle, WakerAndSignal) {
  Loop loop;
  int wakes = 0;
  int signals = 0;
  Waker waker;
  SignalWatcher watcher{loop};
  waker = Waker(loop, [&] {
    if (++wakes == 1) {
      waker.sender().wake();
      loop.run_ready();
    }
  });
  ASSERT_TRUE(watcher.start(SIGUSR1, [&](int) {
    if (++signals == 1) {
      std::raise(SIGUSR1);
      loop.run_ready();
    }
  }));
  waker.sender().wake();
  std::raise(SIGUSR1);
  loop.run_ready();
  EXPECT_EQ(wakes, 2);
  EXPECT_EQ(signals, 2);
}

// The inner run delivered the end of the stream and destroyed the callback that was running.
TEST(NestedRunSameHandle, StreamEndsInside) {
  Loop loop{LoopOptions{.backend = BackendKind::sim}};
  TcpListener listener{loop};
  TcpStream client{loop};
  TcpStream server;
  auto captured = std::make_shared<std::string>("alive");
  std::weak_ptr<std::string> watch = captured;
  std::string after_nested;
  int calls = 0;
  ASSERT_TRUE(listener.listen("127.0.0.1:0", [&](Result<TcpStream> peer) {
    server = std::move(*peer);
    server.receive_start([&, captured = std::move(captured)](const Result<Buffer>& bytes) {
      ++calls;
      if (!bytes || bytes->empty()) return;
      client.close();
      loop.run_once();
      after_nested = watch.expired() ? "destroyed" : *captured;
    });
  }));
  client.connect(*listener.local_address(), [&](const Result<void>& connected) {
    ASSERT_TRUE(connected);
    ASSERT_TRUE(client.send_copy("x"));
  });
  for (int turn = 0; turn < 20 && calls < 2; ++turn) loop.run_once(10ms);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(after_nested, "alive");
  loop.run_ready();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace evix::test
