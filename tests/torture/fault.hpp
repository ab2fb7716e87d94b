#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sys/calls.hpp"

/** @file
 * The faults that can be injected, and the data file that has the errors of each call.
 */
namespace evix::test {

inline constexpr std::size_t call_count = static_cast<std::size_t>(detail::CallId::count);

enum class FaultKind : std::uint8_t { none, error, shortened, allocation };

struct Fault {
  FaultKind kind = FaultKind::none;
  detail::CallId call{};
  std::uint64_t nth = 0;  ///< 1: the first since the test began
  int error = 0;
  bool lies = false;  ///< what the kernel says only when it is true, and it is not
  /** Over io_uring: its socket operations are made as calls of the table (RingFaults). */
  bool ring_operations = false;
};

std::string_view call_name(detail::CallId id);
std::optional<detail::CallId> call_of(std::string_view name);
/** "ECONNRESET", "SHORT". */
std::string error_name(const Fault& fault);
/** The options of tests/torture/run that inject it. */
std::string to_options(const Fault& fault);

/** What a call can fail with: for each call its faults with nth 0. */
using Errors = std::array<std::vector<Fault>, call_count>;
/** Ends the program with a message when the file has a line that means nothing. */
Errors read_errors(const std::string& path);

}  // namespace evix::test
