#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "evix/callback.hpp"
#include "evix/error.hpp"
#include "evix/export.hpp"
#include "evix/time.hpp"

/** @file
 * A queue of timers by itself, to use with evix::Poller: add, run what is due, learn how long to
 * wait. It reads the monotonic clock when it is asked to.
 */
namespace evix {

/** Names a timer of a TimerQueue; a stale one reaches nothing. */
struct TimerId {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;  ///< 0: none
  friend bool operator==(const TimerId&, const TimerId&) noexcept = default;
};

/**
 * Timers ordered by (deadline, order of adding), with nanoseconds. Used by one thread at a time.
 * Callbacks run inside run() only; they may add and cancel timers, also themselves.
 */
class EVIX_API TimerQueue {
 public:
  TimerQueue();
  ~TimerQueue();
  TimerQueue(TimerQueue&&) noexcept;
  TimerQueue& operator=(TimerQueue&&) noexcept;

  /** One call of `callback`, at least `delay` from now. Negative: as zero; forever: never. */
  TimerId add(Duration delay, Callback<void()> callback);
  /** As add(), at a point of the monotonic clock. */
  TimerId add_at(TimePoint deadline, Callback<void()> callback);
  /** @return false when it has run or was cancelled before. */
  bool cancel(TimerId id) noexcept;

  /** The next deadline; TimePoint::max() when there is none. */
  TimePoint due();
  /**
   * Runs every timer that is due when the call begins, in order; one added meanwhile waits for
   * the next run(), even with no delay.
   * @return how long a wait may last now: zero when something is due, forever when empty.
   */
  Duration run();

  std::size_t size() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace evix
