#include "base/buffer_pool.hpp"

#include <new>

#include "evix/buffer.hpp"

namespace evix::detail {

BufferPool* BufferPool::make(std::size_t block_size) { return new BufferPool(block_size); }

BufferBlock* BufferPool::acquire_slow() noexcept {
  {
    const std::lock_guard lock(mutex_);
    free_ = returned_;
    returned_ = nullptr;
  }
  if (free_ != nullptr) {
    BufferBlock* block = free_;
    free_ = block->next;
    return block;
  }
  void* memory = ::operator new(sizeof(BufferBlock) + block_size_, std::nothrow);
  if (memory == nullptr) return nullptr;
  ++made_;
  return ::new (memory) BufferBlock{nullptr, this};
}

void BufferPool::release_slow(BufferBlock* block) noexcept {
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) {
      ::operator delete(block);
      last = --made_ == 0;
    } else {
      block->next = returned_;
      returned_ = block;
    }
  }
  if (last) delete this;
}

std::size_t BufferPool::free_all(BufferBlock* list) noexcept {
  std::size_t count = 0;
  while (list != nullptr) {
    BufferBlock* block = list;
    list = block->next;
    ::operator delete(block);
    ++count;
  }
  return count;
}

void BufferPool::abandon() noexcept {
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    set_owner(nullptr);
    abandoned_ = true;
    made_ -= free_all(free_) + free_all(returned_);
    free_ = returned_ = nullptr;
    last = made_ == 0;
  }
  if (last) delete this;
}

void release_block(BufferBlock* block) noexcept { BufferPool::release(block); }

}  // namespace evix::detail
