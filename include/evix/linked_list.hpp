#pragma once

/** @file
 * Lists through their members, for evix.
 */
namespace evix::detail {

/** A place in one list. */
struct Linked {
  Linked* next_linked = nullptr;
  Linked* previous_linked = nullptr;
};

/** First in, first out, or out from anywhere. T derives from Linked; the list owns nothing. */
template <class T>
class LinkedList {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  /** Null: it is empty. */
  T* first() const noexcept { return static_cast<T*>(first_); }
  /** Null: it is empty. */
  T* last() const noexcept { return static_cast<T*>(last_); }
  /** Null: it was the last. */
  static T* after(const T& node) noexcept {
    return static_cast<T*>(static_cast<const Linked&>(node).next_linked);
  }

  void push(T& node) noexcept {
    Linked& added = node;
    added.next_linked = nullptr;
    added.previous_linked = last_;
    (last_ != nullptr ? last_->next_linked : first_) = &added;
    last_ = &added;
  }
  /** It is in the list. */
  void remove(T& node) noexcept {
    Linked& gone = node;
    (gone.previous_linked != nullptr ? gone.previous_linked->next_linked : first_) =
        gone.next_linked;
    (gone.next_linked != nullptr ? gone.next_linked->previous_linked : last_) =
        gone.previous_linked;
  }

 private:
  Linked* first_ = nullptr;
  Linked* last_ = nullptr;
};

}  // namespace evix::detail
