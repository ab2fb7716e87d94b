#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace evix::detail {

/// The timer store's part of a timer record. The owner embeds it, keeps its address fixed while
/// it is linked and stops it before the memory goes. Only `deadline_ns` is for reading.
struct TimerNode {
  TimerNode() = default;
  TimerNode(const TimerNode&) = delete;
  TimerNode& operator=(const TimerNode&) = delete;

  /// True between start() and stop() or pop_due().
  bool linked() const { return link != nullptr; }

  // The owner may let a cache line end before `child`: only the heap touches that.
  TimerNode* next = nullptr;   // next in the slot's list, or next sibling in the heap
  TimerNode** link = nullptr;  // the pointer that points here; nullptr: not in the store
  std::int64_t deadline_ns = 0;
  std::uint64_t order = 0;     // start order * 2^10 + where it lies: a slot, a heap, the batch
  TimerNode* child = nullptr;  // in a heap: first child
};
static_assert(sizeof(TimerNode) <= 40);

/// Timers in exact (deadline, start order) order. Pure: no clock, no I/O, no allocation (but for
/// for_each); times are int64 nanoseconds on any one scale. One owner thread.
///
/// Far deadlines lie unsorted in a hierarchical wheel: 9 levels of 64 slots, level L's slots
/// 2^(10+6L) ns wide. A node's level is the highest 6-bit digit in which its deadline differs from
/// `base`, so every occupied slot of a level lies behind base's own, lower levels come before
/// higher ones, and the first slot in that order holds the earliest wheel deadline. Near ones lie
/// in a pairing heap, which is exact. A slot whose time has come is dealt out over the lower levels
/// when it is full; when it is not, its due nodes become the batch: a sorted array that is handed
/// out one by one.
///
/// A restart to a time not before the earliest deadline for which the node's slot was used only
/// writes the node: one cache line instead of four. The node may then lie in a slot earlier than
/// its deadline; it is placed anew when that slot comes first. docs/decisions/0002-timer-store.md
/// has the measurements.
///
/// About 85 KB. Fastest when no node straddles a cache line; `child` may lie in the next one, with
/// what the owner needs when the timer fires: that line is prefetched for a whole batch at once.
class TimerStore {
 public:
  TimerStore() = default;
  TimerStore(const TimerStore&) = delete;
  TimerStore& operator=(const TimerStore&) = delete;

  /// Arms `node`, or moves it when it is linked; either way it gets the next start order. O(1).
  /// Any deadline is allowed: past ones, INT64_MIN, and INT64_MAX, which is a deadline like others
  /// and due at INT64_MAX.
  void start(TimerNode& node, std::int64_t deadline_ns) {
    const std::size_t place = place_of(node);
    if (node.linked() && place < slot_total && deadline_ns > lazy_above_ns_ &&
        to_key(deadline_ns) >= slot_floor_[place]) {
      note_removed(node.deadline_ns);
      note_added(deadline_ns);
      node.deadline_ns = deadline_ns;
      node.order = take_order() | place;
      return;
    }
    start_elsewhere(node, deadline_ns);
  }

  /// Disarms `node`; nothing happens when it is not linked. A node of the pass in progress leaves
  /// the pass. Amortised O(log near nodes) in the heap, O(1) elsewhere.
  void stop(TimerNode& node) {
    if (!node.linked()) return;
    note_removed(node.deadline_ns);
    unlink(node);
    --size_;
  }

  /// The earliest deadline of all linked nodes, those of an unfinished pass included; INT64_MAX
  /// when there is none. Known at once unless the earliest node was moved since; otherwise
  /// amortised maintenance finds it.
  std::int64_t next_deadline_ns() {
    if (earliest_ns_ == unknown_ns) earliest_ns_ = find_earliest();
    return earliest_ns_;
  }

  /// Begins a pass over the nodes with deadline <= now_ns. While an earlier pass is unfinished its
  /// remaining nodes, and those that were started during it and are due, join in exact order; the
  /// pass then reaches to the later of both times. The first call also tells the store where time
  /// stands, so call it once before many timers are started.
  void begin_pass(std::int64_t now_ns);

  /// The next node of the pass in (deadline, start order) order, unlinked; nullptr ends the pass.
  /// Between two calls any node may be started or stopped; what is started is not in the pass.
  TimerNode* pop_due();

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  /// Calls `visit(const TimerNode&)` for every linked node in no particular order. `visit` must
  /// not change the store. For inspection: allocates a work list.
  template <typename Visit>
  void for_each(Visit visit) const {
    std::vector<const TimerNode*> pending;
    for (const Lanes& lanes : slots_) pending.insert(pending.end(), lanes.begin(), lanes.end());
    pending.push_back(near_);
    pending.push_back(fresh_);
    for (auto i = batch_next_; i < batch_end_; ++i) pending.push_back(batch_[i].node);
    while (!pending.empty()) {
      const TimerNode* node = pending.back();
      pending.pop_back();
      for (; node != nullptr; node = node->next) {
        visit(*node);
        if (place_of(*node) == heap_place) pending.push_back(node->child);
      }
    }
  }

 private:
  // Deadlines as unsigned numbers in the same order, so that digits can be compared.
  using Key = std::uint64_t;

  struct Due {
    std::int64_t deadline_ns;
    TimerNode* node;  // its `link` points here; null: stopped, restarted or handed out
  };

  struct Slot {
    std::size_t place;
    Key floor;  // no node in it is due earlier
    Key last;
  };

  // A slot's nodes in several lists, so that a walk over a full slot waits for as many cache misses
  // at once. Order inside a slot has no meaning.
  static constexpr std::size_t lane_count = 16;
  using Lanes = std::array<TimerNode*, lane_count>;

  static constexpr unsigned digit_bits = 6;  // a level's occupancy is one 64-bit word
  static constexpr unsigned slot_count = 1U << digit_bits;
  static constexpr unsigned first_shift = 10;
  static constexpr unsigned level_count = (64 - first_shift) / digit_bits;
  static_assert(first_shift + level_count * digit_bits == 64, "the levels cover all of int64");
  // A node's place, in the low bits of its order: level * slot_count + index, or one of the others
  // below. The start order has the other 54 bits, enough for a start each 10 ns during 5.7 years.
  static constexpr std::size_t slot_total = std::size_t{level_count} * slot_count;
  static constexpr std::size_t heap_place = slot_total;
  static constexpr std::size_t batch_place = slot_total + 1;
  static constexpr std::uint64_t order_step = 1024;
  static_assert(batch_place < order_step);
  // A slot with no more nodes is searched for its minimum; a fuller one is dealt out first.
  static constexpr std::uint32_t search_limit = 16;
  // A slot with no more nodes becomes the batch when it is due; a fuller one is dealt out first.
  static constexpr std::uint32_t batch_limit = 256;
  static constexpr Key no_key = std::numeric_limits<Key>::max();
  static constexpr std::int64_t unknown_ns = std::numeric_limits<std::int64_t>::min();

  static Key to_key(std::int64_t time_ns) { return static_cast<Key>(time_ns) ^ (Key{1} << 63); }
  static std::int64_t to_ns(Key key) { return static_cast<std::int64_t>(key ^ (Key{1} << 63)); }
  static Key key_of(const TimerNode& node) { return to_key(node.deadline_ns); }
  static std::size_t place_of(const TimerNode& node) { return node.order % order_step; }
  static void set_place(TimerNode& node, std::size_t place) {
    node.order = node.order - place_of(node) + place;
  }
  static bool before(const TimerNode& left, const TimerNode& right) {
    if (left.deadline_ns != right.deadline_ns) return left.deadline_ns < right.deadline_ns;
    return left.order < right.order;
  }

  std::uint64_t take_order() { return last_order_ += order_step; }

  void note_removed(std::int64_t deadline_ns) {
    if (deadline_ns == earliest_ns_) earliest_ns_ = unknown_ns;
  }
  // When the earliest is unknown no deadline is below it.
  void note_added(std::int64_t deadline_ns) {
    if (deadline_ns < earliest_ns_) earliest_ns_ = deadline_ns;
  }

  static TimerNode* meld(TimerNode* left, TimerNode* right);
  static TimerNode* meld_siblings(TimerNode* first);
  static void set_root(TimerNode*& root, TimerNode* node);
  static void push_heap(TimerNode*& root, TimerNode& node);
  void unlink(TimerNode& node);

  void start_elsewhere(TimerNode& node, std::int64_t deadline_ns);
  void push_wheel(TimerNode& node);
  bool first_slot(Slot& slot);
  void mark_empty(std::size_t place);
  Lanes take_slot(const Slot& slot);
  bool search_slot(const Slot& slot, std::int64_t& earliest_ns);
  void deal_slot(const Slot& slot, Key base);
  void open_slot(const Slot& slot, Key limit);
  void sort_batch();
  TimerNode* earliest_near();
  std::int64_t find_earliest();
  void set_base(Key base);
  void end_pass();

  std::int64_t earliest_ns_ = std::numeric_limits<std::int64_t>::max();  // or unknown_ns
  std::int64_t lazy_above_ns_ = -1;  // a restart up to here must not stay in the wheel
  std::uint64_t last_order_ = 0;
  std::size_t size_ = 0;
  Key base_ = to_key(0);      // no wheel deadline is earlier
  Key wheel_floor_ = no_key;  // no wheel deadline is earlier
  Key wheel_start_ = no_key;  // no occupied slot starts earlier
  TimerNode* near_ = nullptr;
  TimerNode* fresh_ = nullptr;  // started during the pass and due: not part of it
  std::int64_t pass_now_ns_ = 0;
  bool in_pass_ = false;
  std::uint32_t batch_next_ = 0;
  std::uint32_t batch_end_ = 0;
  std::uint32_t occupied_levels_ = 0;
  std::array<std::uint64_t, level_count> occupied_{};
  std::array<std::uint32_t, slot_total> slot_size_{};
  // The earliest deadline for which an occupied slot was used since it was empty: no node in it is
  // due earlier.
  std::array<Key, slot_total> slot_floor_{};
  std::array<Due, batch_limit> batch_;
  alignas(64) std::array<Lanes, slot_total> slots_{};
};

}  // namespace evix::detail
