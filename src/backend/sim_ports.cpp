#include <algorithm>
#include <cerrno>
#include <cstring>

#include "backend/sim_kernel.hpp"
#include "base/saturating.hpp"
#include "sys/inet.hpp"

namespace evix::detail {
namespace {

constexpr std::array<std::uint8_t, 12> mapped_prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
// Linux's default range, net.ipv4.ip_local_port_range.
constexpr std::uint16_t ephemeral_first = 32768;
constexpr std::uint16_t ephemeral_count = 60999 - ephemeral_first + 1;
constexpr std::int64_t time_wait_ns = 60'000'000'000;
// Without sin6_scope_id: the shortest that Linux takes (RFC 2133).
constexpr socklen_t ipv6_size_min = 24;

/** Whether somebody could ask for a connection that both addresses answer. */
bool overlap(const SimAddress& a, bool a_ipv6_only, const SimAddress& b, bool b_ipv6_only) {
  if (a.is_mapped() == b.is_mapped()) return a.is_any() || b.is_any() || a.host == b.host;
  const bool a_is_ipv6 = !a.is_mapped();
  const SimAddress& wide = a_is_ipv6 ? a : b;
  return wide.is_any() && !(a_is_ipv6 ? a_ipv6_only : b_ipv6_only);
}

}  // namespace

bool SimAddress::is_mapped() const noexcept {
  return std::equal(mapped_prefix.begin(), mapped_prefix.end(), host.begin());
}

bool SimAddress::is_any() const noexcept {
  return host == sim_any(is_mapped() ? AF_INET : AF_INET6).host;
}

bool SimAddress::is_loopback() const noexcept {
  return is_mapped() ? host[12] == 127 : host == sim_loopback(false).host;
}

SimAddress sim_any(int family) noexcept {
  SimAddress address;
  if (family == AF_INET) std::ranges::copy(mapped_prefix, address.host.begin());
  return address;
}

SimAddress sim_loopback(bool mapped) noexcept {
  SimAddress address = sim_any(mapped ? AF_INET : AF_INET6);
  if (mapped) address.host[12] = 127;
  address.host[15] = 1;
  return address;
}

int sim_read_address(int family, const sockaddr* address, socklen_t size,
                     SimAddress& out) noexcept {
  out = sim_any(family);
  if (family == AF_INET) {
    sockaddr_in from{};
    if (size < sizeof from) return -EINVAL;
    std::memcpy(&from, address, sizeof from);
    if (from.sin_family != AF_INET) return -EAFNOSUPPORT;
    std::memcpy(out.host.data() + mapped_prefix.size(), &from.sin_addr, sizeof from.sin_addr);
    out.port = ntohs(from.sin_port);
    return 0;
  }
  sockaddr_in6 from{};
  if (size < ipv6_size_min) return -EINVAL;
  std::memcpy(&from, address, std::min<std::size_t>(size, sizeof from));
  if (from.sin6_family != AF_INET6) return -EAFNOSUPPORT;
  std::memcpy(out.host.data(), &from.sin6_addr, out.host.size());
  out.port = ntohs(from.sin6_port);
  return 0;
}

void sim_write_address(int family, const SimAddress& from, sockaddr* address,
                       socklen_t* size) noexcept {
  sockaddr_storage storage{};
  socklen_t full_size = sizeof(sockaddr_in);
  if (family == AF_INET) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(from.port);
    std::memcpy(&to.sin_addr, from.host.data() + mapped_prefix.size(), sizeof to.sin_addr);
    std::memcpy(&storage, &to, sizeof to);
  } else {
    sockaddr_in6 to{};
    full_size = sizeof to;
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(from.port);
    std::memcpy(&to.sin6_addr, from.host.data(), from.host.size());
    std::memcpy(&storage, &to, sizeof to);
  }
  std::memcpy(address, &storage, std::min(*size, full_size));
  *size = full_size;
}

bool SimPorts::conflicts(const SimSocket& socket, const SimAddress& wanted,
                         std::int64_t now_ns) const {
  const auto found = ports_.find(wanted.port);
  if (found == ports_.end()) return false;
  const SimOptions& own = socket.options;
  for (const SimSocket* holder : found->second.holders) {
    const SimOptions& its = holder->options;
    if (holder == &socket) continue;
    if (own.reuse_address && its.reuse_address && holder->state != SimState::listening) continue;
    if (own.reuse_port && its.reuse_port) continue;
    if (overlap(wanted, own.ipv6_only, holder->local, its.ipv6_only)) return true;
  }
  for (const Kept& kept : found->second.kept) {
    if (kept.until_ns <= now_ns) continue;
    if (own.reuse_address && kept.reuse_address) continue;
    if (own.reuse_port && kept.reuse_port) continue;
    if (overlap(wanted, own.ipv6_only, kept.local, kept.ipv6_only)) return true;
  }
  return false;
}

bool SimPorts::connected(const SimAddress& local, const SimAddress& remote) const {
  const auto found = ports_.find(local.port);
  if (found == ports_.end()) return false;
  return std::ranges::any_of(found->second.holders, [&](const SimSocket* holder) {
    return holder->state != SimState::closed && holder->local == local && holder->remote == remote;
  });
}

std::uint16_t SimPorts::free_port(std::int64_t now_ns, bool despite_time_wait) {
  for (std::uint16_t tried = 0; tried < ephemeral_count; ++tried) {
    const auto port = static_cast<std::uint16_t>(ephemeral_first + next_ephemeral_);
    next_ephemeral_ = static_cast<std::uint16_t>((next_ephemeral_ + 1) % ephemeral_count);
    const auto found = ports_.find(port);
    if (found == ports_.end()) return port;
    if (!found->second.holders.empty()) continue;
    const bool kept = std::ranges::any_of(
        found->second.kept, [&](const Kept& entry) { return entry.until_ns > now_ns; });
    if (!kept || despite_time_wait) return port;
  }
  return 0;
}

void SimPorts::hold(SimSocket& socket) {
  ports_[socket.local.port].holders.push_back(&socket);
  socket.port_held = true;
}

void SimPorts::release(SimSocket& socket) {
  if (!socket.port_held) return;
  socket.port_held = false;
  std::erase(ports_[socket.local.port].holders, &socket);
}

void SimPorts::unlisten(SimSocket& socket) {
  std::erase(ports_[socket.local.port].listeners, &socket);
}

void SimPorts::keep(const SimSocket& socket, std::int64_t now_ns) {
  std::vector<Kept>& kept = ports_[socket.local.port].kept;
  std::erase_if(kept, [&](const Kept& entry) {
    return entry.until_ns <= now_ns ||
           (entry.local == socket.local && entry.reuse_address == socket.options.reuse_address &&
            entry.reuse_port == socket.options.reuse_port);
  });
  kept.push_back({socket.local, socket.options.reuse_address, socket.options.reuse_port,
                  socket.options.ipv6_only, add_saturating(now_ns, time_wait_ns)});
}

SimSocket* SimPorts::listener(const SimAddress& remote, Prng& prng) const {
  const auto found = ports_.find(remote.port);
  if (found == ports_.end()) return nullptr;
  std::vector<SimSocket*> exact;
  std::vector<SimSocket*> wide;
  for (SimSocket* socket : found->second.listeners) {
    if (socket->local == remote) {
      exact.push_back(socket);
    } else if (socket->local.is_any() &&
               overlap(socket->local, socket->options.ipv6_only, remote, false)) {
      wide.push_back(socket);
    }
  }
  const std::vector<SimSocket*>& candidates = exact.empty() ? wide : exact;
  if (candidates.empty()) return nullptr;
  if (candidates.size() == 1) return candidates.front();
  return candidates[prng.below(candidates.size())];  // SO_REUSEPORT: Linux takes a hash
}

}  // namespace evix::detail
