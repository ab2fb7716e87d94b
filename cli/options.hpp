#pragma once

#include <cstddef>
#include <cstdint>
#include <evix/address.hpp>
#include <evix/backend.hpp>
#include <evix/time.hpp>
#include <expected>
#include <variant>

namespace evix::cli {

// Exit codes, as every --help lists them.
constexpr int exit_ok = 0;
constexpr int exit_failed = 1;
constexpr int exit_usage = 2;

struct DoctorOptions {
  BackendKind backend = BackendKind::automatic;
  bool json = false;
};

struct EchoOptions {
  Address address;
  BackendKind backend = BackendKind::automatic;
  std::uint64_t echoes_max = 0;  // 0: no limit
  bool quiet = false;
};

struct LoadOptions {
  Address address;
  BackendKind backend = BackendKind::automatic;
  std::uint32_t connections = 50;
  std::uint32_t pipeline = 1;
  std::uint64_t size_bytes = 64;
  Duration duration = std::chrono::seconds(5);
  std::uint64_t echoes_max = 0;  // 0: no limit
  bool json = false;
  bool idle = false;
  bool hold = false;
};

using Command = std::variant<DoctorOptions, EchoOptions, LoadOptions>;

// The command that the user wants, or, after help or a complaint was printed, the exit code.
std::expected<Command, int> parse_command(int argument_count, const char* const* arguments);

}  // namespace evix::cli
