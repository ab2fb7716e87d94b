#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "evix/export.hpp"

/** @file
 * Received bytes, on lease from the pool of a loop.
 */
namespace evix {

namespace detail {
struct BufferBlock;
EVIX_API void release_block(BufferBlock* block) noexcept;
}  // namespace detail

/**
 * Bytes on lease from the buffer pool of a loop. Move-only; the destructor gives the memory back.
 * It may outlive its loop, and may be destroyed on any thread. An empty buffer from a receive is
 * the end of the stream.
 */
class Buffer {
 public:
  Buffer() noexcept = default;
  /** For evix: takes over a block. */
  Buffer(detail::BufferBlock* block, std::byte* data, std::size_t size) noexcept
      : block_(block), data_(data), size_(size) {}
  Buffer(Buffer&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      reset();
      block_ = std::exchange(other.block_, nullptr);
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~Buffer() { reset(); }

  std::byte* data() noexcept { return data_; }
  const std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::span<std::byte> bytes() noexcept { return {data_, size_}; }
  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(data_), size_}; }
  operator std::span<const std::byte>() const noexcept { return bytes(); }

  /** Drops the first `count` bytes, at most all. */
  void remove_prefix(std::size_t count) noexcept {
    const std::size_t cut = count < size_ ? count : size_;
    data_ += cut;
    size_ -= cut;
  }
  /** Gives the memory back now; the buffer is empty afterwards. */
  void reset() noexcept {
    if (block_ != nullptr) detail::release_block(std::exchange(block_, nullptr));
    data_ = nullptr;
    size_ = 0;
  }

  /** For evix: lets go of the block. */
  detail::BufferBlock* take_block() noexcept { return std::exchange(block_, nullptr); }

 private:
  detail::BufferBlock* block_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace evix
