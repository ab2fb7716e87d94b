#pragma once

#include <cstdint>

#include "base/timer_store.hpp"
#include "base/work.hpp"

/** @file
 * A timer as the loop keeps it.
 */
namespace evix::detail {

/**
 * idle ── start (relative) ──► fresh ── before the next wait ──► placed ── due ──► idle
 *   └──── start (absolute) ────────────────────────────────────────▲
 *
 * fresh: in the loop's list; its delay counts from the clock reading that places it, which is the
 * first one after the start, so that it can never fire early.
 */
struct TimerWork : Work, TimerNode {
  enum class State : std::uint8_t { idle, fresh, placed };

  std::int64_t delay_ns = 0;
  TimerWork* fresh_previous = nullptr;
  TimerWork* fresh_next = nullptr;
  State state = State::idle;

  bool armed() const noexcept { return state != State::idle; }
};

}  // namespace evix::detail
