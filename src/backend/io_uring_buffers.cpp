#include "backend/io_uring_buffers.hpp"

#include <algorithm>

namespace evix::detail {

ReceiveBuffers::~ReceiveBuffers() {
  for (BufferBlock* block : blocks_) {
    if (block != nullptr) BufferPool::release(block);
  }
}

int ReceiveBuffers::open(Ring& ring) noexcept {
  void* memory = nullptr;
  if (const int error = calls_.memory_map(-1, memory_size, 0, &memory); error < 0) return error;
  (void)calls_.memory_keep_from_children(memory, memory_size);
  if (const int error = ring.register_buffers(memory); error < 0) {
    (void)calls_.memory_unmap(memory, memory_size);
    return error;
  }
  entries_ = static_cast<io_uring_buf*>(memory);
  tail_ = 0;
  empty_count_ = 0;
  for (unsigned number = ring_buffer_count; number-- > 0;) {
    if (blocks_[number] != nullptr) {
      put(number, blocks_[number]);
    } else {
      empty_[empty_count_++] = static_cast<std::uint8_t>(number);
    }
  }
  show();
  return 0;
}

void ReceiveBuffers::close(bool forked) noexcept {
  if (entries_ != nullptr && !forked) (void)calls_.memory_unmap(entries_, memory_size);
  entries_ = nullptr;
}

void ReceiveBuffers::put(unsigned number, BufferBlock* block) noexcept {
  io_uring_buf& entry = entries_[tail_++ % ring_buffer_count];
  entry.addr = reinterpret_cast<std::uintptr_t>(block->bytes());
  entry.len = size_;
  entry.bid = static_cast<std::uint16_t>(number);
  blocks_[number] = block;
}

bool ReceiveBuffers::refill(unsigned kept_back) noexcept {
  if (!wants_refill(kept_back)) return true;
  BufferBlock* block = nullptr;
  do {
    block = pool_.acquire();
    if (block == nullptr) break;
    put(empty_[--empty_count_], block);
  } while (wants_refill(kept_back));
  show();
  return block != nullptr;
}

void ReceiveBuffers::grow() noexcept {
  const std::size_t most =
      std::clamp<std::size_t>(budget_bytes / pool_.block_size(), target_first, ring_buffer_count);
  target_ = std::min(target_ * 2, static_cast<unsigned>(most));
}

}  // namespace evix::detail
