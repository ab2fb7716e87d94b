#pragma once

#include <atomic>
#include <cstdint>

/** @file
 * Facts about the process.
 */
namespace evix::detail {

/** Of fork_generation(); written by the child of a fork only. */
inline std::atomic<std::uint32_t> fork_count = 1;

/**
 * Grows by one in a child each time the process forks after count_forks(), so that comparing two
 * numbers tells whether something was made before a fork. Async-signal-safe.
 */
inline std::uint32_t fork_generation() noexcept {
  return fork_count.load(std::memory_order_relaxed);
}

/** Begins to count forks (pthread_atfork(3)); once in a process, more calls do nothing. */
void count_forks() noexcept;

/**
 * Runs these around each fork from now on, pthread_atfork(3): the first in the forking thread
 * before it, the others after it, in the parent and in the child. 0 or a positive errno.
 */
int around_forks(void (*before)(), void (*in_parent)(), void (*in_child)()) noexcept;

/** False when there may be a second thread (the GNU C library knows; elsewhere: always false). */
bool single_threaded() noexcept;

/** An environment variable; null when unset, and in set-id programs (secure_getenv(3)). */
const char* environment(const char* name) noexcept;

}  // namespace evix::detail
