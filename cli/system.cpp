#include "system.hpp"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <thread>

namespace evix::cli {

namespace {

std::optional<std::uint64_t> limit_value(rlim_t value) {
  if (value == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::uint64_t>(value);
}

// getrlimit(2) cannot fail for a resource that exists and a valid pointer.
ResourceLimit limit_of(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  getrlimit(resource, &limit);
  return {limit_value(limit.rlim_cur), limit_value(limit.rlim_max)};
}

std::optional<std::uint64_t> number_in(const char* path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

}  // namespace

ResourceLimit descriptor_limit() { return limit_of(RLIMIT_NOFILE); }

ResourceLimit locked_memory_limit_bytes() { return limit_of(RLIMIT_MEMLOCK); }

ResourceLimit raise_descriptor_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  // A refusal leaves the limit as it was, and the caller reads what holds.
  setrlimit(RLIMIT_NOFILE, &limit);
  return descriptor_limit();
}

std::string kernel_name_and_release() {
  utsname name{};
  if (uname(&name) != 0) return "unknown";
  return std::string(name.sysname) + " " + name.release;
}

std::optional<std::uint64_t> listen_backlog_max() {
  return number_in("/proc/sys/net/core/somaxconn");
}

std::uint16_t unprivileged_port_min() {
  const auto port = number_in("/proc/sys/net/ipv4/ip_unprivileged_port_start");
  return static_cast<std::uint16_t>(port.value_or(1024));
}

unsigned core_count() { return std::thread::hardware_concurrency(); }

bool standard_error_is_terminal() { return isatty(STDERR_FILENO) == 1; }

}  // namespace evix::cli
