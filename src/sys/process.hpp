#pragma once

#include <atomic>
#include <cstdint>

/** @file
 * Facts about the process.
 */
namespace evix::detail {

/** Of fork_generation(); written by the child of a fork only. */
extern std::atomic<std::uint32_t> fork_count;

/**
 * Grows by one in a child each time the process forks, so that comparing two numbers tells whether
 * something was made before a fork. Async-signal-safe.
 */
inline std::uint32_t fork_generation() noexcept {
  return fork_count.load(std::memory_order_relaxed);
}

/**
 * Runs these around each fork from now on, pthread_atfork(3): the first in the forking thread
 * before it, the others after it, in the parent and in the child. 0 or a positive errno. Called
 * when the library is loaded: inside a call it could itself be what another thread's fork
 * interrupts, and the child would wait for its end for ever.
 */
int around_forks(void (*before)(), void (*in_parent)(), void (*in_child)()) noexcept;

/** False when there may be a second thread (the GNU C library knows; elsewhere: always false). */
bool single_threaded() noexcept;

/** An environment variable; null when unset, and in set-id programs (secure_getenv(3)). */
const char* environment(const char* name) noexcept;

}  // namespace evix::detail
