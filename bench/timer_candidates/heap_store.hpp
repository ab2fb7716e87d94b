// The loser of docs/decisions/0002-timer-store.md, kept so that the comparison can be repeated:
// an indexed 4-ary heap with the interface of evix's timer store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace timer_candidates {

struct HeapNode {
  std::int64_t deadline_ns = 0;
  std::uint64_t order = 0;
  std::size_t position = 0;  // 1-based; 0: not armed

  bool linked() const { return position != 0; }
};

/// Keys lie in the array, so comparing touches no node. With `lazy_restart` a restart to a later
/// time writes only the node; its entry, then too early, sinks when it reaches the top.
template <bool lazy_restart>
class HeapStore {
 public:
  void start(HeapNode& node, std::int64_t deadline_ns) {
    const bool later = deadline_ns >= node.deadline_ns;
    node.deadline_ns = deadline_ns;
    node.order = ++last_order_;
    if (node.linked()) {
      if (lazy_restart && later) return;
      const std::size_t index = node.position - 1;
      if (!rise(index, Entry{deadline_ns, node.order, &node})) {
        sink(index, Entry{deadline_ns, node.order, &node});
      }
      return;
    }
    entries_.push_back({});
    const std::size_t index = entries_.size() - 1;
    if (!rise(index, Entry{deadline_ns, node.order, &node})) {
      put(index, Entry{deadline_ns, node.order, &node});
    }
  }

  void stop(HeapNode& node) {
    if (!node.linked()) return;
    const std::size_t index = node.position - 1;
    node.position = 0;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (index == entries_.size()) return;
    if (!rise(index, last)) sink(index, last);
  }

  std::int64_t next_deadline_ns() {
    const HeapNode* const top = exact_top();
    return top == nullptr ? std::numeric_limits<std::int64_t>::max() : top->deadline_ns;
  }

  void begin_pass(std::int64_t now_ns) {
    pass_now_ns_ = now_ns;
    pass_order_ = last_order_;
  }

  // Enough for the benchmark: nothing due is started during its passes.
  HeapNode* pop_due() {
    HeapNode* const top = exact_top();
    if (top == nullptr || top->deadline_ns > pass_now_ns_ || top->order > pass_order_) {
      return nullptr;
    }
    stop(*top);
    return top;
  }

 private:
  struct Entry {
    std::int64_t deadline_ns;
    std::uint64_t order;
    HeapNode* node;

    bool operator<(const Entry& other) const {
      if (deadline_ns != other.deadline_ns) return deadline_ns < other.deadline_ns;
      return order < other.order;
    }
  };
  static constexpr std::size_t fan_out = 4;

  void put(std::size_t index, const Entry& entry) {
    entries_[index] = entry;
    entry.node->position = index + 1;
  }

  HeapNode* exact_top() {
    while (!entries_.empty()) {
      HeapNode* const node = entries_[0].node;
      if (entries_[0].order == node->order) return node;
      sink(0, Entry{node->deadline_ns, node->order, node});
    }
    return nullptr;
  }

  // False, and nothing written, when the entry belongs no higher than `index`.
  bool rise(std::size_t index, const Entry& entry) {
    const std::size_t from = index;
    while (index > 0 && entry < entries_[(index - 1) / fan_out]) {
      put(index, entries_[(index - 1) / fan_out]);
      index = (index - 1) / fan_out;
    }
    if (index == from) return false;
    put(index, entry);
    return true;
  }

  void sink(std::size_t index, const Entry& entry) {
    for (;;) {
      const std::size_t first = index * fan_out + 1;
      if (first >= entries_.size()) break;
      const std::size_t end = first + fan_out < entries_.size() ? first + fan_out : entries_.size();
      std::size_t least = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        if (entries_[child] < entries_[least]) least = child;
      }
      if (!(entries_[least] < entry)) break;
      put(index, entries_[least]);
      index = least;
    }
    put(index, entry);
  }

  std::vector<Entry> entries_;
  std::uint64_t last_order_ = 0;
  std::uint64_t pass_order_ = 0;
  std::int64_t pass_now_ns_ = 0;
};

}  // namespace timer_candidates
