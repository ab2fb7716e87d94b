#pragma once

#include <evix/evix.hpp>

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>
#include <functional>
#include <utility>

/** @file
 * What the tests of tasks have in common.
 */
namespace evix::test {

/** Counts how many there are: each is destroyed once. */
class Counted {
 public:
  explicit Counted(int& live) noexcept : live_(&live) { ++*live_; }
  Counted(Counted&& other) noexcept : live_(other.live_) { ++*live_; }
  Counted& operator=(Counted&&) = delete;
  ~Counted() { --*live_; }

 private:
  int* live_;
};

inline constexpr std::size_t small_stack_bytes = 256 * 1024;

/** Calls it on a thread with a small stack, and waits for it. */
inline void on_small_stack(std::function<void()> call) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, small_stack_bytes), 0);
  const auto enter = [](void* pointer) -> void* {
    (*static_cast<std::function<void()>*>(pointer))();
    return nullptr;
  };
  pthread_t thread{};
  ASSERT_EQ(pthread_create(&thread, &attributes, enter, &call), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  ASSERT_EQ(pthread_attr_destroy(&attributes), 0);
}

}  // namespace evix::test
