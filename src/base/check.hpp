#pragma once

/** @file
 * Checks of the caller's mistakes. They stay on in release builds and end the process with a
 * message: going on would corrupt memory later and elsewhere.
 */
namespace evix::detail {

[[noreturn, gnu::cold]] void fail_check(const char* message) noexcept;

inline void check(bool holds, const char* message) noexcept {
  if (!holds) [[unlikely]] {
    fail_check(message);
  }
}

}  // namespace evix::detail
