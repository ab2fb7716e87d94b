#include "task/frame_pool.hpp"

#include <evix/task.hpp>

#include <new>
#include <utility>

#include "task/task_record.hpp"

namespace evix::detail {
namespace {

// AddressSanitizer is to see who uses a frame after its end.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool recycles = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool recycles = false;
#else
constexpr bool recycles = true;
#endif
#else
constexpr bool recycles = true;
#endif

FramePool* pool_here() noexcept {
  LoopCore* const core = LoopCore::here();
  if (core == nullptr || core->tasks == nullptr) return nullptr;
  return &static_cast<TaskExtension&>(*core->tasks).frames;
}

}  // namespace

FramePool::~FramePool() {
  for (Free* head : heads_) {
    while (head != nullptr) ::operator delete(std::exchange(head, head->next));
  }
}

void* FramePool::take(std::size_t size) noexcept {
  if (size > size_max) return nullptr;
  Free*& head = heads_[size / size_step - 1];
  if (head == nullptr) return nullptr;
  kept_bytes_ -= size;
  return std::exchange(head, head->next);
}

bool FramePool::keep(void* frame, std::size_t size) noexcept {
  if (!recycles || size > size_max || kept_bytes_ + size > kept_bytes_max) return false;
  Free*& head = heads_[size / size_step - 1];
  head = ::new (frame) Free{head};
  kept_bytes_ += size;
  return true;
}

void* allocate_frame(std::size_t size) {
  const std::size_t rounded = FramePool::rounded(size);
  if (FramePool* const pool = pool_here()) {
    if (void* const frame = pool->take(rounded)) return frame;
  }
  return ::operator new(rounded);
}

void free_frame(void* frame, std::size_t size) noexcept {
  FramePool* const pool = pool_here();
  if (pool != nullptr && pool->keep(frame, FramePool::rounded(size))) return;
  ::operator delete(frame);
}

}  // namespace evix::detail
