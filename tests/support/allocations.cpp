#include "support/allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

thread_local int allocations = 0;
thread_local int until_failure = 0;  // 0: none
std::atomic<evix::test::AllocationWatch*> watch = nullptr;

[[maybe_unused]] void* allocate(std::size_t size) noexcept {
  ++allocations;
  if (until_failure != 0 && --until_failure == 0) return nullptr;
  evix::test::AllocationWatch* const watching = watch.load(std::memory_order_acquire);
  if (watching == nullptr) return std::malloc(size == 0 ? 1 : size);
  if (watching->refuses(size)) return nullptr;
  void* const memory = std::malloc(size == 0 ? 1 : size);
  watching->made(memory);
  return memory;
}

[[maybe_unused]] void release(void* memory) noexcept {
  evix::test::AllocationWatch* const watching = watch.load(std::memory_order_acquire);
  if (watching != nullptr && memory != nullptr) watching->freed(memory);
  std::free(memory);
}

}  // namespace

#ifndef EVIX_TEST_THREAD_SANITIZED

// All that is not aligned beyond the usual, for a sanitizer has functions of its own for each of
// these.
void* operator new(std::size_t size) {
  if (void* memory = allocate(size)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }

#endif

namespace evix::test {

CountAllocations::CountAllocations() noexcept : before_(allocations) {}

int CountAllocations::count() const noexcept { return allocations - before_; }

FailAllocation::FailAllocation(int nth) noexcept { until_failure = nth; }

FailAllocation::~FailAllocation() { until_failure = 0; }

void watch_allocations(AllocationWatch* watching) noexcept {
  watch.store(watching, std::memory_order_release);
}

bool FailAllocation::happened() const noexcept { return until_failure == 0; }

}  // namespace evix::test
