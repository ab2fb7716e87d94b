#include <evix.h>

#include <gtest/gtest.h>

#include <stdexcept>

// A callback that runs outside of the run functions could destroy the loop: the loop thread then
// went on with the loop that its `begin` had freed. An exception out of `begin` ended the process.
namespace evix::test {
namespace {

TEST(CLoopDestroyedOutsideRun, BeginIsRefused) {
  int destroyed = 0;
  const auto begin = [](evix_loop_t* loop, void* data) {
    *static_cast<int*>(data) = evix_loop_destroy(loop);
  };
  evix_loop_thread_t* thread = evix_loop_thread_create(nullptr, begin, &destroyed);
  ASSERT_NE(thread, nullptr);
  bool posted = false;
  const auto note = [](void* data) { *static_cast<bool*>(data) = true; };
  EXPECT_EQ(evix_loop_thread_post(thread, note, &posted), 0);
  EXPECT_EQ(evix_loop_thread_join(thread), 0);
  EXPECT_EQ(destroyed, EVIX_EBUSY);
  EXPECT_TRUE(posted);
}

TEST(CLoopDestroyedOutsideRun, EachHandleIsRefused) {
  evix_loop_t* loop = evix_loop_create(nullptr);
  ASSERT_NE(loop, nullptr);
  for (int i = 0; i < 3; ++i) ASSERT_NE(evix_timer_new(loop), nullptr);
  const auto destroy = [](const evix_handle_info_t* info, void*) {
    EXPECT_EQ(evix_loop_destroy(evix_handle_loop(info->handle)), EVIX_EBUSY);
  };
  EXPECT_EQ(evix_loop_each_handle(loop, destroy, nullptr), 3);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(CLoopDestroyedOutsideRun, BeginThatThrowsIsTheResultOfTheThread) {
  const auto begin = [](evix_loop_t*, void*) { throw std::runtime_error("out of begin"); };
  evix_loop_thread_t* thread = evix_loop_thread_create(nullptr, begin, nullptr);
  ASSERT_NE(thread, nullptr);
  EXPECT_EQ(evix_loop_thread_join(thread), EVIX_ETHROWN);
}

}  // namespace
}  // namespace evix::test
