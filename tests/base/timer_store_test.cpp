#include "base/timer_store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/prng.hpp"

namespace evix::detail {
namespace {

constexpr std::int64_t earliest_possible_ns = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t never_ns = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t ms_ns = 1'000'000;
constexpr std::int64_t second_ns = 1'000'000'000;

// The contract as an ordered map: (deadline, start order) -> timer, and the pass as a set of names.
class Model {
 public:
  void start(std::size_t timer, std::int64_t deadline_ns) {
    stop(timer);
    const Key key{deadline_ns, ++last_order_};
    armed_.emplace(key, timer);
    keys_.emplace(timer, key);
  }
  void stop(std::size_t timer) {
    const auto found = keys_.find(timer);
    if (found == keys_.end()) return;
    armed_.erase(found->second);
    pass_.erase(found->second);
    keys_.erase(found);
  }
  std::int64_t next_deadline_ns() const {
    return armed_.empty() ? never_ns : armed_.begin()->first.first;
  }
  void begin_pass(std::int64_t now_ns) {
    pass_now_ns_ = in_pass_ ? std::max(pass_now_ns_, now_ns) : now_ns;
    in_pass_ = true;
    for (const auto& [key, timer] : armed_) {
      if (key.first > pass_now_ns_) break;
      pass_.insert(key);
    }
  }
  // The timer's index, or none.
  std::size_t pop_due() {
    if (pass_.empty()) {
      in_pass_ = false;
      return none;
    }
    const std::size_t timer = armed_.at(*pass_.begin());
    stop(timer);
    return timer;
  }
  bool linked(std::size_t timer) const { return keys_.contains(timer); }
  std::size_t size() const { return armed_.size(); }
  std::set<std::size_t> timers() const {
    std::set<std::size_t> result;
    for (const auto& [timer, key] : keys_) result.insert(timer);
    return result;
  }

  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

 private:
  using Key = std::pair<std::int64_t, std::uint64_t>;
  std::map<Key, std::size_t> armed_;
  std::map<std::size_t, Key> keys_;
  std::set<Key> pass_;
  std::int64_t pass_now_ns_ = 0;
  bool in_pass_ = false;
  std::uint64_t last_order_ = 0;
};

// The store and the model side by side; every call is made on both and the answers compared.
class Pair {
 public:
  explicit Pair(std::size_t count) : nodes_(std::make_unique<TimerNode[]>(count)), count_(count) {}

  void start(std::size_t timer, std::int64_t deadline_ns) {
    store_.start(nodes_[timer], deadline_ns);
    model_.start(timer, deadline_ns);
    ASSERT_TRUE(nodes_[timer].linked());
    ASSERT_EQ(nodes_[timer].deadline_ns, deadline_ns);
  }
  void stop(std::size_t timer) {
    store_.stop(nodes_[timer]);
    model_.stop(timer);
    ASSERT_FALSE(nodes_[timer].linked());
  }
  void begin_pass(std::int64_t now_ns) {
    store_.begin_pass(now_ns);
    model_.begin_pass(now_ns);
  }
  void pop_due(std::size_t& timer) {
    const TimerNode* const node = store_.pop_due();
    timer = node == nullptr ? Model::none : static_cast<std::size_t>(node - nodes_.get());
    ASSERT_EQ(timer, model_.pop_due());
    if (node != nullptr) {
      ASSERT_FALSE(node->linked());
    }
  }
  void drain(std::int64_t now_ns) {
    begin_pass(now_ns);
    std::size_t timer = 0;
    while (timer != Model::none) ASSERT_NO_FATAL_FAILURE(pop_due(timer));
  }
  void check_next() { ASSERT_EQ(store_.next_deadline_ns(), model_.next_deadline_ns()); }
  void check_contents() {
    ASSERT_EQ(store_.size(), model_.size());
    ASSERT_EQ(store_.empty(), model_.size() == 0);
    std::set<std::size_t> seen;
    store_.for_each([&](const TimerNode& node) {
      const auto timer = static_cast<std::size_t>(&node - nodes_.get());
      ASSERT_LT(timer, count_);
      ASSERT_TRUE(seen.insert(timer).second) << "visited twice: " << timer;
    });
    ASSERT_EQ(seen, model_.timers());
  }
  std::int64_t next_deadline_ns() const { return model_.next_deadline_ns(); }
  std::size_t count() const { return count_; }

 private:
  std::unique_ptr<TimerNode[]> nodes_;
  std::size_t count_;
  TimerStore store_;
  Model model_;
};

TEST(TimerStore, IsEmptyAtFirst) {
  TimerStore store;
  EXPECT_TRUE(store.empty());
  EXPECT_EQ(store.next_deadline_ns(), never_ns);
  EXPECT_EQ(store.pop_due(), nullptr);
  store.begin_pass(never_ns);
  EXPECT_EQ(store.pop_due(), nullptr);
}

TEST(TimerStore, DueMeansDeadlineNotAfterNow) {
  TimerStore store;
  TimerNode node;
  store.start(node, 1000);
  EXPECT_EQ(store.next_deadline_ns(), 1000);
  store.begin_pass(999);
  EXPECT_EQ(store.pop_due(), nullptr);
  EXPECT_TRUE(node.linked());
  store.begin_pass(1000);
  EXPECT_EQ(store.pop_due(), &node);
  EXPECT_FALSE(node.linked());
  EXPECT_EQ(store.pop_due(), nullptr);
  EXPECT_TRUE(store.empty());
}

TEST(TimerStore, StopIsIdempotent) {
  TimerStore store;
  TimerNode node;
  store.stop(node);
  store.start(node, 5);
  store.stop(node);
  store.stop(node);
  EXPECT_EQ(store.size(), 0U);
  EXPECT_EQ(store.next_deadline_ns(), never_ns);
}

TEST(TimerStore, RestartMovesBehindItsEquals) {
  for (const std::int64_t deadline_ns : {-second_ns, std::int64_t{5}, 90 * second_ns, never_ns}) {
    TimerStore store;
    TimerNode first;
    TimerNode second;
    store.start(first, deadline_ns);
    store.start(second, deadline_ns);
    store.start(first, deadline_ns);
    EXPECT_EQ(store.size(), 2U);
    store.begin_pass(never_ns);
    EXPECT_EQ(store.pop_due(), &second) << deadline_ns;
    EXPECT_EQ(store.pop_due(), &first) << deadline_ns;
    EXPECT_EQ(store.pop_due(), nullptr);
  }
}

TEST(TimerStore, NodeStartedDuringThePassWaitsForTheNext) {
  TimerStore store;
  TimerNode due;
  TimerNode late;
  store.start(due, 100);
  store.start(late, 200);
  store.begin_pass(200);
  EXPECT_EQ(store.pop_due(), &due);
  store.start(due, 50);
  EXPECT_EQ(store.next_deadline_ns(), 50);
  EXPECT_EQ(store.pop_due(), &late);
  EXPECT_EQ(store.pop_due(), nullptr);
  EXPECT_EQ(store.pop_due(), nullptr) << "a finished pass stays finished";
  store.begin_pass(200);
  EXPECT_EQ(store.pop_due(), &due);
  EXPECT_EQ(store.pop_due(), nullptr);
}

TEST(TimerStore, NestedPassTakesOverTheRestInExactOrder) {
  TimerStore store;
  TimerNode nodes[4];
  store.start(nodes[0], 10);
  store.start(nodes[1], 30);
  store.start(nodes[2], 40);
  store.begin_pass(30);
  EXPECT_EQ(store.pop_due(), &nodes[0]);
  store.start(nodes[3], 20);  // due, and earlier than the rest of the pass
  EXPECT_EQ(store.next_deadline_ns(), 20);
  store.begin_pass(40);
  EXPECT_EQ(store.pop_due(), &nodes[3]);
  EXPECT_EQ(store.pop_due(), &nodes[1]);
  EXPECT_EQ(store.pop_due(), &nodes[2]);
  EXPECT_EQ(store.pop_due(), nullptr);
  store.start(nodes[0], 5);
  EXPECT_EQ(store.pop_due(), nullptr) << "the outer run's pass was finished by the inner one";
}

TEST(TimerStore, NestedPassWithAnEarlierTimeKeepsTheRestDue) {
  TimerStore store;
  TimerNode first;
  TimerNode second;
  store.start(first, 10);
  store.start(second, 30);
  store.begin_pass(30);
  EXPECT_EQ(store.pop_due(), &first);
  store.begin_pass(15);
  EXPECT_EQ(store.pop_due(), &second);
  EXPECT_EQ(store.pop_due(), nullptr);
}

// Around every power of two, on both sides of zero: each slot width and each level's end.
TEST(TimerStore, BoundariesOfEveryLevel) {
  std::vector<std::int64_t> times{
      earliest_possible_ns, earliest_possible_ns + 1, -1, 0, 1, never_ns - 1, never_ns};
  for (unsigned bit = 1; bit < 63; ++bit) {
    const std::int64_t power = std::int64_t{1} << bit;
    for (const std::int64_t offset : {-1, 0, 1}) {
      times.push_back(power + offset);
      times.push_back(-power + offset);
    }
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    Pair pair(times.size() * 2);
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < times.size() * 2; ++i) order.push_back(i);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[prng.below(i)]);
    for (const std::size_t timer : order) pair.start(timer, times[timer / 2]);
    // Step through time one nanosecond before, at and after each deadline.
    for (const std::int64_t time_ns : times) {
      ASSERT_NO_FATAL_FAILURE(pair.check_next());
      if (time_ns > earliest_possible_ns) {
        ASSERT_NO_FATAL_FAILURE(pair.drain(time_ns - 1));
      }
      if (seed % 2 == 0) {
        ASSERT_NO_FATAL_FAILURE(pair.check_next());
      }
      ASSERT_NO_FATAL_FAILURE(pair.drain(time_ns));
    }
    ASSERT_NO_FATAL_FAILURE(pair.check_contents());
    ASSERT_EQ(pair.next_deadline_ns(), never_ns);
  }
}

TEST(TimerStore, JumpOfYearsFiresEachOnceInOrder) {
  constexpr std::int64_t year_ns = 365 * 86'400 * second_ns;
  Pair pair(1000);
  pair.drain(5 * second_ns);
  Prng prng(7);
  for (std::size_t timer = 0; timer < pair.count(); ++timer) {
    pair.start(timer, 5 * second_ns + static_cast<std::int64_t>(prng.below(3 * year_ns)));
  }
  ASSERT_NO_FATAL_FAILURE(pair.check_next());
  ASSERT_NO_FATAL_FAILURE(pair.drain(5 * second_ns + year_ns));
  ASSERT_NO_FATAL_FAILURE(pair.check_next());
  ASSERT_NO_FATAL_FAILURE(pair.drain(never_ns));
  ASSERT_NO_FATAL_FAILURE(pair.check_contents());
  EXPECT_EQ(pair.next_deadline_ns(), never_ns);
}

// A few timers far away, many in between, and back: the wheel's base is ahead of the new starts.
TEST(TimerStore, StartsBeforeTheEarliestOfManyLaterOnes) {
  Pair pair(3000);
  pair.drain(second_ns);
  for (std::size_t timer = 0; timer < 1000; ++timer) pair.start(timer, 3600 * second_ns + 1);
  ASSERT_NO_FATAL_FAILURE(pair.check_next());
  for (std::size_t timer = 1000; timer < 3000; ++timer) {
    pair.start(timer, 2 * second_ns + static_cast<std::int64_t>((timer * 7919) % 2000) * ms_ns);
    ASSERT_NO_FATAL_FAILURE(pair.check_next());
  }
  for (std::size_t timer = 1000; timer < 2000; ++timer) {
    pair.stop(timer);
    ASSERT_NO_FATAL_FAILURE(pair.check_next());
  }
  ASSERT_NO_FATAL_FAILURE(pair.drain(3 * second_ns));
  ASSERT_NO_FATAL_FAILURE(pair.drain(3600 * second_ns + 1));
  ASSERT_NO_FATAL_FAILURE(pair.check_contents());
}

// The oldest is restarted again and again: the usual life of idle time-outs.
TEST(TimerStore, NextDeadlineFollowsRestartsOfTheEarliest) {
  Pair pair(500);
  std::int64_t now_ns = 17 * second_ns;
  pair.drain(now_ns);
  for (std::size_t timer = 0; timer < pair.count(); ++timer) {
    pair.start(timer, now_ns += 120'000 + 60 * second_ns);
    now_ns -= 60 * second_ns;
  }
  for (std::size_t turn = 0; turn < 20'000; ++turn) {
    now_ns += 100'000;
    pair.start(turn % pair.count(), now_ns + 60 * second_ns);
    ASSERT_NO_FATAL_FAILURE(pair.check_next());
    if (turn % 7 == 0) {
      ASSERT_NO_FATAL_FAILURE(pair.drain(now_ns));
    }
  }
}

// One random program: mixes of scales, ties, extremes, passes and nested passes.
class RandomProgram {
 public:
  explicit RandomProgram(std::uint64_t seed)
      : prng_(seed),
        pair_(std::size_t{1} << (1 + prng_.below(9))),
        tie_grid_ns_(std::int64_t{1} << prng_.below(30)) {
    if (prng_.below(4) != 0)
      now_ns_ = static_cast<std::int64_t>(prng_.below(1'000'000) * second_ns);
    scale_bits_ = 1 + static_cast<unsigned>(prng_.below(45));
  }

  void run() {
    pair_.begin_pass(now_ns_);
    for (unsigned step = 0; step < 3000; ++step) {
      ASSERT_NO_FATAL_FAILURE(take_step()) << "step " << step;
    }
    ASSERT_NO_FATAL_FAILURE(pair_.check_contents());
    ASSERT_NO_FATAL_FAILURE(pair_.drain(never_ns));
    ASSERT_NO_FATAL_FAILURE(pair_.check_contents());
    ASSERT_NO_FATAL_FAILURE(pair_.check_next());
  }

 private:
  std::int64_t random_deadline_ns() {
    const std::uint64_t kind = prng_.below(64);
    if (kind == 0) return never_ns;
    if (kind == 1) return earliest_possible_ns;
    if (kind == 2) return static_cast<std::int64_t>(prng_.next());
    if (kind < 6) return clamp_add(now_ns_, -static_cast<std::int64_t>(prng_.below(second_ns)));
    const unsigned bits = kind < 20 ? static_cast<unsigned>(prng_.below(60)) : scale_bits_;
    const auto delay_ns = static_cast<std::int64_t>(prng_.below(std::uint64_t{1} << bits));
    const std::int64_t deadline_ns = clamp_add(now_ns_, delay_ns);
    return kind % 2 == 0 ? deadline_ns : deadline_ns / tie_grid_ns_ * tie_grid_ns_;
  }

  static std::int64_t clamp_add(std::int64_t time_ns, std::int64_t delay_ns) {
    std::int64_t sum = 0;
    if (!__builtin_add_overflow(time_ns, delay_ns, &sum)) return sum;
    return delay_ns < 0 ? earliest_possible_ns : never_ns;
  }

  void advance() {
    const std::uint64_t kind = prng_.below(200);
    const unsigned bits = kind == 0 ? 58 : scale_bits_ > 4 ? scale_bits_ - 4 : 1;
    if (kind < 30 && pair_.next_deadline_ns() > now_ns_ && pair_.next_deadline_ns() != never_ns) {
      now_ns_ = pair_.next_deadline_ns() - static_cast<std::int64_t>(kind % 2);
      return;
    }
    const auto step_ns = static_cast<std::int64_t>(prng_.below(std::uint64_t{1} << bits));
    now_ns_ = std::min(clamp_add(now_ns_, step_ns), never_ns - 1);
  }

  void take_step() {
    const std::size_t timer = prng_.below(pair_.count());
    const std::uint64_t kind = prng_.below(100);
    if (kind < 45) {
      ASSERT_NO_FATAL_FAILURE(pair_.start(timer, random_deadline_ns()));
    } else if (kind < 60) {
      ASSERT_NO_FATAL_FAILURE(pair_.stop(timer));
    } else if (kind < 72) {
      ASSERT_NO_FATAL_FAILURE(pair_.check_next());
    } else if (kind < 76) {
      advance();
      ASSERT_NO_FATAL_FAILURE(pair_.drain(now_ns_));
    } else if (kind < 80) {
      advance();
      pair_.begin_pass(now_ns_);
    } else if (kind < 99) {
      std::size_t popped = 0;
      ASSERT_NO_FATAL_FAILURE(pair_.pop_due(popped));
    } else {
      ASSERT_NO_FATAL_FAILURE(pair_.check_contents());
    }
  }

  Prng prng_;
  Pair pair_;
  std::int64_t now_ns_ = 0;
  std::int64_t tie_grid_ns_;
  unsigned scale_bits_ = 0;
};

std::uint64_t scaled(std::uint64_t full_run, std::uint64_t by_default) {
  const char* full = std::getenv("EVIX_TEST_FULL");
  return full != nullptr && std::string_view(full) == "1" ? full_run : by_default;
}

TEST(TimerStore, RandomProgramsAgreeWithTheModel) {
  for (std::uint64_t seed = 1; seed <= scaled(500, 100); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ASSERT_NO_FATAL_FAILURE(RandomProgram(seed).run());
  }
}

// What is due together is handed out from one sorted array. Between two nodes, nodes of the array
// and others are stopped, restarted, restarted into the pass, and a nested pass takes over the
// rest.
TEST(TimerStore, AnythingMayHappenWhileTheBatchIsHalfHandedOut) {
  for (std::uint64_t seed = 1; seed <= scaled(40, 10); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    Pair pair(20 + prng.below(400));
    std::int64_t now_ns = second_ns;
    pair.drain(now_ns);
    for (unsigned round = 0; round < 20; ++round) {
      // All in 65 us, so in one slot of the second level or a few of the first; many are equal.
      const auto soon_ns = [&] { return now_ns + static_cast<std::int64_t>(prng.below(65'536)); };
      for (std::size_t timer = 0; timer < pair.count(); ++timer) {
        if (prng.below(8) != 0) pair.start(timer, soon_ns() / 64 * 64);
      }
      now_ns += static_cast<std::int64_t>(prng.below(131'072));
      pair.begin_pass(now_ns);
      std::size_t popped = 0;
      while (popped != Model::none) {
        ASSERT_NO_FATAL_FAILURE(pair.pop_due(popped));
        const std::size_t timer = prng.below(pair.count());
        const std::uint64_t kind = prng.below(20);
        if (kind < 3) {
          ASSERT_NO_FATAL_FAILURE(pair.stop(timer));
        }
        if (kind == 3) {
          ASSERT_NO_FATAL_FAILURE(pair.start(timer, soon_ns()));
        }
        if (kind == 4) {
          ASSERT_NO_FATAL_FAILURE(pair.start(timer, now_ns - 1000));
        }
        if (kind == 5) {
          ASSERT_NO_FATAL_FAILURE(pair.check_contents());
        }
        if (kind < 10) {
          ASSERT_NO_FATAL_FAILURE(pair.check_next());
        }
        if (kind == 10) pair.begin_pass(now_ns += static_cast<std::int64_t>(prng.below(10'000)));
      }
      ASSERT_NO_FATAL_FAILURE(pair.check_contents());
    }
    ASSERT_NO_FATAL_FAILURE(pair.drain(never_ns));
    ASSERT_NO_FATAL_FAILURE(pair.check_contents());
  }
}

// A restart to an earlier time that is still not before its slot's first use stays where it is; one
// to an earlier time than that moves. The slot is used, emptied and used again for later times.
TEST(TimerStore, RestartsToEarlierTimesAroundTheFloorOfASlot) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    Pair pair(64);
    std::int64_t now_ns = second_ns;
    pair.drain(now_ns);
    for (unsigned step = 0; step < 2000; ++step) {
      const std::size_t timer = prng.below(pair.count());
      const auto distance_ns = static_cast<std::int64_t>(prng.below(std::uint64_t{1} << 24));
      if (prng.below(5) == 0) {
        ASSERT_NO_FATAL_FAILURE(pair.stop(timer));
      } else {
        ASSERT_NO_FATAL_FAILURE(pair.start(timer, now_ns + distance_ns));
      }
      if (prng.below(3) == 0) {
        ASSERT_NO_FATAL_FAILURE(pair.check_next());
      }
      if (prng.below(16) == 0) {
        ASSERT_NO_FATAL_FAILURE(pair.drain(now_ns += 1'000'000));
      }
    }
  }
}

// T092: 10^5 timers on 50 distinct deadlines, 30 % cancelled, 20 % re-armed, one late pass.
TEST(TimerStore, T092SameDeadlineOrder) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    Pair pair(100'000);
    const std::int64_t now_ns = 1000 * second_ns;
    pair.drain(now_ns);
    const auto deadline_ns = [&] {
      return now_ns + static_cast<std::int64_t>(1 + prng.below(50)) * 10 * ms_ns;
    };
    for (std::size_t timer = 0; timer < pair.count(); ++timer) pair.start(timer, deadline_ns());
    for (std::size_t i = 0; i < pair.count() / 10 * 3; ++i) pair.stop(prng.below(pair.count()));
    for (std::size_t i = 0; i < pair.count() / 5; ++i) {
      pair.start(prng.below(pair.count()), deadline_ns());
      if (i % 100 == 0) {
        ASSERT_NO_FATAL_FAILURE(pair.check_next());
      }
    }
    ASSERT_NO_FATAL_FAILURE(pair.drain(now_ns + 600 * second_ns));
    ASSERT_NO_FATAL_FAILURE(pair.check_contents());
    ASSERT_EQ(pair.next_deadline_ns(), never_ns);
  }
}

// T095: three timers due together; the first popped does one of {stop, again, restart} to each of
// the three, itself included. "Again" starts anew at the same distance (due), "restart" with 50 ms.
TEST(TimerStore, T095CancelAndStartInsideThePass) {
  constexpr std::int64_t restart_delay_ns = 50 * ms_ns;
  for (unsigned combination = 0; combination < 27; ++combination) {
    SCOPED_TRACE("combination " + std::to_string(combination));
    const unsigned actions[3] = {combination % 3, combination / 3 % 3, combination / 9};
    TimerStore store;
    TimerNode timers[3];
    std::int64_t now_ns = second_ns;
    for (TimerNode& timer : timers) store.start(timer, now_ns);
    store.begin_pass(now_ns);
    ASSERT_EQ(store.pop_due(), &timers[0]);
    std::vector<TimerNode*> again;
    std::vector<TimerNode*> later;
    for (unsigned i = 0; i < 3; ++i) {
      if (actions[i] == 0) store.stop(timers[i]);
      if (actions[i] == 1) {
        store.start(timers[i], now_ns);
        again.push_back(&timers[i]);
      }
      if (actions[i] == 2) {
        store.start(timers[i], now_ns + restart_delay_ns);
        later.push_back(&timers[i]);
      }
    }
    ASSERT_EQ(store.pop_due(), nullptr) << "all three left the pass";
    store.begin_pass(now_ns);
    for (TimerNode* timer : again) ASSERT_EQ(store.pop_due(), timer);
    ASSERT_EQ(store.pop_due(), nullptr);
    ASSERT_EQ(store.next_deadline_ns(), later.empty() ? never_ns : now_ns + restart_delay_ns);
    now_ns += restart_delay_ns - 1;
    store.begin_pass(now_ns);
    ASSERT_EQ(store.pop_due(), nullptr) << "one nanosecond early";
    store.begin_pass(now_ns + 1);
    for (TimerNode* timer : later) ASSERT_EQ(store.pop_due(), timer);
    ASSERT_EQ(store.pop_due(), nullptr);
    ASSERT_TRUE(store.empty());
  }
}

TEST(Prng, SameSeedSameSequenceAndBelowStaysBelow) {
  Prng first(42);
  Prng second(42);
  Prng other(43);
  unsigned equal = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t value = first.next();
    ASSERT_EQ(value, second.next());
    if (value == other.next()) ++equal;
  }
  EXPECT_EQ(equal, 0U);
  EXPECT_EQ(first.below(0), 0U);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(first.below(10));
  EXPECT_EQ(seen.size(), 10U);
  EXPECT_EQ(*seen.rbegin(), 9U);
}

}  // namespace
}  // namespace evix::detail
