#pragma once

#include <source_location>

/** @file
 * Checks of the caller's mistakes. They stay on in release builds and end the process with a
 * message: going on would corrupt memory later and elsewhere.
 */
namespace evix::detail {

[[noreturn]] void fail_check(const char* message, std::source_location location) noexcept;

inline void check(bool holds, const char* message,
                  std::source_location location = std::source_location::current()) noexcept {
  if (!holds) [[unlikely]] {
    fail_check(message, location);
  }
}

}  // namespace evix::detail
