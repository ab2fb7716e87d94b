#include "evix/timer_queue.hpp"

#include <algorithm>
#include <utility>

#include "base/saturating.hpp"
#include "base/slab.hpp"
#include "base/timer_store.hpp"
#include "sys/calls.hpp"

/** @file
 * The timer store by itself, with callbacks and the kernel's clock.
 */
namespace evix {
namespace {

using detail::Calls;
using detail::TimerNode;

struct Timer : TimerNode {
  explicit Timer(Callback<void()> function) : callback(std::move(function)) {}

  std::uint32_t slot = 0;
  Callback<void()> callback;
};

}  // namespace

struct TimerQueue::State {
  detail::TimerStore store;
  detail::Slab<Timer> timers;

  TimerId add(std::int64_t deadline_ns, Callback<void()> callback) {
    Timer* timer = timers.make(std::move(callback));
    // A timer that is due never is counted and can be cancelled, but the store would run it.
    if (deadline_ns != detail::never_ns) store.start(*timer, deadline_ns);
    return {timer->slot, timers.generation(timer)};
  }
};

TimerQueue::TimerQueue() : state_(std::make_unique<State>()) {}
TimerQueue::~TimerQueue() = default;
TimerQueue::TimerQueue(TimerQueue&&) noexcept = default;
TimerQueue& TimerQueue::operator=(TimerQueue&&) noexcept = default;

TimerId TimerQueue::add(Duration delay, Callback<void()> callback) {
  if (delay == forever) return state_->add(detail::never_ns, std::move(callback));
  const std::int64_t delay_ns = std::max<std::int64_t>(delay.count(), 0);
  const std::int64_t now_ns = Calls::kernel().clock_now();
  return state_->add(detail::add_saturating(now_ns, delay_ns), std::move(callback));
}

TimerId TimerQueue::add_at(TimePoint deadline, Callback<void()> callback) {
  return state_->add(deadline.time_since_epoch().count(), std::move(callback));
}

bool TimerQueue::cancel(TimerId id) noexcept {
  Timer* timer = state_->timers.find(id.slot, id.generation);
  if (timer == nullptr) return false;
  state_->store.stop(*timer);
  state_->timers.free(timer);
  return true;
}

TimePoint TimerQueue::due() { return TimePoint(Duration(state_->store.next_deadline_ns())); }

Duration TimerQueue::run() {
  State& state = *state_;
  state.store.begin_pass(Calls::kernel().clock_now());
  while (TimerNode* node = state.store.pop_due()) {
    Timer* timer = static_cast<Timer*>(node);
    // Its id is stale and its record free before its callback runs, which may add and cancel.
    Callback<void()> callback = std::move(timer->callback);
    state.timers.free(timer);
    if (callback) callback();
  }
  const std::int64_t next_ns = state.store.next_deadline_ns();
  if (next_ns == detail::never_ns) return forever;
  return Duration(
      std::max<std::int64_t>(detail::subtract_saturating(next_ns, Calls::kernel().clock_now()), 0));
}

std::size_t TimerQueue::size() const noexcept { return state_->timers.size(); }

}  // namespace evix
