// The timer store against a sorted set: any starts, restarts, stops and passes, also while one is
// half handed out.
#include "base/timer_store.hpp"

#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <tuple>

#include "fuzz_check.hpp"

namespace {

using evix::detail::TimerNode;
using evix::detail::TimerStore;

constexpr std::int64_t never_ns = std::numeric_limits<std::int64_t>::max();

class Model {
 public:
  explicit Model(FuzzedDataProvider& input) : input_(input) {
    now_ns_ =
        input_.ConsumeBool() ? 0 : input_.ConsumeIntegralInRange<std::int64_t>(0, never_ns / 2);
    begin_pass();
  }

  void step() {
    switch (input_.ConsumeIntegralInRange<int>(0, 5)) {
      case 0:
      case 1:
        start(any_node(), deadline_ns());
        break;
      case 2:
        stop(any_node());
        break;
      case 3:
        pop();
        break;
      case 4:
        now_ns_ = saturating_sum(now_ns_, distance_ns());
        begin_pass();
        break;
      default:
        fuzz_check(store_.next_deadline_ns() == earliest_ns(), "the next deadline");
    }
    fuzz_check(store_.size() == linked_.size(), "the size");
  }

  void drain() {
    now_ns_ = never_ns;
    while (!linked_.empty()) {
      begin_pass();
      while (pop()) {
      }
    }
    fuzz_check(store_.empty() && store_.next_deadline_ns() == never_ns, "nothing is left");
  }

 private:
  struct Entry {
    std::int64_t deadline_ns;
    std::uint64_t order;
    std::size_t index;
    bool operator<(const Entry& other) const {
      return std::tie(deadline_ns, order) < std::tie(other.deadline_ns, other.order);
    }
  };

  std::size_t any_node() {
    return input_.ConsumeIntegralInRange<std::size_t>(0, nodes_.size() - 1);
  }

  static std::int64_t saturating_sum(std::int64_t left, std::int64_t right) {
    std::int64_t sum = 0;
    return __builtin_add_overflow(left, right, &sum) ? never_ns : sum;
  }

  std::int64_t distance_ns() {
    const auto bits = input_.ConsumeIntegralInRange<unsigned>(0, 62);
    return input_.ConsumeIntegralInRange<std::int64_t>(0, (std::int64_t{1} << bits) - 1);
  }

  std::int64_t deadline_ns() {
    switch (input_.ConsumeIntegralInRange<int>(0, 7)) {
      case 0:
        return input_.ConsumeIntegral<std::int64_t>();
      case 1:
        return now_ns_ - distance_ns() % now_ns_after_zero();
      case 2:
        return now_ns_;
      default:
        return saturating_sum(now_ns_, distance_ns());
    }
  }

  std::int64_t now_ns_after_zero() const { return now_ns_ > 0 ? now_ns_ : 1; }

  std::int64_t earliest_ns() const {
    return linked_.empty() ? never_ns : linked_.begin()->deadline_ns;
  }

  void start(std::size_t index, std::int64_t deadline) {
    store_.start(nodes_[index], deadline);
    forget(index);
    entries_[index] = {deadline, ++order_, index};
    linked_.insert(entries_[index]);
  }

  void stop(std::size_t index) {
    store_.stop(nodes_[index]);
    forget(index);
  }

  void forget(std::size_t index) {
    if (entries_[index].order == 0) return;
    linked_.erase(entries_[index]);
    pass_.erase(entries_[index]);
    entries_[index] = {};
  }

  // What is due now is in the pass; what is started from here on is not.
  void begin_pass() {
    store_.begin_pass(now_ns_);
    for (const Entry& entry : linked_) {
      if (entry.deadline_ns > now_ns_) break;
      pass_.insert(entry);
    }
  }

  bool pop() {
    TimerNode* const node = store_.pop_due();
    if (pass_.empty()) {
      fuzz_check(node == nullptr, "the pass is over");
      return false;
    }
    const std::size_t index = pass_.begin()->index;
    fuzz_check(node == &nodes_[index], "the next of the pass");
    fuzz_check(!node->linked(), "what is handed out is out of the store");
    forget(index);
    return true;
  }

  FuzzedDataProvider& input_;
  TimerStore store_;
  std::array<TimerNode, 600> nodes_;  // more than a batch takes
  std::array<Entry, 600> entries_{};
  std::set<Entry> linked_;
  std::set<Entry> pass_;
  std::int64_t now_ns_ = 0;
  std::uint64_t order_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  Model model(input);
  while (input.remaining_bytes() > 0) model.step();
  model.drain();
  return 0;
}
