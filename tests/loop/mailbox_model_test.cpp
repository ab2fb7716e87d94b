#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

/** @file
 * What the memory orders in src/loop/mailbox.hpp allow, for two producers that push or wake once
 * and one loop that sleeps again and again. tests/models/mailbox.pml has the whole protocol, as if
 * each access were sequentially consistent; this has its core with the orders that stand in the
 * code.
 *
 * Each place keeps the values written to it, in their order, each with the writer's view: the
 * oldest value of every place that may still be read by who has read this one with acquire. A load
 * may give any value that its thread's view allows; a sequentially consistent one besides none
 * older than what such an access of the place has written or read before. A read-modify-write reads
 * the newest. (C++20, [atomics.order], without reads of values that are written later.) The states
 * are finite, as values that nobody can read any more are forgotten, and each is visited.
 */
namespace evix::detail {
namespace {

enum class Order : std::uint8_t { relaxed, acquire, release, acq_rel, seq_cst };

bool acquires(Order order) { return order != Order::relaxed && order != Order::release; }
bool releases(Order order) { return order != Order::relaxed && order != Order::acquire; }

/** As in the code. */
struct Orders {
  Order push = Order::seq_cst;        // head_, by push()
  Order ask = Order::seq_cst;         // wake_asked_, by wake()
  Order look = Order::seq_cst;        // asleep_, by wake_if_asleep()
  Order reset = Order::seq_cst;       // asleep_, by the exchange after it
  Order take = Order::acq_rel;        // head_, by take()
  Order say_asleep = Order::seq_cst;  // asleep_, by fall_asleep(), and what it looks at:
  Order look_at_head = Order::seq_cst;
  Order look_at_ask = Order::seq_cst;
  Order take_ask = Order::acquire;  // wake_asked_, by the exchange in wake_up()
};

enum class Act : std::uint8_t { push, wake };

/** What is wrong with the order of the steps. */
enum class Mistake : std::uint8_t {
  none,
  loop_looks_before_it_says_asleep,
  producer_looks_before_it_acts,
  event_is_not_counted,  // an event before the wait is lost: an edge that nobody saw
};

// Also the places of what a producer writes before it acts.
enum Place : std::uint8_t { head, asleep, wake_asked, data, data_of_second, places };
constexpr std::size_t producers = 2;
constexpr std::size_t loop_thread = producers;
constexpr std::uint8_t acts_of_each = 1;

using View = std::array<std::uint8_t, places>;
struct Value {
  std::uint8_t value = 0;
  View view{};
};
struct State {
  std::array<std::vector<Value>, places> values;
  View newest_consistent{};  // index of what a sequentially consistent load may not go behind
  std::array<View, producers + 1> views{};
  std::array<std::uint8_t, producers + 1> at{};
  std::array<std::uint8_t, producers> acted{};
  std::array<std::uint8_t, producers> taken{};
  bool event = false;

  State() {
    for (auto& each : values) each.assign(1, {});
  }
};

std::uint8_t last_of(const std::vector<Value>& values) {
  return static_cast<std::uint8_t>(values.size() - 1);
}

void join(View& view, const View& other) {
  for (std::size_t i = 0; i < places; ++i) view[i] = std::max(view[i], other[i]);
}

class Model {
 public:
  Model(std::array<Act, producers> acts, Orders orders, Mistake mistake = Mistake::none)
      : acts_(acts), orders_(orders), mistake_(mistake) {}

  void explore() {
    found({});
    while (!open_.empty()) {
      const State state = std::move(open_.back());
      open_.pop_back();
      const std::size_t before = steps_;
      for (std::size_t producer = 0; producer < producers; ++producer) {
        if (state.acted[producer] < acts_of_each) step_producer(state, producer);
      }
      step_loop(state);
      if (steps_ == before) look_at_end(state);
    }
  }
  std::size_t states() const { return seen_.size(); }
  std::size_t ends() const { return ends_; }
  std::size_t lost() const { return lost_; }      // ends asleep with something left to do
  std::size_t unseen() const { return unseen_; }  // times that what a producer wrote was not seen

 private:
  // ---- Accesses of memory ----

  /** Calls `then(state, value)` for each value that may be read. */
  template <class Then>
  void load(const State& before, std::size_t thread, Place place, Order order, Then then) {
    std::uint8_t index = before.views[thread][place];
    const bool consistent = order == Order::seq_cst;
    if (consistent) index = std::max(index, before.newest_consistent[place]);
    for (; index < before.values[place].size(); ++index) {
      State state = before;
      const Value& read = state.values[place][index];
      state.views[thread][place] = index;
      if (consistent) state.newest_consistent[place] = index;
      if (acquires(order)) join(state.views[thread], read.view);
      then(std::move(state), read.value);
    }
  }
  static void store(State& state, std::size_t thread, Place place, Order order, std::uint8_t value,
                    View inherited = {}) {
    View& view = state.views[thread];
    view[place] = static_cast<std::uint8_t>(state.values[place].size());
    if (order == Order::seq_cst) state.newest_consistent[place] = view[place];
    if (releases(order)) join(inherited, view);
    inherited[place] = view[place];
    state.values[place].push_back({value, inherited});
  }
  /** @return the value before. What it writes carries on what it has read. */
  static std::uint8_t exchange(State& state, std::size_t thread, Place place, Order order,
                               std::uint8_t value) {
    const Value read = state.values[place].back();
    state.views[thread][place] = last_of(state.values[place]);
    if (acquires(order)) join(state.views[thread], read.view);
    store(state, thread, place, order, value, read.view);
    return read.value;
  }

  // ---- Producers ----

  static Place data_of(std::size_t producer) { return static_cast<Place>(data + producer); }

  void go(State state, std::size_t thread, std::uint8_t at) {
    state.at[thread] = at;
    found(std::move(state));
  }
  void end_act(State state, std::size_t producer) {
    if (++state.acted[producer] == acts_of_each) {  // its view keeps no value from being forgotten
      for (std::size_t i = 0; i < places; ++i) state.views[producer][i] = last_of(state.values[i]);
    }
    go(std::move(state), producer, write);
  }
  // push() and wake(): write what is posted; act; look at `asleep`; take it down; write the event.
  enum ProducerStep : std::uint8_t { write, act, look, reset, ring, early_look, act_unheard };

  void step_producer(State state, std::size_t producer) {
    const bool early = mistake_ == Mistake::producer_looks_before_it_acts;
    const auto number = static_cast<std::uint8_t>(state.acted[producer] + 1);
    switch (state.at[producer]) {
      case write:
        store(state, producer, data_of(producer), Order::relaxed, number);
        return go(std::move(state), producer, early ? early_look : act);
      case early_look:
        return load(state, producer, asleep, orders_.look, [&](State next, std::uint8_t value) {
          go(std::move(next), producer, value == 0 ? act_unheard : act);
        });
      case act_unheard:
        do_act(state, producer, number);
        return end_act(std::move(state), producer);
      case act:
        do_act(state, producer, number);
        return go(std::move(state), producer, early ? reset : look);
      case look:
        return load(state, producer, asleep, orders_.look, [&](State next, std::uint8_t value) {
          if (value == 0) return end_act(std::move(next), producer);
          go(std::move(next), producer, reset);
        });
      case reset:
        if (exchange(state, producer, asleep, orders_.reset, 0) == 0) {
          return end_act(std::move(state), producer);
        }
        return go(std::move(state), producer, ring);
      default:
        state.event = state.event || mistake_ != Mistake::event_is_not_counted ||
                      state.at[loop_thread] == wait;
        return end_act(std::move(state), producer);
    }
  }
  // In `head` two bits for each producer count its works; `wake_asked` says who asked, which act.
  void do_act(State& state, std::size_t producer, std::uint8_t number) const {
    if (acts_[producer] == Act::push) {
      const auto more = static_cast<std::uint8_t>(1U << (2 * producer));
      const std::uint8_t works = state.values[head].back().value;
      exchange(state, producer, head, orders_.push, static_cast<std::uint8_t>(works + more));
    } else {
      store(state, producer, wake_asked, orders_.ask,
            static_cast<std::uint8_t>(producer << 2U | number));
    }
  }

  // ---- The loop ----

  enum LoopStep : std::uint8_t {
    has_work,
    take,
    say_asleep,
    look_at_head,
    look_at_ask,
    wait,
    wake_up,
    was_asked,
    take_ask
  };

  void step_loop(State state) {
    const bool early = mistake_ == Mistake::loop_looks_before_it_says_asleep;
    const auto branch = [&](Place place, Order order, LoopStep none, LoopStep some) {
      load(state, loop_thread, place, order, [&](State next, std::uint8_t value) {
        go(std::move(next), loop_thread, value == 0 ? none : some);
      });
    };
    switch (static_cast<LoopStep>(state.at[loop_thread])) {
      case has_work:
        return branch(head, Order::relaxed, early ? look_at_head : say_asleep, take);
      case take: {
        const unsigned works = exchange(state, loop_thread, head, orders_.take, 0);
        for (std::size_t producer = 0; producer < producers; ++producer) {
          const unsigned count = works >> (2 * producer) & 3U;
          state.taken[producer] = static_cast<std::uint8_t>(state.taken[producer] + count);
          if (count != 0) expect_seen(state, producer, state.taken[producer]);
        }
        return go(std::move(state), loop_thread, has_work);
      }
      case say_asleep:
        store(state, loop_thread, asleep, orders_.say_asleep, 1);
        return go(std::move(state), loop_thread, early ? wait : look_at_head);
      case look_at_head:
        return branch(head, orders_.look_at_head, look_at_ask, wake_up);
      case look_at_ask:
        return branch(wake_asked, orders_.look_at_ask, early ? say_asleep : wait, wake_up);
      case wait:
        if (!state.event) return;
        state.event = false;
        return go(std::move(state), loop_thread, wake_up);
      case wake_up:
        store(state, loop_thread, asleep, Order::relaxed, 0);
        return go(std::move(state), loop_thread, was_asked);
      case was_asked:
        return branch(wake_asked, Order::relaxed, has_work, take_ask);
      case take_ask: {
        const std::uint8_t asked = exchange(state, loop_thread, wake_asked, orders_.take_ask, 0);
        expect_seen(state, asked >> 2U, asked & 3U);
        return go(std::move(state), loop_thread, has_work);
      }
    }
  }
  void expect_seen(const State& state, std::size_t producer, std::uint8_t number) {
    const Place place = data_of(producer);
    if (state.values[place][state.views[loop_thread][place]].value < number) ++unseen_;
  }
  void look_at_end(const State& state) {
    ++ends_;
    if (state.values[head].back().value != 0 || state.values[wake_asked].back().value != 0) ++lost_;
  }

  // ---- States ----

  static void forget(State& state) {
    for (std::size_t place = 0; place < places; ++place) {
      std::uint8_t oldest = last_of(state.values[place]);
      for (const View& view : state.views) oldest = std::min(oldest, view[place]);
      auto& values = state.values[place];
      values.erase(values.begin(), values.begin() + oldest);
      const auto lower = [&](View& view) {
        view[place] = static_cast<std::uint8_t>(view[place] - std::min(view[place], oldest));
      };
      for (View& view : state.views) lower(view);
      lower(state.newest_consistent);
      for (auto& others : state.values) {
        for (Value& value : others) lower(value.view);
      }
    }
  }
  static std::string key_of(const State& state) {
    std::string key;
    const auto add = [&](const auto& bytes) { key.append(bytes.begin(), bytes.end()); };
    for (const auto& values : state.values) {
      key += static_cast<char>(values.size());
      for (const Value& value : values) {
        key += static_cast<char>(value.value);
        add(value.view);
      }
    }
    add(state.newest_consistent);
    for (const View& view : state.views) add(view);
    add(state.at);
    add(state.acted);
    add(state.taken);
    key += state.event ? '1' : '0';
    return key;
  }
  void found(State state) {
    ++steps_;
    forget(state);
    if (seen_.insert(key_of(state)).second) open_.push_back(std::move(state));
  }

  const std::array<Act, producers> acts_;
  const Orders orders_;
  const Mistake mistake_;
  std::vector<State> open_;
  std::unordered_set<std::string> seen_;
  std::size_t steps_ = 0;
  std::size_t ends_ = 0;
  std::size_t lost_ = 0;
  std::size_t unseen_ = 0;
};

constexpr std::array<std::array<Act, producers>, 3> mixtures{{
    {Act::push, Act::push},
    {Act::push, Act::wake},
    {Act::wake, Act::wake},
}};

TEST(MailboxModel, TrapT110NoExecutionLosesAWakeUp) {
  for (const auto& acts : mixtures) {
    Model model(acts, {});
    model.explore();
    EXPECT_GT(model.states(), 1000U);
    EXPECT_GT(model.ends(), 0U);
    EXPECT_EQ(model.lost(), 0U);
    EXPECT_EQ(model.unseen(), 0U);
  }
}

TEST(MailboxModel, TrapT110EachMistakeLosesAWakeUp) {
  for (const Mistake mistake :
       {Mistake::loop_looks_before_it_says_asleep, Mistake::producer_looks_before_it_acts,
        Mistake::event_is_not_counted}) {
    for (const auto& acts : mixtures) {
      Model model(acts, {}, mistake);
      model.explore();
      EXPECT_GT(model.lost(), 0U) << static_cast<int>(mistake);
    }
  }
}

// Each order of the code that is not relaxed already is needed, but that of the exchange which
// takes `asleep_` down.
TEST(MailboxModel, TrapT110EachWeakerOrderLosesSomething) {
  struct Weaker {
    const char* what;
    Order Orders::* which;
    Order order;
    Act act;
    bool loses;  // a wake-up; else what was written before is not seen
  };
  for (const Weaker& weaker : {
           Weaker{"push", &Orders::push, Order::acq_rel, Act::push, true},
           Weaker{"wake() asks", &Orders::ask, Order::release, Act::wake, true},
           Weaker{"a poster looks", &Orders::look, Order::acquire, Act::push, true},
           Weaker{"wake() looks", &Orders::look, Order::acquire, Act::wake, true},
           Weaker{"asleep", &Orders::say_asleep, Order::release, Act::push, true},
           Weaker{"look at head", &Orders::look_at_head, Order::acquire, Act::push, true},
           Weaker{"look at ask", &Orders::look_at_ask, Order::acquire, Act::wake, true},
           Weaker{"take", &Orders::take, Order::relaxed, Act::push, false},
           Weaker{"take ask", &Orders::take_ask, Order::relaxed, Act::wake, false},
       }) {
    Orders orders;
    orders.*weaker.which = weaker.order;
    Model model({weaker.act, weaker.act}, orders);
    model.explore();
    EXPECT_EQ(model.lost() > 0, weaker.loses) << weaker.what;
    EXPECT_EQ(model.unseen() > 0, !weaker.loses) << weaker.what;
  }
  Orders orders;
  orders.reset = Order::relaxed;
  Model model({Act::push, Act::wake}, orders);
  model.explore();
  EXPECT_EQ(model.lost(), 0U);
  EXPECT_EQ(model.unseen(), 0U);
}

}  // namespace
}  // namespace evix::detail
