#pragma once

#include <cstdint>
#include <source_location>

#include "evix/callback.hpp"
#include "evix/export.hpp"
#include "evix/handle.hpp"
#include "evix/time.hpp"

/** @file
 * Timers of a loop.
 */
namespace evix {

/** What a repeating timer does about ticks that it missed because the loop was busy. */
enum class MissedTicks : std::uint8_t {
  skip,   ///< one call, then the next multiple of the period
  burst,  ///< one call for each, one a turn
  delay,  ///< one call, then a full period from then
};

/**
 * Calls back once or again and again. Times are 64-bit nanoseconds of the monotonic clock.
 *
 * Never early: a relative delay counts from the first reading of the clock after the start.
 * Timers run in the order (deadline, start), each at most once a turn; one that is started in a
 * timer callback waits for the next turn even with no delay. Negative delays are as zero,
 * evix::forever (and whatever overflows) is never. Starting a started timer restarts it; stopping
 * twice does nothing. Starting a timer of a dead loop does nothing.
 */
class EVIX_API Timer : public Handle {
 public:
  /** An empty handle; assign one made with a loop before use. */
  Timer() noexcept = default;
  explicit Timer(Loop& loop);

  /** One call, at least `delay` from now. */
  template <class Rep, class Period>
  void after(std::chrono::duration<Rep, Period> delay, Callback<void()> callback,
             std::source_location location = std::source_location::current()) {
    start(saturate(delay), Duration::zero(), MissedTicks::skip, std::move(callback), location);
  }
  /** One call at `deadline`. */
  void at(TimePoint deadline, Callback<void()> callback,
          std::source_location location = std::source_location::current());
  /**
   * A call each `period` (at least 1 ns), first after one period. The phase is kept: each deadline
   * is the one before plus the period.
   */
  template <class Rep, class Period>
  void every(std::chrono::duration<Rep, Period> period, Callback<void()> callback,
             MissedTicks missed = MissedTicks::skip,
             std::source_location location = std::source_location::current()) {
    const Duration every_ns = at_least_one(saturate(period));
    start(every_ns, every_ns, missed, std::move(callback), location);
  }
  /** As every(), with another delay before the first call. */
  template <class Rep1, class Period1, class Rep2, class Period2>
  void after_then_every(std::chrono::duration<Rep1, Period1> first,
                        std::chrono::duration<Rep2, Period2> period, Callback<void()> callback,
                        MissedTicks missed = MissedTicks::skip,
                        std::source_location location = std::source_location::current()) {
    start(saturate(first), at_least_one(saturate(period)), missed, std::move(callback), location);
  }
  /**
   * Starts again with the same callback and period (for one call: the same delay), counted from
   * now. What an idle time-out does at each activity; O(1), allocates nothing. Does nothing when
   * the timer was never started.
   */
  void again() noexcept;
  /** O(1). The callback is kept for again(). */
  void stop() noexcept;

  /** Time left; zero when due or stopped, forever when it never fires. */
  Duration remaining() const noexcept;
  /** Ticks that the last call stood for beyond its own, under MissedTicks::skip and delay. */
  std::uint64_t missed_ticks() const noexcept;

 private:
  static Duration at_least_one(Duration period) noexcept {
    return period < Duration(1) ? Duration(1) : period;
  }
  void start(Duration delay, Duration period, MissedTicks missed, Callback<void()> callback,
             std::source_location location);
};

}  // namespace evix
