#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "evix.h"

namespace {

void append(void* data) { *static_cast<std::string*>(data) += "t"; }

class CPoller : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_NE(poller, nullptr) << evix_last_error();
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  }
  void TearDown() override {
    EXPECT_EQ(evix_poller_destroy(poller), 0);
    close(fds[0]);
    close(fds[1]);
  }
  evix_poller_t* poller = evix_poller_create(evix_backend_by_name(GetParam()));
  int fds[2] = {-1, -1};
  evix_poll_event_t event{};
};

TEST_P(CPoller, RegisterWaitWalk) {
  evix_id_t id = 0;
  ASSERT_EQ(evix_poller_add(poller, fds[0], EVIX_IO_READ, EVIX_TRIGGER_LEVEL, 42, &id), 0);
  EXPECT_NE(id, 0U);
  EXPECT_EQ(evix_poller_wait(poller, 0), 0);
  EXPECT_EQ(evix_poller_next(poller, &event), 0);
  ASSERT_EQ(write(fds[1], "x", 1), 1);
  EXPECT_EQ(evix_poller_wait(poller, EVIX_FOREVER), 1);
  EXPECT_EQ(evix_poller_next(poller, &event), 1);
  EXPECT_EQ(event.token, 42U);
  EXPECT_EQ(event.id, id);
  EXPECT_EQ(event.fd, fds[0]);
  EXPECT_EQ(event.events, EVIX_IO_READ);
  EXPECT_EQ(event.status, 0);
  EXPECT_EQ(evix_poller_next(poller, &event), 0);

  EXPECT_EQ(evix_poller_disable(poller, id), 0);
  EXPECT_EQ(evix_poller_wait(poller, 0), 0);
  EXPECT_EQ(evix_poller_enable(poller, id), 0);
  EXPECT_EQ(evix_poller_set_token(poller, id, 43), 0);
  EXPECT_EQ(evix_poller_modify(poller, id, EVIX_IO_READ | EVIX_IO_WRITE, EVIX_TRIGGER_ONESHOT), 0);
  EXPECT_EQ(evix_poller_wait(poller, EVIX_FOREVER), 1);
  EXPECT_EQ(evix_poller_next(poller, &event), 1);
  EXPECT_EQ(event.token, 43U);
  EXPECT_EQ(event.events, EVIX_IO_READ | EVIX_IO_WRITE);
  EXPECT_EQ(evix_poller_wait(poller, 0), 0) << "a one-shot is disabled until it is enabled";
  EXPECT_EQ(evix_poller_remove(poller, id), 0);
  EXPECT_EQ(evix_poller_remove(poller, id), EVIX_ESTALE);
}

TEST_P(CPoller, ErrorsOfArguments) {
  EXPECT_EQ(evix_poller_add(poller, -1, EVIX_IO_READ, EVIX_TRIGGER_LEVEL, 1, nullptr), -EBADF);
  EXPECT_EQ(evix_poller_add(poller, fds[0], EVIX_IO_HANGUP, EVIX_TRIGGER_LEVEL, 1, nullptr),
            -EINVAL);
  EXPECT_EQ(evix_poller_add(poller, fds[0], EVIX_IO_READ, 3, 1, nullptr), -EINVAL);
  EXPECT_EQ(evix_poller_add(poller, fds[0], EVIX_IO_READ, EVIX_TRIGGER_LEVEL, 1, nullptr), 0);
  EXPECT_EQ(evix_poller_add(poller, fds[0], EVIX_IO_READ, EVIX_TRIGGER_LEVEL, 1, nullptr),
            EVIX_EREGISTERED);
  EXPECT_EQ(evix_poller_modify(poller, 0, EVIX_IO_READ, EVIX_TRIGGER_LEVEL), EVIX_ESTALE);
  EXPECT_EQ(evix_poller_next(poller, nullptr), -EINVAL);
  EXPECT_EQ(evix_poller_failure(poller, 0, nullptr), -EINVAL);
  EXPECT_EQ(evix_poller_commit(poller), 0);
  EXPECT_EQ(evix_poller_failure(poller, 0, &event), 0);
}

TEST_P(CPoller, FailureOfABatchedChangeIsListed) {
  const int gone = dup(fds[0]);
  evix_id_t id = 0;
  ASSERT_EQ(evix_poller_add(poller, gone, EVIX_IO_READ, EVIX_TRIGGER_LEVEL, 7, &id), 0);
  close(gone);
  EXPECT_EQ(evix_poller_commit(poller), 1);
  EXPECT_EQ(evix_poller_failure(poller, 0, &event), 1);
  EXPECT_EQ(event.status, -EBADF);
  EXPECT_EQ(event.token, 7U);
  EXPECT_EQ(event.id, id);
  EXPECT_EQ(evix_poller_failure(poller, 1, &event), 0);
}

// The source's program: run the timers, wait for at most what they allow, walk the events.
TEST_P(CPoller, TogetherWithATimerQueue) {
  evix_timer_queue_t* queue = evix_timer_queue_create();
  std::string log;
  ASSERT_NE(evix_timer_queue_add(queue, 100'000'000, append, &log), 0U);
  ASSERT_EQ(evix_poller_add(poller, fds[0], EVIX_IO_READ, EVIX_TRIGGER_LEVEL, 1, nullptr), 0);
  ASSERT_EQ(write(fds[1], "x", 1), 1);
  for (;;) {
    const int64_t allowed = evix_timer_queue_run(queue);
    ASSERT_GE(allowed, 0);
    if (log.size() == 2) break;
    const int ready = evix_poller_wait(poller, allowed);
    // As by a signal: the kernel does that to a thread some 20 ms after it closed an io_uring,
    // which the test before this one may have done.
    if (ready == -EINTR) continue;
    ASSERT_GE(ready, 0);
    while (evix_poller_next(poller, &event) == 1) {
      char byte;
      ASSERT_EQ(read(event.fd, &byte, 1), 1);
      log += "r";
    }
  }
  EXPECT_EQ(log, "rt");
  EXPECT_EQ(evix_timer_queue_run(queue), INT64_MAX);
  EXPECT_EQ(evix_timer_queue_destroy(queue), 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, CPoller, testing::Values("epoll", "poll"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(CPollerCreate, OnlyBuiltInOnes) {
  evix_backend_t own{};
  EXPECT_EQ(evix_poller_create(&own), nullptr);
  EXPECT_EQ(evix_last_error_code(), EVIX_EBACKEND);
}

TEST(CTimerQueue, OrderCancelAndItsOwnCallbacks) {
  struct Context {
    evix_timer_queue_t* queue = evix_timer_queue_create();
    std::string log;
    int64_t nested_run = 0;
    int destroy = 0;
  } context;
  EXPECT_EQ(evix_timer_queue_run(context.queue), INT64_MAX);
  EXPECT_EQ(evix_timer_queue_size(context.queue), 0);
  const evix_id_t never = evix_timer_queue_add(context.queue, EVIX_NEVER, append, &context.log);
  evix_timer_queue_add(
      context.queue, 0,
      [](void* data) {
        auto& self = *static_cast<Context*>(data);
        self.nested_run = evix_timer_queue_run(self.queue);
        self.destroy = evix_timer_queue_destroy(self.queue);
        self.log += "x";
      },
      &context);
  EXPECT_EQ(evix_timer_queue_size(context.queue), 2);
  EXPECT_EQ(evix_timer_queue_run(context.queue), INT64_MAX);
  EXPECT_EQ(context.log, "x");
  EXPECT_EQ(context.nested_run, EVIX_EBUSY);
  EXPECT_EQ(context.destroy, EVIX_EBUSY);
  EXPECT_EQ(evix_timer_queue_cancel(context.queue, never), 1);
  EXPECT_EQ(evix_timer_queue_cancel(context.queue, never), 0);
  EXPECT_EQ(evix_timer_queue_cancel(context.queue, 0), 0);
  EXPECT_EQ(evix_timer_queue_add(context.queue, 0, nullptr, nullptr), 0U);
  EXPECT_EQ(evix_timer_queue_destroy(context.queue), 0);
}

}  // namespace
