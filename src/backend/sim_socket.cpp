#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "backend/sim_kernel.hpp"
#include "base/saturating.hpp"

/** @file
 * TCP of the simulated kernel. The orders in which an error, an end and a state are looked at are
 * Linux's; the differential test holds them in place.
 */
namespace evix::detail {
namespace {

// Linux repeats the request 6 times, at 1, 3, 7 … 63 s, and gives up at 127 s (tcp(7)).
constexpr std::int64_t connect_patience_ns = 127'000'000'000;
constexpr unsigned backlog_max = 4096;  // net.core.somaxconn

bool has_connection(SimState state) {
  return state == SimState::established || state == SimState::finishing ||
         state == SimState::close_wait;
}

bool may_send(SimState state) {
  return state == SimState::established || state == SimState::close_wait;
}

}  // namespace

std::size_t sim_send_capacity(const SimSocket& socket) noexcept {
  const int set = socket.options.send_buffer;
  return set == 0 ? sim_capacity : static_cast<std::size_t>(set);
}

bool sim_writable(const SimSocket& socket) noexcept {
  if (socket.peer == nullptr || !may_send(socket.state)) return true;
  const std::size_t used = socket.peer->received.size();
  const std::size_t capacity = sim_send_capacity(socket);
  return used <= capacity && capacity - used >= used / 2;  // at least a third is free
}

Ready SimKernel::readiness(SimSocket& socket) const noexcept {
  if (socket.state == SimState::listening) {
    return socket.accept_queue.empty() ? Ready::none : Ready::readable;
  }
  Ready ready = Ready::none;
  const bool closed = socket.state == SimState::closed;
  if (closed || (socket.receive_shut && socket.send_shut)) ready |= Ready::hangup;
  if (socket.receive_shut) ready |= Ready::readable | Ready::read_closed;
  if (socket.pending_error != 0) ready |= Ready::error;
  if (socket.state == SimState::connecting) return ready;
  if (socket.received.size() > 0) ready |= Ready::readable;
  if (socket.send_shut || sim_writable(socket)) {
    ready |= Ready::writable;
  } else {
    socket.no_space = true;
  }
  return ready;
}

int SimKernel::bind(SimSocket& socket, const sockaddr* address, socklen_t size) {
  SimAddress wanted;
  if (const int result = sim_read_address(socket.family, address, size, wanted); result < 0) {
    return result;
  }
  if (socket.options.ipv6_only && wanted.is_mapped()) return -EINVAL;
  if (!wanted.is_any() && !wanted.is_loopback()) return -EADDRNOTAVAIL;
  if (socket.state != SimState::closed || socket.port_held) return -EINVAL;
  const bool port_given = wanted.port != 0;
  if (!port_given) wanted.port = ports_.free_port(now_ns_, false);
  if (wanted.port == 0 || ports_.conflicts(socket, wanted, now_ns_)) return -EADDRINUSE;
  socket.address_chosen = !wanted.is_any();
  socket.port_chosen = port_given;
  socket.local = wanted;
  ports_.hold(socket);
  return 0;
}

int SimKernel::listen(SimSocket& socket, int backlog) {
  const bool listening = socket.state == SimState::listening;
  if (socket.connect != SimConnect::unconnected) return -EINVAL;
  if (socket.state != SimState::closed && !listening) return -EINVAL;
  socket.backlog = std::min(static_cast<unsigned>(backlog), backlog_max);
  if (listening) return 0;
  if (!socket.port_held) {
    socket.local.port = ports_.free_port(now_ns_, false);
    if (socket.local.port == 0) return -EADDRINUSE;
    ports_.hold(socket);
  } else if (ports_.conflicts(socket, socket.local, now_ns_)) {
    return -EADDRINUSE;
  }
  socket.state = SimState::listening;
  ports_.listen(socket);
  return 0;
}

int SimKernel::accept(SimSocket& socket) {
  if (numbers_exhausted()) return -EMFILE;  // Linux takes the number first, whatever follows
  if (socket.state != SimState::listening) return -EINVAL;
  if (socket.accept_queue.empty()) return -EAGAIN;
  SimSocket* child = socket.accept_queue.front();
  socket.accept_queue.pop_front();
  child->in_accept_queue = false;
  child->connect = SimConnect::connected;
  return open_number(*child);
}

int SimKernel::connect(SimSocket& socket, const sockaddr* address, socklen_t size) {
  if (size < sizeof address->sa_family) return -EINVAL;
  if (address->sa_family == AF_UNSPEC) {
    disconnect(socket);
    socket.connect = SimConnect::unconnected;
    return 0;
  }
  switch (socket.connect) {
    case SimConnect::connected:
      return -EISCONN;
    case SimConnect::disconnecting:
      return -EINVAL;
    case SimConnect::unconnected: {
      if (socket.state != SimState::closed) return -EISCONN;
      SimAddress remote;
      const int result = sim_read_address(socket.family, address, size, remote);
      return result < 0 ? result : start_connect(socket, remote);
    }
    case SimConnect::connecting:
      break;
  }
  if (socket.state == SimState::connecting) return -EALREADY;
  if (socket.state == SimState::closed) {
    const int error = std::exchange(socket.pending_error, 0);
    socket.connect = SimConnect::unconnected;
    disconnect(socket);
    return error == 0 ? -ECONNABORTED : -error;
  }
  socket.connect = SimConnect::connected;
  return 0;
}

int SimKernel::start_connect(SimSocket& socket, const SimAddress& remote) {
  SimAddress destination = remote;
  if (destination.is_any()) destination.host = sim_loopback(destination.is_mapped()).host;
  if (!destination.is_loopback()) return -ENETUNREACH;
  if (socket.options.ipv6_only && destination.is_mapped()) return -ENETUNREACH;
  SimAddress local = socket.local;
  if (local.is_any()) local.host = sim_loopback(destination.is_mapped()).host;
  if (local.is_mapped() != destination.is_mapped()) return -ENETUNREACH;
  if (!socket.port_held) local.port = ports_.free_port(now_ns_, true);
  if (local.port == 0 || ports_.connected(local, destination)) return -EADDRNOTAVAIL;
  socket.local = local;
  socket.remote = destination;
  if (!socket.port_held) ports_.hold(socket);
  socket.state = SimState::connecting;
  socket.connect = SimConnect::connecting;
  socket.connect_deadline_ns = add_saturating(now_ns_, connect_patience_ns);
  connecting_.push_back(&socket);
  return -EINPROGRESS;
}

void SimKernel::complete_connects() {
  if (connecting_.empty()) return;
  std::vector<SimSocket*> waiting = std::move(connecting_);
  connecting_.clear();
  for (std::size_t left = waiting.size(); left > 1; --left) {
    std::swap(waiting[left - 1], waiting[prng_.below(left)]);
  }
  for (SimSocket* socket : waiting) complete_connect(*socket);
}

void SimKernel::complete_connect(SimSocket& socket) {
  if (SimSocket* listener = ports_.listener(socket.remote, prng_)) {
    if (listener->accept_queue.size() <= listener->backlog) {
      establish(socket, *listener);
    } else if (now_ns_ >= socket.connect_deadline_ns) {
      fail(socket, ETIMEDOUT);
    } else {
      connecting_.push_back(&socket);
    }
  } else if (socket.remote == socket.local) {
    socket.peer = &socket;  // both requests cross: TCP's simultaneous open
    socket.state = SimState::established;
    wake(socket, sim_any_change);
  } else {
    fail(socket, ECONNREFUSED);
  }
}

void SimKernel::establish(SimSocket& socket, SimSocket& listener) {
  SimSocket& child = make_socket(listener.family);
  child.options = listener.options;
  child.local = socket.remote;
  child.remote = socket.local;
  child.state = SimState::established;
  child.peer = &socket;
  child.in_accept_queue = true;
  ports_.hold(child);
  listener.accept_queue.push_back(&child);
  socket.peer = &child;
  socket.state = SimState::established;
  wake(listener, Ready::readable);
  wake(socket, sim_any_change);
}

std::optional<std::int64_t> SimKernel::connect_deadline_ns() const noexcept {
  std::optional<std::int64_t> nearest;
  for (const SimSocket* socket : connecting_) {
    nearest = std::min(nearest.value_or(never_ns), socket->connect_deadline_ns);
  }
  return nearest;
}

void SimKernel::forget_connect(SimSocket& socket) { std::erase(connecting_, &socket); }

std::int64_t SimKernel::receive(SimSocket& socket, void* bytes, std::size_t size) {
  if (socket.state == SimState::listening) return -ENOTCONN;
  if (socket.received.size() > 0) {
    const std::size_t taken = socket.received.take(bytes, size);
    SimSocket* peer = socket.peer;
    if (peer != nullptr && peer->no_space && sim_writable(*peer)) {
      peer->no_space = false;
      wake(*peer, Ready::writable);
    }
    return static_cast<std::int64_t>(taken);
  }
  if (socket.end_seen) return 0;
  if (socket.pending_error != 0) return -std::exchange(socket.pending_error, 0);
  if (socket.receive_shut) return 0;
  if (socket.state == SimState::closed) return -ENOTCONN;
  return -EAGAIN;
}

std::int64_t SimKernel::send(SimSocket& socket, const void* bytes, std::size_t size) {
  if (socket.pending_error != 0) return -std::exchange(socket.pending_error, 0);
  if (socket.state == SimState::connecting) return -EAGAIN;
  if (!may_send(socket.state) || socket.send_shut) return -EPIPE;
  if (size == 0) return 0;
  SimSocket& peer = *socket.peer;
  const std::size_t used = peer.received.size();
  const std::size_t capacity = sim_send_capacity(socket);
  const std::size_t sent = std::min(size, used < capacity ? capacity - used : 0);
  if (sent < size) socket.no_space = true;
  if (sent == 0) return -EAGAIN;
  if (peer.state == SimState::finishing && peer.receive_shut) {
    send_reset(peer);  // nobody will read this: Linux answers with a reset
    fail(peer, ECONNRESET);
    return static_cast<std::int64_t>(sent);
  }
  peer.received.append(bytes, sent);
  wake(peer, Ready::readable);
  return static_cast<std::int64_t>(sent);
}

int SimKernel::shutdown(SimSocket& socket, int how) {
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return -EINVAL;
  if (socket.connect == SimConnect::connecting) {
    socket.connect =
        has_connection(socket.state) ? SimConnect::connected : SimConnect::disconnecting;
  }
  const bool listening = socket.state == SimState::listening;
  if (listening || socket.state == SimState::connecting) {
    if (!listening || how != SHUT_WR) {
      disconnect(socket);
      socket.connect = SimConnect::unconnected;
    }
    wake(socket, sim_any_change);
    return 0;
  }
  const int result = socket.state == SimState::closed ? -ENOTCONN : 0;
  if (how != SHUT_WR) socket.receive_shut = true;
  if (how != SHUT_RD) socket.send_shut = true;
  if (how != SHUT_RD && may_send(socket.state)) send_end(socket);
  wake(socket, sim_any_change);
  return result;
}

int SimKernel::peer_name(SimSocket& socket, sockaddr* address, socklen_t* size) {
  if (!has_connection(socket.state)) return -ENOTCONN;
  sim_write_address(socket.family, socket.remote, address, size);
  return 0;
}

void SimKernel::stop_listening(SimSocket& socket) {
  ports_.unlisten(socket);
  socket.state = SimState::closed;
  for (SimSocket* child : std::exchange(socket.accept_queue, {})) {
    child->in_accept_queue = false;
    send_reset(*child);
    finish(*child);
    destroy_if_unreachable(*child);
  }
}

/** The own FIN leaves, and arrives. */
void SimKernel::send_end(SimSocket& socket) {
  SimSocket& peer = *socket.peer;
  socket.state = SimState::finishing;
  peer.receive_shut = true;
  peer.end_seen = true;
  if (peer.state == SimState::finishing) {
    ports_.keep(peer, now_ns_);
    finish(socket);
    if (&peer != &socket) {
      finish(peer);
      destroy_if_unreachable(peer);
    }
    return;
  }
  peer.state = SimState::close_wait;
  wake(peer, sim_any_change);
}

/** A reset leaves, and arrives; the sender's own state is the caller's business. */
void SimKernel::send_reset(SimSocket& socket) {
  SimSocket* peer = std::exchange(socket.peer, nullptr);
  if (peer == nullptr || peer == &socket) return;
  fail(*peer, peer->state == SimState::close_wait ? EPIPE : ECONNRESET);
}

void SimKernel::fail(SimSocket& socket, int error) {
  socket.pending_error = error;
  finish(socket);
  destroy_if_unreachable(socket);
}

/** The connection is over; what has arrived stays readable. */
void SimKernel::finish(SimSocket& socket) {
  socket.state = SimState::closed;
  socket.peer = nullptr;
  socket.receive_shut = true;
  socket.send_shut = true;
  if (!socket.port_chosen) ports_.release(socket);
  wake(socket, sim_any_change);
}

/** Back to a socket that can connect again; the connection, if any, is reset. */
void SimKernel::disconnect(SimSocket& socket) {
  if (socket.state == SimState::listening) {
    stop_listening(socket);
  } else if (socket.state != SimState::closed) {
    if (socket.state == SimState::connecting) forget_connect(socket);
    send_reset(socket);
    socket.pending_error = ECONNRESET;
    socket.state = SimState::closed;
  }
  if (!socket.port_chosen) ports_.release(socket);
  socket.received.clear();
  socket.remote.port = 0;
  if (!socket.address_chosen) socket.local.host = sim_any(socket.family).host;
  socket.receive_shut = false;
  socket.send_shut = false;
  socket.end_seen = false;
  socket.no_space = false;
  wake(socket, Ready::error);
}

/** The program has closed its only descriptor. */
void SimKernel::close_socket(SimSocket& socket) {
  socket.receive_shut = true;
  socket.send_shut = true;
  if (socket.state == SimState::listening) {
    stop_listening(socket);
  } else if (socket.state == SimState::connecting) {
    forget_connect(socket);
    socket.state = SimState::closed;
  } else if (has_connection(socket.state)) {
    const bool aborts = socket.options.linger_on != 0 && socket.options.linger_s == 0;
    if (socket.received.size() > 0 || aborts) {
      socket.state = SimState::closed;
      send_reset(socket);
    } else if (may_send(socket.state)) {
      send_end(socket);
    }
  }
  socket.received.clear();
}

}  // namespace evix::detail
