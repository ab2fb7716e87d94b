#include "torture/fault.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "support/errno_names.hpp"

namespace evix::test {
namespace {

// In the order of CallId.
constexpr std::array<std::string_view, call_count> names = {
    "clock_now",       "socket",        "bind",          "listen",
    "accept",          "connect",       "receive",       "send",
    "shutdown",        "close",         "local_name",    "peer_name",
    "get_option",      "set_option",    "duplicate",     "descriptor_flags",
    "set_nonblocking", "epoll_create",  "epoll_control", "epoll_wait_ns",
    "epoll_wait_ms",   "poll",          "event_create",  "event_read",
    "event_write",     "signal_action", "ring_setup",    "ring_enter",
    "ring_register",   "memory_map",    "memory_unmap",  "memory_keep_from_children",
};

[[noreturn]] void complain(const std::string& path, const std::string& line) {
  std::fprintf(stderr, "%s: cannot use the line: %s\n", path.c_str(), line.c_str());
  std::exit(2);
}

}  // namespace

std::string_view call_name(detail::CallId id) { return names[static_cast<std::size_t>(id)]; }

std::optional<detail::CallId> call_of(std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<detail::CallId>(i);
  }
  return std::nullopt;
}

std::string error_name(const Fault& fault) {
  if (fault.kind == FaultKind::shortened) return "SHORT";
  return errno_name(fault.error);
}

std::string to_options(const Fault& fault) {
  if (fault.kind == FaultKind::none) return "";
  const std::string nth = " --nth " + std::to_string(fault.nth);
  if (fault.kind == FaultKind::allocation) return " --call allocation" + nth;
  return " --call " + std::string(call_name(fault.call)) + nth + " --errno " + error_name(fault) +
         (fault.ring_operations ? " --ring-operations" : "");
}

Errors read_errors(const std::string& path) {
  Errors errors;
  std::ifstream file(path);
  if (!file) complain(path, "(the file is missing)");
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string call;
    std::string pages;
    std::string word;
    words >> call >> pages;
    const auto id = call_of(call);
    if (!id) complain(path, line);
    while (words >> word) {
      const bool lies = word.ends_with('?');
      if (lies) word.pop_back();
      const auto error = errno_number(word);
      if (!error && word != "SHORT") complain(path, line);
      Fault fault;
      fault.kind = error ? FaultKind::error : FaultKind::shortened;
      fault.call = *id;
      fault.error = error.value_or(0);
      fault.lies = lies;
      errors[static_cast<std::size_t>(*id)].push_back(fault);
    }
  }
  return errors;
}

}  // namespace evix::test
