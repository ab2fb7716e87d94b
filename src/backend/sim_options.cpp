#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "backend/sim_kernel.hpp"
#include "sys/inet.hpp"

namespace evix::detail {
namespace {

// The bounds and first values of Linux 6.18; see socket(7): a buffer size is doubled.
constexpr int buffer_max = 4'194'304;
constexpr int send_buffer_min = 4608;
constexpr int receive_buffer_min = 2304;
constexpr int send_buffer_default = 16'384;
constexpr int receive_buffer_default = 131'072;
constexpr int keep_idle_max_s = 32'767;

int doubled(int wanted, int least) {
  return std::max(2 * std::clamp(wanted, 0, buffer_max), least);
}

}  // namespace

int SimKernel::option_value(SimSocket& socket, int level, int name, int& value) {
  const SimOptions& options = socket.options;
  if (level == IPPROTO_TCP) {
    switch (name) {
      case TCP_NODELAY:
        value = options.no_delay;
        return 0;
      case TCP_KEEPIDLE:
        value = options.keep_idle_s;
        return 0;
      default:
        return -ENOPROTOOPT;
    }
  }
  if (level == IPPROTO_IPV6 && socket.family == AF_INET6 && name == IPV6_V6ONLY) {
    value = options.ipv6_only;
    return 0;
  }
  // The two families of Linux disagree here.
  if (level != SOL_SOCKET) return socket.family == AF_INET ? -EOPNOTSUPP : -ENOPROTOOPT;
  switch (name) {
    case SO_ERROR:
      value = std::exchange(socket.pending_error, 0);
      return 0;
    case SO_TYPE:
      value = SOCK_STREAM;
      return 0;
    case SO_DOMAIN:
      value = socket.family;
      return 0;
    case SO_ACCEPTCONN:
      value = socket.state == SimState::listening;
      return 0;
    case SO_REUSEADDR:
      value = options.reuse_address;
      return 0;
    case SO_REUSEPORT:
      value = options.reuse_port;
      return 0;
    case SO_KEEPALIVE:
      value = options.keep_alive;
      return 0;
    case SO_SNDBUF:
      value = options.send_buffer == 0 ? send_buffer_default : options.send_buffer;
      return 0;
    case SO_RCVBUF:
      value = options.receive_buffer == 0 ? receive_buffer_default : options.receive_buffer;
      return 0;
    default:
      return -ENOPROTOOPT;
  }
}

int SimKernel::get_option(SimSocket& socket, int level, int name, void* value, socklen_t* size) {
  if (static_cast<int>(*size) < 0) return -EINVAL;
  if (level == SOL_SOCKET && name == SO_LINGER) {
    const linger stored{socket.options.linger_on, socket.options.linger_s};
    *size = std::min<socklen_t>(*size, sizeof stored);
    std::memcpy(value, &stored, *size);
    return 0;
  }
  int stored = 0;
  if (const int result = option_value(socket, level, name, stored); result < 0) return result;
  *size = std::min<socklen_t>(*size, sizeof stored);
  std::memcpy(value, &stored, *size);
  return 0;
}

int SimKernel::set_socket_option(SimSocket& socket, int name, int value) {
  SimOptions& options = socket.options;
  switch (name) {
    case SO_REUSEADDR:
      options.reuse_address = value != 0;
      return 0;
    case SO_REUSEPORT:
      options.reuse_port = value != 0;
      return 0;
    case SO_KEEPALIVE:
      options.keep_alive = value != 0;
      return 0;
    case SO_SNDBUF:
      options.send_buffer = doubled(value, send_buffer_min);
      return 0;
    case SO_RCVBUF:
      options.receive_buffer = doubled(value, receive_buffer_min);
      return 0;
    default:
      return -ENOPROTOOPT;
  }
}

int SimKernel::set_option(SimSocket& socket, int level, int name, const void* value,
                          socklen_t size) {
  SimOptions& options = socket.options;
  if (size < sizeof(int)) return -EINVAL;
  if (level == SOL_SOCKET && name == SO_LINGER) {
    linger wanted{};
    if (size < sizeof wanted) return -EINVAL;
    std::memcpy(&wanted, value, sizeof wanted);
    options.linger_on = wanted.l_onoff != 0;
    if (options.linger_on != 0) options.linger_s = wanted.l_linger;
    return 0;
  }
  int wanted = 0;
  std::memcpy(&wanted, value, sizeof wanted);
  if (level == SOL_SOCKET) return set_socket_option(socket, name, wanted);
  if (level == IPPROTO_TCP && name == TCP_NODELAY) {
    options.no_delay = wanted != 0;
    return 0;
  }
  if (level == IPPROTO_TCP && name == TCP_KEEPIDLE) {
    if (wanted < 1 || wanted > keep_idle_max_s) return -EINVAL;
    options.keep_idle_s = wanted;
    return 0;
  }
  if (level == IPPROTO_IPV6 && socket.family == AF_INET6 && name == IPV6_V6ONLY) {
    if (socket.port_held) return -EINVAL;
    options.ipv6_only = wanted != 0;
    return 0;
  }
  return -ENOPROTOOPT;
}

}  // namespace evix::detail
