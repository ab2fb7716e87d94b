#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/thread_id.hpp"

/** @file
 * Receive buffers of one loop, given out on lease.
 */
namespace evix::detail {

class BufferPool;

/** Header of one buffer; the bytes follow it. */
struct alignas(16) BufferBlock {
  BufferBlock* next;
  BufferPool* pool;
  std::uint32_t begin = 0;  ///< received bytes that nobody has had, while a backend keeps them:
  std::uint32_t end = 0;    ///< [begin, end) of bytes()

  std::byte* bytes() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
};

/**
 * Last in, first out, so that the next receive finds its buffer in the cache. The thread that runs
 * the loop has a list of its own; every other thread pushes onto a second one, which the owner
 * takes whole. There is no lock: one held by another thread at a fork would stay locked in the
 * child. The pool lives until its loop has let go and every block is back.
 */
class BufferPool {
 public:
  /** @param block_size bytes that a block holds. */
  static BufferPool* make(std::size_t block_size);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  std::size_t block_size() const noexcept { return block_size_; }

  /** Owner's thread only. Null when there is no memory. */
  BufferBlock* acquire() noexcept {
    BufferBlock* block = free_;
    if (block == nullptr) return acquire_slow();
    free_ = block->next;
    return block;
  }
  /** As acquire(), but null when memory would have to be found. */
  BufferBlock* acquire_at_hand() noexcept {
    BufferBlock* block = free_;
    if (block != nullptr) [[likely]]
      free_ = block->next;
    return block;
  }
  /** Any thread. */
  static void release(BufferBlock* block) noexcept {
    BufferPool& pool = *block->pool;
    if (pool.owner_.load(std::memory_order_relaxed) == current_thread()) {
      block->next = pool.free_;
      pool.free_ = block;
      return;
    }
    pool.release_slow(block);
  }

  /** The thread that may use the pool without a lock; null: none does, as outside of run(). */
  void set_owner(ThreadId owner) noexcept { owner_.store(owner, std::memory_order_relaxed); }
  /** The loop is gone: frees what is back, and the rest when it comes. */
  void abandon() noexcept;

 private:
  explicit BufferPool(std::size_t block_size) noexcept : block_size_(block_size) {}
  ~BufferPool() = default;

  BufferBlock* acquire_slow() noexcept;
  void release_slow(BufferBlock* block) noexcept;
  /** Takes `count` from the references; the last one ends the pool. */
  void drop(std::size_t count) noexcept;

  BufferBlock* free_ = nullptr;
  std::atomic<ThreadId> owner_ = nullptr;
  const std::size_t block_size_;

  std::atomic<BufferBlock*> returned_ = nullptr;  // by other threads; abandoned: a mark
  std::atomic<std::size_t> references_ = 1;       // the loop's and one of each block
};

}  // namespace evix::detail
