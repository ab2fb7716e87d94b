#pragma once

#include <cstdint>

#include "base/timer_store.hpp"

/** @file
 * A timer as the loop keeps it.
 */
namespace evix::detail {

/**
 * idle ── start (relative) ──► fresh ── before the next wait ──► placed ── due ──► idle
 *   └──── start (absolute) ────────────────────────────────────────▲
 *
 * fresh: in the loop's list; its delay counts from the clock reading that places it, which is the
 * first one after the start, so that it can never fire early. A placed timer that is started again
 * stays in the store, as a fresh one, until its new deadline is known.
 */
struct TimerStart {
  static constexpr std::uint32_t idle = UINT32_MAX;
  static constexpr std::uint32_t placed = UINT32_MAX - 1;

  std::int64_t delay_ns = 0;      ///< of the last relative start
  std::uint32_t position = idle;  ///< in the list of fresh timers; or idle, or placed
  bool delay_is_first = false;    ///< for the owner: others follow after another delay

  bool armed() const noexcept { return position != idle; }
  bool fresh() const noexcept { return position < placed; }
};

/** Starting and placing touch only the first 48 bytes. */
struct TimerWork : TimerStart, TimerNode {
  void (*run)(TimerWork*) = nullptr;
};

}  // namespace evix::detail
