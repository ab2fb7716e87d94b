#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <type_traits>

/** @file
 * Time in evix: signed 64-bit nanoseconds on a monotonic clock, saturating at "never".
 */
namespace evix {

/** Nanoseconds; `forever` is the largest value. */
using Duration = std::chrono::nanoseconds;

/** As a timeout: no limit. As a delay: never. */
inline constexpr Duration forever = Duration::max();

/**
 * The clock of loops. It has no now(): time enters only through a loop (Loop::now()), so that a
 * simulated loop has simulated time. Real loops use CLOCK_MONOTONIC (clock_gettime(2)), which does
 * not count the time a machine is suspended.
 */
struct Clock {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock, duration>;
  static constexpr bool is_steady = true;
};

/** A point on the clock of loops; TimePoint::max() is never. */
using TimePoint = Clock::time_point;

/**
 * Any duration as nanoseconds, without overflow: what does not fit becomes the largest or smallest
 * value, a fraction of a nanosecond is rounded up (a timer never fires early), and a floating-point
 * NaN becomes zero.
 */
template <class Rep, class Period>
constexpr Duration saturate(std::chrono::duration<Rep, Period> value) noexcept {
  using Limits = std::numeric_limits<std::int64_t>;
  if constexpr (std::is_floating_point_v<Rep>) {
    const auto count = std::chrono::duration<long double, std::nano>(value).count();
    if (count != count) return Duration::zero();
    if (count >= static_cast<long double>(Limits::max())) return Duration::max();
    if (count <= static_cast<long double>(Limits::min())) return Duration::min();
    auto whole = static_cast<std::int64_t>(count);
    if (static_cast<long double>(whole) < count) ++whole;
    return Duration(whole);
  } else {
    using Ratio = std::ratio_divide<Period, std::nano>;
    __extension__ using Wide = __int128;
    const Wide product = static_cast<Wide>(value.count()) * Ratio::num;
    Wide quotient = product / Ratio::den;
    if (quotient * Ratio::den < product) ++quotient;
    if (quotient > Limits::max()) return Duration::max();
    if (quotient < Limits::min()) return Duration::min();
    return Duration(static_cast<std::int64_t>(quotient));
  }
}

}  // namespace evix
