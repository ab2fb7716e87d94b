// What the hand-written programs share: options, addresses, limits and errors. Nothing of evix is
// included here on purpose: the floor has to stay a floor whatever evix does.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <time.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>

namespace raw {

/// Ends the program with exit code 2 after naming what was being done and, if not 0, the errno.
[[noreturn]] inline void die(const std::string& doing, int error_number = 0) {
  std::fflush(stdout);
  if (error_number == 0) {
    std::fprintf(stderr, "%s\n", doing.c_str());
  } else {
    std::fprintf(stderr, "%s: %s\n", doing.c_str(), std::strerror(error_number));
  }
  std::exit(2);
}

/// Passes a system call's result on, or ends the program when it failed.
template <typename Result>
Result require(Result result, const char* doing) {
  if (result < 0) die(doing, errno);
  return result;
}

/// Raises the limit of open descriptors to the hard limit: 9,000 connections need it.
inline void raise_descriptor_limit() {
  rlimit limit{};
  require(getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
  limit.rlim_cur = limit.rlim_max;
  require(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
}

inline void set_nonblocking(int descriptor) {
  const int flags = require(fcntl(descriptor, F_GETFL), "fcntl");
  require(fcntl(descriptor, F_SETFL, flags | O_NONBLOCK), "fcntl");
}

inline std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

/// CPU time of the whole process, user and kernel.
inline std::uint64_t process_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

inline std::uint64_t parse_count(std::string_view text, std::string_view option) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    die(std::string(option) + ": not a whole number: " + std::string(text));
  }
  return value;
}

/// Seconds, with or without a trailing s, fractions allowed: 2, 0.5, 1.5s.
inline std::uint64_t parse_seconds_as_ns(std::string_view text, std::string_view option) {
  const std::string copy(text.ends_with('s') ? text.substr(0, text.size() - 1) : text);
  char* end = nullptr;
  const double seconds = std::strtod(copy.c_str(), &end);
  if (copy.empty() || *end != '\0' || !(seconds >= 0) || seconds > 1e6) {
    die(std::string(option) + ": not a time in seconds: " + std::string(text));
  }
  return static_cast<std::uint64_t>(seconds * 1e9);
}

/// An IPv4 address with port, such as 127.0.0.1:0.
inline sockaddr_in parse_address(std::string_view text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) die("no port in address: " + std::string(text));
  const std::string host(text.substr(0, colon));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    die("not an IPv4 address: " + host);
  }
  const std::uint64_t port = parse_count(text.substr(colon + 1), "port");
  if (port > 65'535) die("not a port: " + std::to_string(port));
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

/// Walks over `--name value` and `--flag` arguments.
class Arguments {
 public:
  Arguments(int count, char** values) : count_(count), values_(values) {}

  bool next() { return ++index_ < count_; }
  std::string_view name() const { return values_[index_]; }

  std::string_view value() {
    const std::string_view option = name();
    if (!next()) die(std::string(option) + ": its value is missing");
    return values_[index_];
  }

  std::uint64_t count() {
    const std::string_view option = name();
    return parse_count(value(), option);
  }

  std::uint64_t seconds_as_ns() {
    const std::string_view option = name();
    return parse_seconds_as_ns(value(), option);
  }

 private:
  int count_;
  char** values_;
  int index_ = 0;
};

}  // namespace raw
