#include "allocations.hpp"

#include <cstdlib>
#include <new>

namespace {

thread_local int allocations = 0;
thread_local int until_failure = 0;  // 0: none

[[maybe_unused]] void* allocate(std::size_t size) noexcept {
  ++allocations;
  if (until_failure != 0 && --until_failure == 0) return nullptr;
  return std::malloc(size == 0 ? 1 : size);
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
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

#endif

namespace evix::test {

CountAllocations::CountAllocations() noexcept : before_(allocations) {}

int CountAllocations::count() const noexcept { return allocations - before_; }

FailAllocation::FailAllocation(int nth) noexcept { until_failure = nth; }

FailAllocation::~FailAllocation() { until_failure = 0; }

bool FailAllocation::happened() const noexcept { return until_failure == 0; }

}  // namespace evix::test
