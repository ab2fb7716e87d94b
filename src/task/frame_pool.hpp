#pragma once

#include <array>
#include <cstddef>

/** @file
 * Coroutine frames that a loop keeps for its next tasks.
 */
namespace evix::detail {

/** Frames by size, last in first out. The loop's thread only. */
class FramePool {
 public:
  static constexpr std::size_t size_step = 32;
  static constexpr std::size_t size_max = 2048;  // larger ones go to the heap
  // A burst of more goes back to the heap.
  static constexpr std::size_t kept_bytes_max = std::size_t{1} << 20;

  FramePool() = default;
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;
  ~FramePool();

  /** What operator new is asked for: a frame may be freed in a loop that keeps it. */
  static std::size_t rounded(std::size_t size) noexcept {
    return size > size_max ? size : (size + size_step - 1) / size_step * size_step;
  }
  /** Null: there is none of that rounded size. */
  void* take(std::size_t size) noexcept;
  /** False: it has to be freed. */
  bool keep(void* frame, std::size_t size) noexcept;

 private:
  struct Free {
    Free* next;
  };
  std::array<Free*, size_max / size_step> heads_{};  // [i]: frames of (i + 1) * size_step bytes
  std::size_t kept_bytes_ = 0;
};

}  // namespace evix::detail
