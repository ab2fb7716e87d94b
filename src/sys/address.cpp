#include "sys/address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "sys/error.hpp"

namespace evix {
namespace {

/** Digits only, no leading zero: "080" is octal to some readers and decimal to others. */
std::optional<std::uint32_t> parse_number(std::string_view text, std::uint32_t max) {
  if (text.empty() || (text.size() > 1 && text.front() == '0')) return std::nullopt;
  std::uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value > max) return std::nullopt;
  return value;
}

/** inet_pton(3) wants a terminated string; a NUL inside the text must not end it early. */
bool parse_bytes(int family, std::string_view text, void* bytes) {
  std::array<char, INET6_ADDRSTRLEN> terminated{};
  if (text.size() >= terminated.size() || text.find('\0') != text.npos) return false;
  std::copy(text.begin(), text.end(), terminated.begin());
  return ::inet_pton(family, terminated.data(), bytes) == 1;
}

std::optional<Address> parse_ipv4(std::string_view host, std::uint16_t port) {
  std::array<std::uint8_t, 4> bytes{};
  if (!parse_bytes(AF_INET, host, bytes.data())) return std::nullopt;
  return Address::ipv4(bytes, port);
}

std::optional<Address> parse_ipv6(std::string_view host, std::uint16_t port) {
  std::uint32_t scope = 0;
  if (const auto percent = host.find('%'); percent != host.npos) {
    const auto number = parse_number(host.substr(percent + 1), UINT32_MAX);
    if (!number || *number == 0) return std::nullopt;  // interfaces are numbered from 1
    scope = *number;
    host = host.substr(0, percent);
  }
  std::array<std::uint8_t, 16> bytes{};
  if (!parse_bytes(AF_INET6, host, bytes.data())) return std::nullopt;
  return Address::ipv6(bytes, port, scope);
}

std::optional<Address> parse_address(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == text.npos) return std::nullopt;
  const auto port = parse_number(text.substr(colon + 1), UINT16_MAX);
  if (!port) return std::nullopt;
  const std::string_view host = text.substr(0, colon);
  const auto port16 = static_cast<std::uint16_t>(*port);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    return parse_ipv6(host.substr(1, host.size() - 2), port16);
  }
  return parse_ipv4(host, port16);
}

}  // namespace

std::expected<Address, Error> Address::parse(std::string_view text) {
  if (const auto address = parse_address(text)) return *address;
  return detail::failure(Errc::invalid_address, "parse", Subject::text(text));
}

Address Address::ipv4(std::array<std::uint8_t, 4> bytes, std::uint16_t port) noexcept {
  Address address;
  address.family_ = Family::ipv4;
  address.port_ = port;
  std::copy(bytes.begin(), bytes.end(), address.bytes_.begin());
  return address;
}

Address Address::ipv6(std::array<std::uint8_t, 16> bytes, std::uint16_t port,
                      std::uint32_t scope) noexcept {
  Address address;
  address.family_ = Family::ipv6;
  address.port_ = port;
  address.scope_ = scope;
  address.bytes_ = bytes;
  return address;
}

bool Address::is_loopback() const noexcept {
  if (family_ == Family::ipv4) return bytes_[0] == 127;
  if (family_ != Family::ipv6) return false;
  constexpr std::array<std::uint8_t, 16> loopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return bytes_ == loopback;
}

std::string Address::to_string() const {
  if (family_ == Family::none) return {};
  std::array<char, INET6_ADDRSTRLEN> host{};
  const int family = family_ == Family::ipv4 ? AF_INET : AF_INET6;
  ::inet_ntop(family, bytes_.data(), host.data(), host.size());
  const std::string port = ":" + std::to_string(port_);
  if (family_ == Family::ipv4) return host.data() + port;
  const std::string scope = scope_ == 0 ? "" : "%" + std::to_string(scope_);
  return "[" + std::string(host.data()) + scope + "]" + port;
}

namespace detail {

SocketAddress to_socket_address(const Address& address) noexcept {
  SocketAddress result;
  if (address.family() == Address::Family::ipv4) {
    sockaddr_in ip{};
    ip.sin_family = AF_INET;
    ip.sin_port = htons(address.port());
    std::memcpy(&ip.sin_addr, address.bytes().data(), sizeof ip.sin_addr);
    std::memcpy(&result.storage, &ip, sizeof ip);
    result.size = sizeof ip;
  } else if (address.family() == Address::Family::ipv6) {
    sockaddr_in6 ip{};
    ip.sin6_family = AF_INET6;
    ip.sin6_port = htons(address.port());
    ip.sin6_scope_id = address.scope();
    std::memcpy(&ip.sin6_addr, address.bytes().data(), sizeof ip.sin6_addr);
    std::memcpy(&result.storage, &ip, sizeof ip);
    result.size = sizeof ip;
  }
  return result;
}

Address from_socket_address(const sockaddr_storage& storage, socklen_t size) noexcept {
  if (storage.ss_family == AF_INET && size >= sizeof(sockaddr_in)) {
    sockaddr_in ip{};
    std::memcpy(&ip, &storage, sizeof ip);
    std::array<std::uint8_t, 4> bytes{};
    std::memcpy(bytes.data(), &ip.sin_addr, bytes.size());
    return Address::ipv4(bytes, ntohs(ip.sin_port));
  }
  if (storage.ss_family == AF_INET6 && size >= sizeof(sockaddr_in6)) {
    sockaddr_in6 ip{};
    std::memcpy(&ip, &storage, sizeof ip);
    std::array<std::uint8_t, 16> bytes{};
    std::memcpy(bytes.data(), &ip.sin6_addr, bytes.size());
    return Address::ipv6(bytes, ntohs(ip.sin6_port), ip.sin6_scope_id);
  }
  return {};
}

}  // namespace detail
}  // namespace evix
