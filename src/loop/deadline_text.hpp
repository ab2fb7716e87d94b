#pragma once

#include <cstdint>
#include <string>

#include "base/saturating.hpp"
#include "loop/core.hpp"

/** @file
 * What Loop::handles() says of a timer.
 */
namespace evix::detail {

/** "deadline in 3 ms", of a timer that is armed. */
inline std::string deadline_text(LoopCore& core, const TimerWork& timer) {
  const std::int64_t left_ns =
      timer.fresh() ? timer.delay_ns : subtract_saturating(timer.deadline_ns, core.now_ns());
  return "deadline in " + std::to_string(left_ns < 0 ? 0 : left_ns / 1'000'000) + " ms";
}

}  // namespace evix::detail
