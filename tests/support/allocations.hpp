#pragma once

#include <cstddef>

#include "support/sanitizers.hpp"

/** First in a test that uses what is below. */
#ifdef EVIX_TEST_THREAD_SANITIZED
#define EVIX_NEEDS_ALLOCATIONS() GTEST_SKIP() << "ThreadSanitizer's operator new is not replaceable"
#else
#define EVIX_NEEDS_ALLOCATIONS() static_cast<void>(0)
#endif

namespace evix::test {

/** Counts how often operator new is called on this thread, from here on. */
class CountAllocations {
 public:
  CountAllocations() noexcept;
  CountAllocations(const CountAllocations&) = delete;
  CountAllocations& operator=(const CountAllocations&) = delete;

  /** So far. */
  int count() const noexcept;

 private:
  int before_;
};

/** The nth call of operator new on this thread from here on (1: the next) throws; no other does. */
class FailAllocation {
 public:
  explicit FailAllocation(int nth) noexcept;
  FailAllocation(const FailAllocation&) = delete;
  FailAllocation& operator=(const FailAllocation&) = delete;
  ~FailAllocation();

  bool happened() const noexcept;
};

/** Sees what operator new and delete do, on any thread; may not throw. */
class AllocationWatch {
 public:
  virtual ~AllocationWatch() = default;
  /** True: this one gets no memory. */
  virtual bool refuses(std::size_t size) noexcept = 0;
  virtual void made(void* memory) noexcept = 0;
  /** It is still there. */
  virtual void freed(void* memory) noexcept = 0;
};

/** Null: nobody watches. */
void watch_allocations(AllocationWatch* watching) noexcept;

}  // namespace evix::test
