#pragma once

#include <cstdint>

/** @file
 * Facts about the process.
 */
namespace evix::detail {

/**
 * Grows by one in a child each time the process forks (pthread_atfork(3)), so that comparing two
 * numbers tells whether something was made before a fork. Async-signal-safe after the first call.
 */
std::uint32_t fork_generation() noexcept;

/** False when there may be a second thread (the GNU C library knows; elsewhere: always false). */
bool single_threaded() noexcept;

/** An environment variable; null when unset, and in set-id programs (secure_getenv(3)). */
const char* environment(const char* name) noexcept;

}  // namespace evix::detail
