#include "base/timer_store.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace evix::detail {
namespace {

// Calls `move` for each node of a taken slot; `move` links it elsewhere. One node of each lane in
// turn, while the lane's next is fetched: with one list a walk is a chain of dependent cache misses
// (docs/decisions/0002-timer-store.md).
template <typename Lanes, typename Move>
void for_each_lane(Lanes& lanes, Move move) {
  for (bool more = true; more;) {
    more = false;
    for (TimerNode*& head : lanes) {
      if (head == nullptr) continue;
      TimerNode* const node = std::exchange(head, head->next);
      __builtin_prefetch(head, 1);
      more = true;
      move(*node);
    }
  }
}

}  // namespace

// Both are roots without siblings; either may be null.
TimerNode* TimerStore::meld(TimerNode* left, TimerNode* right) {
  if (left == nullptr) return right;
  if (right == nullptr) return left;
  if (before(*right, *left)) std::swap(left, right);
  right->next = left->child;
  if (right->next != nullptr) right->next->link = &right->next;
  right->link = &left->child;
  left->child = right;
  return left;
}

// Melds a list of siblings in pairs from the left, then the pairs from the right: the order that
// makes removal amortised O(log n). No recursion: the list may have a million members.
TimerNode* TimerStore::meld_siblings(TimerNode* first) {
  TimerNode* pairs = nullptr;
  while (first != nullptr) {
    TimerNode* const left = first;
    TimerNode* const right = left->next;
    first = right != nullptr ? right->next : nullptr;
    left->next = nullptr;
    if (right != nullptr) right->next = nullptr;
    TimerNode* const pair = meld(left, right);
    pair->next = pairs;
    pairs = pair;
  }
  TimerNode* root = nullptr;
  while (pairs != nullptr) {
    TimerNode* const pair = pairs;
    pairs = pair->next;
    pair->next = nullptr;
    root = meld(root, pair);
  }
  return root;
}

void TimerStore::set_root(TimerNode*& root, TimerNode* node) {
  root = node;
  if (node != nullptr) node->link = &root;
}

void TimerStore::push_heap(TimerNode*& root, TimerNode& node) {
  set_place(node, heap_place);
  node.next = nullptr;
  node.child = nullptr;
  set_root(root, meld(root, &node));
}

// In a heap the node's children take its place: they are all behind its parent.
void TimerStore::unlink(TimerNode& node) {
  TimerNode* successor = node.next;
  const std::size_t place = place_of(node);
  if (place < slot_total) {
    if (--slot_size_[place] == 0) mark_empty(place);
  } else if (place == heap_place && node.child != nullptr) {
    successor = meld_siblings(node.child);
    successor->next = node.next;
    if (node.next != nullptr) node.next->link = &successor->next;
  }
  *node.link = successor;
  if (successor != nullptr) successor->link = node.link;
  node.link = nullptr;
}

void TimerStore::start_elsewhere(TimerNode& node, std::int64_t deadline_ns) {
  if (node.linked()) {
    stop(node);
  }
  ++size_;
  node.deadline_ns = deadline_ns;
  node.order = take_order();
  note_added(deadline_ns);
  if (in_pass_ && deadline_ns <= pass_now_ns_) {
    push_heap(fresh_, node);
  } else if (to_key(deadline_ns) < base_) {
    push_heap(near_, node);
  } else {
    push_wheel(node);
  }
}

// The deadline is not before base_.
void TimerStore::push_wheel(TimerNode& node) {
  const Key key = key_of(node);
  const unsigned width = static_cast<unsigned>(std::bit_width((key ^ base_) >> first_shift));
  const unsigned level = width == 0 ? 0 : (width - 1) / digit_bits;
  const unsigned shift = first_shift + level * digit_bits;
  const unsigned index = (key >> shift) & (slot_count - 1);
  const std::size_t place = level * slot_count + index;
  set_place(node, place);
  TimerNode*& head = slots_[place][node.order / order_step % lane_count];
  node.next = head;
  if (head != nullptr) head->link = &node.next;
  node.link = &head;
  head = &node;
  Key& floor = slot_floor_[place];
  floor = slot_size_[place]++ != 0 ? std::min(floor, key) : key;
  occupied_[level] |= std::uint64_t{1} << index;
  occupied_levels_ |= 1U << level;
  wheel_floor_ = std::min(wheel_floor_, key);
  wheel_start_ = std::min(wheel_start_, key >> shift << shift);
}

// Indices below base's own are never occupied, so the lowest bit of a level is its earliest slot.
bool TimerStore::first_slot(Slot& slot) {
  if (occupied_levels_ == 0) {
    wheel_floor_ = no_key;
    wheel_start_ = no_key;
    return false;
  }
  const unsigned level = static_cast<unsigned>(std::countr_zero(occupied_levels_));
  const unsigned index = static_cast<unsigned>(std::countr_zero(occupied_[level]));
  const unsigned shift = first_shift + level * digit_bits;
  const Key digits_below = (Key{slot_count} << shift) - 1;  // the top level: all bits
  slot.place = level * slot_count + index;
  slot.floor = slot_floor_[slot.place];
  wheel_floor_ = slot.floor;
  wheel_start_ = (base_ & ~digits_below) | (Key{index} << shift);
  slot.last = wheel_start_ | ((Key{1} << shift) - 1);
  return true;
}

void TimerStore::mark_empty(std::size_t place) {
  std::uint64_t& occupied = occupied_[place / slot_count];
  occupied &= ~(std::uint64_t{1} << place % slot_count);
  if (occupied == 0) occupied_levels_ &= ~(1U << place / slot_count);
}

TimerStore::Lanes TimerStore::take_slot(const Slot& slot) {
  slot_size_[slot.place] = 0;
  mark_empty(slot.place);
  return std::exchange(slots_[slot.place], Lanes{});
}

// The minimum of a slot of at most search_limit nodes; nodes that a restart has moved behind the
// slot are placed. False: the slot has more nodes and was emptied, or none is left in it.
bool TimerStore::search_slot(const Slot& slot, std::int64_t& earliest_ns) {
  if (slot_size_[slot.place] > search_limit) {
    if (slot.place < slot_count) {
      Lanes lanes = take_slot(slot);
      set_base(std::max(base_, slot.last));
      for_each_lane(lanes, [&](TimerNode& node) {
        key_of(node) > slot.last ? push_wheel(node) : push_heap(near_, node);
      });
    } else {
      deal_slot(slot, slot.floor);
    }
    return false;
  }
  bool found = false;
  for (TimerNode* node : slots_[slot.place]) {
    while (node != nullptr) {
      TimerNode* const current = std::exchange(node, node->next);
      if (key_of(*current) > slot.last) {
        unlink(*current);
        push_wheel(*current);
      } else {
        found = true;
        earliest_ns = std::min(earliest_ns, current->deadline_ns);
      }
    }
  }
  return found;
}

// With base at the slot's floor each node gets the finest level that tells it from the earliest.
void TimerStore::deal_slot(const Slot& slot, Key base) {
  Lanes lanes = take_slot(slot);
  set_base(std::max(base_, base));
  for_each_lane(lanes, [&](TimerNode& node) { push_wheel(node); });
}

// Empties a slot whose floor is not behind `limit`, the time of the pass: its due nodes become the
// batch, or go to the heap while an earlier batch is not finished.
void TimerStore::open_slot(const Slot& slot, Key limit) {
  const std::uint32_t size = slot_size_[slot.place];
  const bool to_batch = size <= batch_limit && batch_next_ == batch_end_;
  const Key reached = limit < slot.last ? limit + 1 : slot.last;
  if (!to_batch && size > search_limit && slot.place >= slot_count) {
    deal_slot(slot, std::min(reached, slot.floor));
    return;
  }
  const Key due_last = std::min(limit, slot.last);
  Lanes lanes = take_slot(slot);
  set_base(std::max(base_, reached));
  if (to_batch) batch_next_ = batch_end_ = 0;
  for_each_lane(lanes, [&](TimerNode& node) {
    if (key_of(node) > due_last) {
      push_wheel(node);
    } else if (to_batch) {
      __builtin_prefetch(static_cast<const void*>(&node.child), 1);
      batch_[batch_end_++] = {node.deadline_ns, &node};
    } else {
      push_heap(near_, node);
    }
  });
  if (to_batch) sort_batch();
}

void TimerStore::sort_batch() {
  const auto begin = batch_.begin();
  std::sort(begin, begin + batch_end_, [](const Due& left, const Due& right) {
    if (left.deadline_ns != right.deadline_ns) return left.deadline_ns < right.deadline_ns;
    return left.node->order < right.node->order;
  });
  for (std::uint32_t i = 0; i < batch_end_; ++i) {
    TimerNode& node = *batch_[i].node;
    set_place(node, batch_place);
    node.next = nullptr;
    node.link = &batch_[i].node;
  }
}

void TimerStore::set_base(Key base) {
  base_ = base;
  lazy_above_ns_ = to_ns(base) - 1;
  if (in_pass_) lazy_above_ns_ = std::max(lazy_above_ns_, pass_now_ns_);
}

std::int64_t TimerStore::find_earliest() {
  std::int64_t earliest_ns = std::numeric_limits<std::int64_t>::max();
  if (const TimerNode* near = earliest_near()) earliest_ns = near->deadline_ns;
  if (fresh_ != nullptr) earliest_ns = std::min(earliest_ns, fresh_->deadline_ns);
  Slot slot{};
  while (to_key(earliest_ns) >= wheel_floor_ && first_slot(slot)) {
    if (to_key(earliest_ns) < slot.floor || search_slot(slot, earliest_ns)) break;
    if (near_ != nullptr) earliest_ns = std::min(earliest_ns, near_->deadline_ns);
  }
  return earliest_ns;
}

void TimerStore::begin_pass(std::int64_t now_ns) {
  pass_now_ns_ = in_pass_ ? std::max(pass_now_ns_, now_ns) : now_ns;
  in_pass_ = true;
  set_root(near_, meld(near_, std::exchange(fresh_, nullptr)));
  // Up to the first occupied slot base may move freely; near base the slots are finer.
  const Key reachable = wheel_start_ - (wheel_start_ == no_key ? 0 : 1);
  set_base(std::max(base_, std::min(to_key(now_ns), reachable)));
}

// The first of the batch and the heap.
TimerNode* TimerStore::earliest_near() {
  while (batch_next_ != batch_end_ && batch_[batch_next_].node == nullptr) ++batch_next_;
  if (batch_next_ == batch_end_) return near_;
  TimerNode* const node = batch_[batch_next_].node;
  return near_ == nullptr || before(*node, *near_) ? node : near_;
}

TimerNode* TimerStore::pop_due() {
  if (!in_pass_) return nullptr;
  const Key limit = to_key(pass_now_ns_);
  TimerNode* first = earliest_near();
  Slot slot{};
  while (wheel_floor_ <= limit && (first == nullptr || wheel_floor_ <= key_of(*first)) &&
         first_slot(slot)) {
    if (wheel_floor_ > limit) continue;
    open_slot(slot, limit);
    first = earliest_near();
  }
  if (first == nullptr || first->deadline_ns > pass_now_ns_) {
    end_pass();
    return nullptr;
  }
  stop(*first);
  return first;
}

void TimerStore::end_pass() {
  in_pass_ = false;
  set_root(near_, meld(near_, std::exchange(fresh_, nullptr)));
  set_base(base_);
}

}  // namespace evix::detail
