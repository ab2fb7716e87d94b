#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <array>

#include "support/allocations.hpp"

// A task given to LoopThread::post() was one pointer too large for the loop's queue together with
// what calls it: each post put it on the heap.
namespace evix::test {
namespace {

TEST(LoopThreadPostAllocates, NoMoreThanThePostItself) {
  EVIX_NEEDS_ALLOCATIONS();
  LoopThread thread;
  std::array<void*, 4> captured{};
  int runs = 0;
  CountAllocations plain;
  ASSERT_TRUE(thread.poster().post([&runs] { ++runs; }));
  const int of_the_post = plain.count();
  CountAllocations with_task;
  ASSERT_TRUE(thread.post([captured](Loop&) { (void)captured; }));
  EXPECT_EQ(with_task.count(), of_the_post);
  EXPECT_EQ(thread.join(), 0);
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace evix::test
