#include <evix/evix.hpp>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <vector>

#include "support/offered.hpp"

// A program closed a descriptor that it still watched, and a descriptor that the library made got
// the number: over poll(2), which cannot tell, it was refused as registered already. With the wake
// descriptor run() failed for ever.
namespace evix::test {
namespace {

using namespace std::chrono_literals;

class ClosedWatchedNumberReused : public testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    ASSERT_GE(number, 0);
    ASSERT_TRUE(
        watcher.start(number, Ready::readable, [this](Ready ready) { calls.push_back(ready); }));
  }
  void TearDown() override { close(writer); }
  static std::array<int, 2> make_pipe() {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(pipe(ends.data()), 0);
    return ends;
  }
  // Before the loop, so that what it makes later gets the lower number.
  const std::array<int, 2> ends = make_pipe();
  const int number = ends[0];
  const int writer = ends[1];
  Loop loop{LoopOptions{.backend = GetParam()}};
  Watcher watcher{loop};
  std::vector<Ready> calls;
};
INSTANTIATE_TEST_SUITE_P(Backends, ClosedWatchedNumberReused,
                         testing::ValuesIn(offered({BackendKind::epoll, BackendKind::poll,
                                                    BackendKind::io_uring})));

TEST_P(ClosedWatchedNumberReused, ByTheWakeDescriptor) {
  EXPECT_EQ(loop.run_ready(), 0);
  close(number);  // after_fork() makes the wake descriptor anew
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool made = loop.after_fork().has_value();
    const bool waited = loop.run_once(10ms) == 0 && loop.run_once(10ms) == 0;
    const bool told = calls == std::vector<Ready>{Ready::invalid} && !watcher.active();
    _exit(made && waited && told ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// By a socket that the library makes: its first operation was refused once.
TEST_P(ClosedWatchedNumberReused, ByAListener) {
  EXPECT_EQ(loop.run_ready(), 0);
  close(number);
  TcpListener listener(loop);
  std::vector<std::error_code> errors;
  int accepted = 0;
  ASSERT_TRUE(listener.listen("127.0.0.1:0", [&](const Result<TcpStream>& stream) {
    if (!stream) errors.push_back(stream.error().code());
    if (stream) ++accepted;
  }));
  ASSERT_EQ(listener.native(), number);
  TcpStream client(loop);
  client.connect(*listener.local_address(), {}, [](const Result<void>&) {});
  while (accepted == 0 && errors.empty()) ASSERT_EQ(loop.run_once(1s), 0);
  EXPECT_EQ(errors, std::vector<std::error_code>{});
  EXPECT_EQ(calls, std::vector<Ready>{Ready::invalid});
  EXPECT_FALSE(watcher.active());
}

TEST_P(ClosedWatchedNumberReused, ByAConnectingStream) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0", [](const Result<TcpStream>&) {}));
  EXPECT_EQ(loop.run_ready(), 0);
  close(number);
  TcpStream client(loop);
  std::vector<bool> connected;
  client.connect(*listener.local_address(), {},
                 [&](const Result<void>& done) { connected.push_back(done.has_value()); });
  ASSERT_EQ(client.native(), number);
  while (connected.empty()) ASSERT_EQ(loop.run_once(1s), 0);
  EXPECT_EQ(connected, std::vector<bool>{true});
  EXPECT_EQ(calls, std::vector<Ready>{Ready::invalid});
}

}  // namespace
}  // namespace evix::test
