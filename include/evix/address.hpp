#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "evix/export.hpp"

/** @file
 * An IPv4 or IPv6 address with a port, independent of the operating system's headers.
 */
namespace evix {

class Error;

/**
 * An IP address and a port. A value: trivially copyable, comparable, no allocation.
 * Names are not looked up: `localhost:80` is invalid_address.
 */
class EVIX_API Address {
 public:
  enum class Family : std::uint8_t { none, ipv4, ipv6 };

  /** No address: family none. */
  constexpr Address() noexcept = default;

  /**
   * Reads `127.0.0.1:3000` or `[::1]:3000` (also `[fe80::1%2]:80` with a numeric scope).
   * The port is required, in 0..65535; 0 lets the kernel choose when listening.
   * @return Errc::invalid_address, with the text as subject, for anything else.
   */
  static std::expected<Address, Error> parse(std::string_view text);

  /** From the four bytes of an IPv4 address, in the order they are written. */
  static Address ipv4(std::array<std::uint8_t, 4> bytes, std::uint16_t port) noexcept;
  /** From the sixteen bytes of an IPv6 address in network order. */
  static Address ipv6(std::array<std::uint8_t, 16> bytes, std::uint16_t port,
                      std::uint32_t scope = 0) noexcept;

  Family family() const noexcept { return family_; }
  std::uint16_t port() const noexcept { return port_; }
  std::uint32_t scope() const noexcept { return scope_; }
  /** Network order; IPv4 uses the first four. */
  const std::array<std::uint8_t, 16>& bytes() const noexcept { return bytes_; }
  /** 127.0.0.0/8 or ::1. */
  bool is_loopback() const noexcept;

  /** `127.0.0.1:3000`, `[::1]:3000`, or an empty string for none. */
  std::string to_string() const;

  friend bool operator==(const Address&, const Address&) noexcept = default;

 private:
  Family family_ = Family::none;
  std::uint16_t port_ = 0;
  std::uint32_t scope_ = 0;
  std::array<std::uint8_t, 16> bytes_{};
};

}  // namespace evix
