#include <gtest/gtest.h>

#include <array>
#include <compare>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

/** @file
 * Every interleaving of the protocol in src/loop/mailbox.hpp, for two producers that push or wake
 * and one loop that goes to sleep again and again.
 *
 * The model has one step for each atomic access, as they stand in the code: all of them are
 * sequentially consistent, so a total order of the steps is what can happen. A lost wake-up is a
 * state in which nobody has a step left and the loop sleeps though something is there for it.
 */
namespace evix::detail {
namespace {

enum class Act : std::uint8_t { push, wake };

/** What a mistaken protocol does otherwise. */
enum class Mistake : std::uint8_t {
  none,
  loop_looks_before_it_says_asleep,
  producer_looks_before_it_pushes,
  event_is_not_counted,  ///< an event before the wait is lost: an edge that nobody saw
};

struct Producer {
  std::uint8_t at = 0;  ///< next step
  std::uint8_t acts_left = 2;
  bool saw_asleep = false;
  auto operator<=>(const Producer&) const = default;
};

struct State {
  std::uint8_t stack = 0;  ///< works pushed and not taken
  std::uint8_t taken = 0;
  bool asleep = false;
  bool wake_asked = false;
  bool event = false;  ///< counter of the eventfd, not zero
  std::uint8_t loop_at = 0;
  bool loop_saw_nothing = false;
  std::uint8_t wakes_asked = 0;  ///< wake() calls that have begun and no wait has ended since
  std::array<Producer, 2> producers{};
  auto operator<=>(const State&) const = default;
};

enum LoopStep : std::uint8_t {
  take,
  say_asleep,
  look_stack,
  look_wake,
  wait,
  wake_up,
  forget_wakes
};

class Model {
 public:
  Model(std::array<Act, 2> acts, Mistake mistake) : acts_(acts), mistake_(mistake) {}

  /** Visits each state that can be reached. */
  void explore() {
    std::vector<State> open{State{}};
    seen_.insert(State{});
    while (!open.empty()) {
      const State state = open.back();
      open.pop_back();
      std::vector<State> next;
      step_producer(state, 0, next);
      step_producer(state, 1, next);
      step_loop(state, next);
      if (next.empty()) look_at_end(state);
      for (const State& each : next) {
        if (seen_.insert(each).second) open.push_back(each);
      }
    }
  }
  std::size_t states() const { return seen_.size(); }
  std::size_t ends() const { return ends_; }
  std::size_t lost() const { return lost_; }

 private:
  // push: link, look at `asleep`, take it down, write the event. wake: set `wake_asked`, the same.
  void step_producer(State state, std::size_t which, std::vector<State>& next) const {
    Producer& self = state.producers[which];
    if (self.acts_left == 0) return;
    const bool early_look = mistake_ == Mistake::producer_looks_before_it_pushes;
    const std::uint8_t link_at = early_look ? 1 : 0;
    const std::uint8_t look_at = early_look ? 0 : 1;
    std::uint8_t then = static_cast<std::uint8_t>(self.at + 1);
    if (self.at == link_at) {
      if (acts_[which] == Act::push) {
        ++state.stack;
      } else {
        state.wake_asked = true;
        ++state.wakes_asked;
      }
      if (early_look && !self.saw_asleep) then = done;
    } else if (self.at == look_at) {
      self.saw_asleep = state.asleep;
      if (!early_look && !state.asleep) then = done;
    } else if (self.at == 2) {
      const bool was_asleep = state.asleep;
      state.asleep = false;
      if (!was_asleep) then = done;
    } else {
      const bool heard = mistake_ != Mistake::event_is_not_counted || state.loop_at == wait;
      state.event = state.event || heard;
      then = done;
    }
    self.at = then;
    if (then == done) {
      self = {0, static_cast<std::uint8_t>(self.acts_left - 1), false};
    }
    next.push_back(state);
  }

  void step_loop(State state, std::vector<State>& next) const {
    switch (static_cast<LoopStep>(state.loop_at)) {
      case take:
        state.taken = static_cast<std::uint8_t>(state.taken + state.stack);
        state.stack = 0;
        state.loop_at =
            mistake_ == Mistake::loop_looks_before_it_says_asleep ? look_stack : say_asleep;
        break;
      case say_asleep:
        state.asleep = true;
        state.loop_at = mistake_ == Mistake::loop_looks_before_it_says_asleep ? wait : look_stack;
        break;
      case look_stack:
        state.loop_at = state.stack == 0 ? look_wake : wake_up;
        break;
      case look_wake:
        state.loop_at = wake_up;
        if (!state.wake_asked) {
          const bool early = mistake_ == Mistake::loop_looks_before_it_says_asleep;
          state.loop_at = early ? say_asleep : wait;
        }
        break;
      case wait:
        if (!state.event) return;  // sleeps until somebody writes the event
        state.event = false;
        state.loop_at = wake_up;
        break;
      case wake_up:
        state.asleep = false;
        state.loop_at = forget_wakes;
        break;
      case forget_wakes:  // what was asked until now has got its wait ended
        state.wake_asked = false;
        state.wakes_asked = 0;
        state.loop_at = take;
        break;
    }
    next.push_back(state);
  }

  // Nobody can go on: the producers are done, and the loop sleeps.
  void look_at_end(const State& state) {
    ++ends_;
    if (state.stack != 0 || state.wakes_asked != 0) ++lost_;
  }

  static constexpr std::uint8_t done = 4;
  const std::array<Act, 2> acts_;
  const Mistake mistake_;
  std::set<State> seen_;
  std::size_t ends_ = 0;
  std::size_t lost_ = 0;
};

constexpr std::array<std::array<Act, 2>, 3> mixtures{{
    {Act::push, Act::push},
    {Act::push, Act::wake},
    {Act::wake, Act::wake},
}};

TEST(MailboxModel, TrapT110NoInterleavingLosesAWakeUp) {
  for (const auto& acts : mixtures) {
    Model model(acts, Mistake::none);
    model.explore();
    EXPECT_GT(model.states(), 500U);
    EXPECT_GT(model.ends(), 0U);
    EXPECT_EQ(model.lost(), 0U);
  }
}

TEST(MailboxModel, TrapT110EachMistakeLosesAWakeUp) {
  for (const Mistake mistake :
       {Mistake::loop_looks_before_it_says_asleep, Mistake::producer_looks_before_it_pushes,
        Mistake::event_is_not_counted}) {
    for (const auto& acts : mixtures) {
      Model model(acts, mistake);
      model.explore();
      EXPECT_GT(model.lost(), 0U) << static_cast<int>(mistake);
    }
  }
}

}  // namespace
}  // namespace evix::detail
