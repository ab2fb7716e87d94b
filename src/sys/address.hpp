#pragma once

#include <sys/socket.h>

#include <evix/address.hpp>

/** @file
 * evix::Address to and from the structures of the operating system; see ip(7), ipv6(7).
 */
namespace evix::detail {

/** What bind(2) and connect(2) take. */
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;  ///< 0: no address

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const noexcept { return storage.ss_family; }
};

/** Size 0 and AF_UNSPEC for an address of family none. */
SocketAddress to_socket_address(const Address& address) noexcept;

/** Family none when it is neither IPv4 nor IPv6, or `size` is too short for it. */
Address from_socket_address(const sockaddr_storage& storage, socklen_t size) noexcept;

}  // namespace evix::detail
