#include "count_allocations.hpp"

#include <cstdlib>
#include <new>

namespace {

thread_local int allocations = 0;

}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace evix::test {

CountAllocations::CountAllocations() noexcept : before_(allocations) {}

int CountAllocations::count() const noexcept { return allocations - before_; }

}  // namespace evix::test
