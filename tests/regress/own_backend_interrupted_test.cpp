#include <evix.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

// A program's own backend that says EINTR ended the wait in a process with one thread; once there
// had been a second one, the wait began anew for as long as it said so.
namespace evix::test {
namespace {

int polls = 0;

TEST(OwnBackendInterrupted, EndsTheWaitAfterASecondThreadToo) {
  std::thread([] {}).join();
  const evix_backend_t backend{
      .init = [](evix_loop_t*) { return 0; },
      .destroy = [](evix_loop_t*) {},
      .poll =
          [](evix_loop_t*, int) {
            // The second would be the one too many; it lets a loop that asks for it end.
            return ++polls == 1 ? -EINTR : -EIO;
          },
      .io_add = [](evix_loop_t*, int, int) { return 0; },
      .io_del = [](evix_loop_t*, int) { return 0; },
  };
  evix_loop_t* loop = evix_loop_create(const_cast<evix_backend_t*>(&backend));
  ASSERT_NE(loop, nullptr) << evix_last_error();
  ASSERT_NE(evix_io_create(loop, 0, EVIX_IO_READ, [](void*) {}, nullptr), nullptr);
  EXPECT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
  EXPECT_EQ(polls, 1);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

}  // namespace
}  // namespace evix::test
