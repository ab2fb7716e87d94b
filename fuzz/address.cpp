// Address::parse() against inet_pton(3), and against what it prints itself.
#include <arpa/inet.h>

#include <cstddef>
#include <cstdint>
#include <evix/address.hpp>
#include <evix/error.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "fuzz_check.hpp"

namespace {

std::optional<std::uint16_t> port_of(std::string_view text) {
  if (text.empty() || text.size() > 5 || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  unsigned port = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    port = port * 10 + static_cast<unsigned>(digit - '0');
  }
  if (port > UINT16_MAX) return std::nullopt;
  return static_cast<std::uint16_t>(port);
}

// What the C library takes for an address of this form, without a scope.
bool is_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || !port_of(text.substr(colon + 1))) return false;
  std::string host(text.substr(0, colon));
  if (host.find('\0') != std::string::npos) return false;
  unsigned char bytes[16];
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), bytes) == 1;
  }
  return inet_pton(AF_INET, host.c_str(), bytes) == 1;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const evix::Result<evix::Address> address = evix::Address::parse(text);
  const bool has_scope = text.find('%') != std::string_view::npos;
  if (!has_scope) fuzz_check(address.has_value() == is_address(text), "inet_pton agrees");
  if (!address) {
    fuzz_check(address.error() == evix::Errc::invalid_address, "the error says what it is");
    (void)address.error().message();
    return 0;
  }
  fuzz_check(address->port() == port_of(text.substr(text.rfind(':') + 1)), "the port");
  const std::string printed = address->to_string();
  const evix::Result<evix::Address> again = evix::Address::parse(printed);
  fuzz_check(again.has_value() && *again == *address, "what is printed is read again");
  fuzz_check(again->to_string() == printed, "and printed the same");
  return 0;
}
