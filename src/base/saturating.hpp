#pragma once

#include <cstdint>
#include <limits>

/** @file
 * Arithmetic on nanoseconds that stops at the ends instead of wrapping.
 */
namespace evix::detail {

/** As a deadline: never. As a timeout: no limit. */
inline constexpr std::int64_t never_ns = std::numeric_limits<std::int64_t>::max();

inline std::int64_t add_saturating(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return b < 0 ? INT64_MIN : never_ns;
  return sum;
}

inline std::int64_t subtract_saturating(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t difference = 0;
  if (__builtin_sub_overflow(a, b, &difference)) return b < 0 ? never_ns : INT64_MIN;
  return difference;
}

}  // namespace evix::detail
