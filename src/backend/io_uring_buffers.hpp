#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/io_uring_ring.hpp"
#include "base/buffer_pool.hpp"

/** @file
 * Buffers that lie ready in a ring for whichever receive gets data first.
 *
 * Their number is a budget, not one for each connection: it begins small, doubles whenever a
 * receive found none, and ends at 16 MiB or 256. What the user holds on lease is not part of it.
 */
namespace evix::detail {

class ReceiveBuffers {
 public:
  ReceiveBuffers(Calls& calls, BufferPool& pool) noexcept
      : calls_(calls),
        pool_(pool),
        size_(static_cast<unsigned>(std::min<std::size_t>(pool.block_size(), INT32_MAX))) {}
  ReceiveBuffers(const ReceiveBuffers&) = delete;
  ReceiveBuffers& operator=(const ReceiveBuffers&) = delete;
  ~ReceiveBuffers();

  /** Registers with a new ring, with what was in the old one. 0 or -errno. */
  int open(Ring& ring) noexcept;
  /** The ring is gone; in a forked child its memory is, too. */
  void close(bool forked) noexcept;

  /** The kernel has filled this one: it is the caller's. */
  BufferBlock* take(unsigned number) noexcept {
    BufferBlock* block = blocks_[number];
    blocks_[number] = nullptr;
    empty_[empty_count_++] = static_cast<std::uint8_t>(number);
    return block;
  }
  /** How many the kernel can still fill. */
  unsigned available() const noexcept { return ring_buffer_count - empty_count_; }
  /** Whether refill() would do something. */
  bool wants_refill(unsigned kept_back) const noexcept { return available() + kept_back < target_; }
  /**
   * From the pool, up to the budget less `kept_back`. The loop's thread only. False: there is no
   * memory.
   */
  bool refill(unsigned kept_back) noexcept;
  /** A receive found no buffer. */
  void grow() noexcept;

 private:
  void put(unsigned number, BufferBlock* block) noexcept;
  /**
   * Gives what was put to the kernel. The tail of the ring lies in the unused bytes of its first
   * entry (io_uring_register(2)).
   */
  void show() noexcept { __atomic_store_n(&entries_[0].resv, tail_, __ATOMIC_RELEASE); }

  static_assert(ring_buffer_count == 256, "a number is a byte");
  static constexpr unsigned target_first = 16;
  static constexpr std::size_t budget_bytes = std::size_t{16} << 20;
  static constexpr std::size_t memory_size = ring_buffer_count * sizeof(io_uring_buf);

  Calls& calls_;
  BufferPool& pool_;
  const unsigned size_;  // of each buffer
  io_uring_buf* entries_ = nullptr;
  std::uint16_t tail_ = 0;
  unsigned target_ = target_first;
  unsigned empty_count_ = 0;
  std::array<std::uint8_t, ring_buffer_count> empty_{};
  std::array<BufferBlock*, ring_buffer_count> blocks_{};
};

}  // namespace evix::detail
