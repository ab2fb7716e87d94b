#include "base/buffer_pool.hpp"

#include <new>
#include <utility>

#include "evix/buffer.hpp"

namespace evix::detail {
namespace {

BufferBlock abandoned_mark{nullptr, nullptr};

std::size_t free_all(BufferBlock* list) noexcept {
  std::size_t count = 0;
  while (list != nullptr) {
    BufferBlock* block = list;
    list = block->next;
    ::operator delete(block);
    ++count;
  }
  return count;
}

}  // namespace

BufferPool* BufferPool::make(std::size_t block_size) { return new BufferPool(block_size); }

BufferBlock* BufferPool::acquire_slow() noexcept {
  free_ = returned_.exchange(nullptr, std::memory_order_acquire);
  if (free_ != nullptr) {
    BufferBlock* block = free_;
    free_ = block->next;
    return block;
  }
  void* memory = ::operator new(sizeof(BufferBlock) + block_size_, std::nothrow);
  if (memory == nullptr) return nullptr;
  references_.fetch_add(1, std::memory_order_relaxed);
  return ::new (memory) BufferBlock{nullptr, this};
}

// Nobody pops a single block, so a head that is compared equal is the same list (no ABA).
void BufferPool::release_slow(BufferBlock* block) noexcept {
  BufferBlock* head = returned_.load(std::memory_order_relaxed);
  do {
    if (head == &abandoned_mark) {
      ::operator delete(block);
      drop(1);
      return;
    }
    block->next = head;
  } while (!returned_.compare_exchange_weak(head, block, std::memory_order_release,
                                            std::memory_order_relaxed));
}

void BufferPool::drop(std::size_t count) noexcept {
  if (references_.fetch_sub(count, std::memory_order_acq_rel) == count) delete this;
}

void BufferPool::abandon() noexcept {
  set_owner(nullptr);
  BufferBlock* returned = returned_.exchange(&abandoned_mark, std::memory_order_acq_rel);
  drop(free_all(std::exchange(free_, nullptr)) + free_all(returned) + 1);
}

void release_block(BufferBlock* block) noexcept { BufferPool::release(block); }

}  // namespace evix::detail
