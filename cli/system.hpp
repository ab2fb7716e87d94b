#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace evix::cli {

// A limit of the process; nullopt is unlimited.
struct ResourceLimit {
  std::optional<std::uint64_t> soft;
  std::optional<std::uint64_t> hard;
};

// Open descriptors: RLIMIT_NOFILE of getrlimit(2).
ResourceLimit descriptor_limit();
// Bytes that may be locked in memory: RLIMIT_MEMLOCK.
ResourceLimit locked_memory_limit_bytes();
// Raises the soft limit of descriptors to the hard one; the limit that holds afterwards.
ResourceLimit raise_descriptor_limit();

// `Linux 6.1.0`: uname(2).
std::string kernel_name_and_release();
// The longest queue of connections that wait to be accepted; nullopt where this system has no
// such setting to read.
std::optional<std::uint64_t> listen_backlog_max();
// The lowest port that needs no privilege.
std::uint16_t unprivileged_port_min();
// Cores that this process may use.
unsigned core_count();

bool standard_error_is_terminal();

}  // namespace evix::cli
