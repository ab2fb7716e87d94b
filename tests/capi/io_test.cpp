#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "evix.h"
#include "support/offered.hpp"

namespace {

void count(void* data) { ++*static_cast<int*>(data); }

class CIo : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_NE(loop, nullptr) << evix_last_error();
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  }
  void TearDown() override {
    EXPECT_EQ(evix_loop_destroy(loop), 0);
    close(fds[0]);
    close(fds[1]);
  }
  evix_loop_t* loop = evix_loop_create(evix_backend_by_name(GetParam()));
  int fds[2] = {-1, -1};
  int calls = 0;
};

struct Events {
  evix_loop_t* loop;
  evix_io_t* io = nullptr;
  int seen = 0;
  int calls = 0;

  static void note(evix_io_t* io, int events, void* data) {
    auto& self = *static_cast<Events*>(data);
    EXPECT_EQ(io, self.io);
    self.seen = events;
    ++self.calls;
  }
};

TEST_P(CIo, PersistentUntilStopped) {
  evix_io_t* io = evix_io_create(loop, fds[0], EVIX_IO_READ, count, &calls);
  EXPECT_EQ(evix_io_fd(io), fds[0]);
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(calls, 0);
  ASSERT_EQ(write(fds[1], "x", 1), 1);
  EXPECT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
  EXPECT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
  EXPECT_EQ(calls, 2) << "level-triggered: as long as the byte is there";
  EXPECT_EQ(evix_io_stop(loop, io), 0);
  EXPECT_EQ(evix_io_stop(loop, io), EVIX_ESTALE);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 2);
}

TEST_P(CIo, OneShotFiresOnceAndIsGone) {
  evix_io_t* io = evix_io_create(loop, fds[0], EVIX_IO_WRITE | EVIX_IO_ONESHOT, count, &calls);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(evix_io_stop(loop, io), EVIX_ESTALE);
}

TEST_P(CIo, EventsAreTold) {
  Events events{loop};
  events.io = evix_io_create_ex(loop, fds[0], EVIX_IO_READ | EVIX_IO_WRITE, Events::note, &events);
  EXPECT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
  EXPECT_EQ(events.seen, EVIX_IO_WRITE);
  EXPECT_EQ(evix_io_set_events(events.io, EVIX_IO_READ), 0);
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(events.calls, 1);
  ASSERT_EQ(write(fds[1], "x", 1), 1);
  EXPECT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
  EXPECT_EQ(events.seen, EVIX_IO_READ);
  ASSERT_EQ(shutdown(fds[1], SHUT_WR), 0);
  EXPECT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
  EXPECT_EQ(events.seen, EVIX_IO_READ | EVIX_IO_READ_CLOSED);
  EXPECT_EQ(evix_io_set_events(events.io, 0), -EINVAL);
  EXPECT_EQ(evix_io_set_events(events.io, EVIX_IO_ONESHOT), -EINVAL);
}

TEST_P(CIo, StopInsideItsOwnCallback) {
  struct Context {
    evix_loop_t* loop;
    evix_io_t* io;
    int calls = 0;
  } context{loop, nullptr};
  context.io = evix_io_create(
      loop, fds[0], EVIX_IO_WRITE,
      [](void* data) {
        auto& self = *static_cast<Context*>(data);
        ++self.calls;
        EXPECT_EQ(evix_io_stop(self.loop, self.io), 0);
      },
      &context);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(context.calls, 1);
}

TEST_P(CIo, BadDescriptorsAndEvents) {
  for (const int bad : {-1, 999'999, INT32_MAX}) {
    EXPECT_EQ(evix_io_create(loop, bad, EVIX_IO_READ, count, &calls), nullptr);
    EXPECT_EQ(evix_last_error_code(), -EBADF) << bad;
  }
  const int bad_events[] = {0, EVIX_IO_ONESHOT, EVIX_IO_HANGUP, EVIX_IO_READ | 1 << 20, -1};
  for (const int events : bad_events) {
    EXPECT_EQ(evix_io_create(loop, fds[0], events, count, &calls), nullptr);
    EXPECT_EQ(evix_last_error_code(), -EINVAL) << events;
  }
  EXPECT_EQ(evix_loop_run(loop), 0);
}

TEST_P(CIo, RegularFileIsAlwaysReady) {
  const int file = open(EVIX_SOURCE_DIR "/include/evix.h", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  evix_io_create(loop, file, EVIX_IO_READ | EVIX_IO_ONESHOT, count, &calls);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 1);
  close(file);
}

TEST_P(CIo, SignalArrivesInTheLoopAndTheDispositionComesBack) {
  struct sigaction before{};
  before.sa_handler = SIG_IGN;
  ASSERT_EQ(sigaction(SIGUSR2, &before, nullptr), 0);
  struct Context {
    int number = 0;
    int calls = 0;
  } context;
  evix_signal_t* signal = evix_signal_create(
      loop, SIGUSR2,
      [](evix_signal_t* self, int number, void* data) {
        static_cast<Context*>(data)->number = number;
        if (++static_cast<Context*>(data)->calls == 2) {
          EXPECT_EQ(evix_signal_destroy(self), 0);
        }
      },
      &context);
  ASSERT_NE(signal, nullptr) << evix_last_error();
  raise(SIGUSR2);
  EXPECT_EQ(context.calls, 0) << "never inside the handler";
  EXPECT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
  EXPECT_EQ(context.calls, 1);
  EXPECT_EQ(context.number, SIGUSR2);
  raise(SIGUSR2);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(context.calls, 2);
  struct sigaction after{};
  ASSERT_EQ(sigaction(SIGUSR2, nullptr, &after), 0);
  EXPECT_EQ(after.sa_handler, SIG_IGN);
}

TEST_P(CIo, SignalOnceFreesItself) {
  evix_signal_t* signal = evix_signal_create_once(
      loop, SIGUSR2, [](evix_signal_t*, int, void* data) { count(data); }, &calls);
  raise(SIGUSR2);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(evix_signal_destroy(signal), EVIX_ESTALE);
}

TEST_P(CIo, SignalsThatCannotBeCaught) {
  for (const int number : {0, -1, SIGKILL, SIGSTOP, 65, 1'000'000}) {
    EXPECT_EQ(
        evix_signal_create(loop, number, [](evix_signal_t*, int, void*) {}, nullptr), nullptr);
    EXPECT_EQ(evix_last_error_code(), -EINVAL) << number;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Backends, CIo, testing::ValuesIn(evix::test::offered_names({"epoll", "poll", "io_uring"})),
    [](const auto& tested) { return std::string(tested.param); });

}  // namespace
