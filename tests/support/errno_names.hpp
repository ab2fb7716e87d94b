#pragma once

#include <string.h>

#include <optional>
#include <string>
#include <string_view>

/** @file
 * "ECONNRESET" for the number and back.
 */
namespace evix::test {

/** The number itself where the C library has no name for it. */
inline std::string errno_name(int error) {
  const char* const name = strerrorname_np(error);
  return name != nullptr ? name : std::to_string(error);
}

inline std::optional<int> errno_number(std::string_view name) {
  constexpr int errors_end = 134;  // of Linux
  for (int error = 1; error < errors_end; ++error) {
    const char* const known = strerrorname_np(error);
    if (known != nullptr && name == known) return error;
  }
  return std::nullopt;
}

}  // namespace evix::test
