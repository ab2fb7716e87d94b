#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

/** @file
 * A growing queue from which any entry can be taken out by its position.
 */
namespace evix::detail {

/**
 * First in, first out, of pointers or other values of which Entry{} is none. push() gives the entry
 * a position with which erase() takes it out in O(1) (the place stays empty until it comes up).
 * Grows by doubling, never shrinks, and has room for 64 from the beginning.
 */
template <class Entry>
class RingQueue {
 public:
  bool empty() const noexcept { return count_ == 0; }
  /** Entries that are still in. */
  std::size_t size() const noexcept { return count_; }

  /** False when it is full and there is no memory to grow: nothing has changed then. */
  [[nodiscard]] bool push(Entry entry, std::uint32_t& position) noexcept {
    if (count_ == 0) begin_ = end_;
    if (end_ - begin_ == capacity_ && !grow()) return false;
    entries_[end_ & (capacity_ - 1)] = entry;
    ++count_;
    position = end_++;
    return true;
  }

  /** Entry{} when it is empty. */
  Entry pop() noexcept {
    while (count_ != 0) {
      const Entry entry = entries_[begin_++ & (capacity_ - 1)];
      if (entry != Entry{}) {
        --count_;
        return entry;
      }
    }
    return Entry{};
  }

  void erase(std::uint32_t position) noexcept {
    Entry& entry = entries_[position & (capacity_ - 1)];
    if (entry != Entry{}) --count_;
    entry = Entry{};
  }

 private:
  static constexpr std::uint32_t capacity_first = 64;

  // Positions are kept, so every entry lands at its own position modulo the new capacity.
  bool grow() noexcept {
    const std::uint32_t capacity_after = capacity_ * 2;
    std::unique_ptr<Entry[]> entries_after(new (std::nothrow) Entry[capacity_after]);
    if (entries_after == nullptr) return false;
    for (std::uint32_t position = begin_; position != end_; ++position) {
      entries_after[position & (capacity_after - 1)] = entries_[position & (capacity_ - 1)];
    }
    entries_ = std::move(entries_after);
    capacity_ = capacity_after;
    return true;
  }

  std::unique_ptr<Entry[]> entries_ = std::make_unique<Entry[]>(capacity_first);
  std::uint32_t capacity_ = capacity_first;
  std::uint32_t begin_ = 0;
  std::uint32_t end_ = 0;
  std::size_t count_ = 0;
};

}  // namespace evix::detail
