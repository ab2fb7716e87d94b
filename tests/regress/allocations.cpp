#include "allocations.hpp"

#include <cstdlib>
#include <new>

namespace {

thread_local int allocations = 0;
thread_local int until_failure = 0;  // 0: none

}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (until_failure != 0 && --until_failure == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace evix::test {

CountAllocations::CountAllocations() noexcept : before_(allocations) {}

int CountAllocations::count() const noexcept { return allocations - before_; }

FailAllocation::FailAllocation(int nth) noexcept { until_failure = nth; }

FailAllocation::~FailAllocation() { until_failure = 0; }

bool FailAllocation::happened() const noexcept { return until_failure == 0; }

}  // namespace evix::test
