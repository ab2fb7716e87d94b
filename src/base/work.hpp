#pragma once

#include <cstddef>

/** @file
 * What the loop dispatches: one link and one function.
 */
namespace evix::detail {

/** Base of operations, immediates, wake-ups and, later, resumed coroutines. */
struct Work {
  Work* next = nullptr;
  void (*run)(Work*) = nullptr;
};

/** First in, first out, through Work::next. A work is in at most one queue. */
class WorkQueue {
 public:
  bool empty() const noexcept { return head_ == nullptr; }
  std::size_t size() const noexcept { return size_; }

  void push(Work* work) noexcept {
    work->next = nullptr;
    if (head_ == nullptr) {
      head_ = work;
    } else {
      tail_->next = work;
    }
    tail_ = work;
    ++size_;
  }

  Work* pop() noexcept {
    Work* work = head_;
    if (work == nullptr) return nullptr;
    head_ = work->next;
    work->next = nullptr;
    --size_;
    return work;
  }

 private:
  Work* head_ = nullptr;
  Work* tail_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace evix::detail
