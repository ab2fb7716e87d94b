// The floor under every echo figure: a TCP echo server on raw epoll, written by hand.
//
// Per message: one recv, one send, and a share of one epoll_wait per batch. A connection is
// registered once, edge-triggered; epoll_ctl is called again only after a short send.
// A receive that does not fill the buffer has emptied the socket, so there is no second recv
// that only says EAGAIN: later bytes make a new edge, and an end of stream that came together
// with the bytes is told by EPOLLRDHUP in the same event.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "echo_server.hpp"

namespace {

// 64 KiB: the bulk stream's message size, so that one of those needs one recv too.
constexpr std::size_t buffer_bytes = 65'536;
constexpr int batch_events = 1'024;
// A peer that always fills the buffer gives way to the others after this many receives (1 MiB).
constexpr int receives_per_turn = 16;
// EPOLLRDNORM makes the listener's events differ from a plain message's EPOLLIN, so that the one
// comparison that finds plain messages finds the listener too.
constexpr std::uint32_t accepting = EPOLLIN | EPOLLRDNORM | EPOLLET;
constexpr std::uint32_t reading = EPOLLIN | EPOLLRDHUP | EPOLLET;
constexpr std::uint32_t writing = EPOLLOUT | EPOLLET;

class EchoServer {
 public:
  explicit EchoServer(const raw::EchoOptions& options);
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;

  void run();
  int listener() const { return listener_; }
  std::uint64_t waits() const { return waits_; }

 private:
  enum class Outcome {
    emptied,  // echoed, and nothing more was there to read
    more,     // echoed, and the socket may hold more
    stopped,  // closed, found empty, or waiting for room to send
  };

  // What the socket had no room for.
  struct Unsent {
    std::vector<char> bytes;
    std::size_t done = 0;
  };

  void watch(int operation, int descriptor, std::uint32_t events) const;
  void accept_all();
  void close_connection(int descriptor);
  void serve_rare(int descriptor);
  bool finish_unsent(int descriptor);
  Outcome echo_once(int descriptor);
  Outcome echo_received(int descriptor, ssize_t received);
  Outcome after_failed_receive(int descriptor, ssize_t received);
  Outcome after_short_send(int descriptor, ssize_t sent, std::size_t length);

  int epoll_;
  int listener_;
  bool accept_stalled_ = false;
  std::int64_t echoes_left_;
  std::uint64_t waits_ = 0;
  std::unordered_map<int, Unsent> unsent_;  // only the connections that wait for room
  epoll_event events_[batch_events];
  char buffer_[buffer_bytes];
};

EchoServer::EchoServer(const raw::EchoOptions& options)
    : epoll_(raw::require(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      listener_(raw::make_listener(options.listen, SOCK_NONBLOCK)),
      echoes_left_(options.echoes) {
  watch(EPOLL_CTL_ADD, listener_, accepting);
}

EchoServer::Outcome EchoServer::echo_once(int descriptor) {
  const ssize_t received = raw::receive(descriptor, buffer_, buffer_bytes);
  return echo_received(descriptor, received);
}

EchoServer::Outcome EchoServer::echo_received(int descriptor, ssize_t received) {
  if (received <= 0) return after_failed_receive(descriptor, received);
  const auto length = static_cast<std::size_t>(received);
  const ssize_t sent = raw::send(descriptor, buffer_, length);
  if (sent != received) return after_short_send(descriptor, sent, length);
  --echoes_left_;
  return length < buffer_bytes ? Outcome::emptied : Outcome::more;
}

void EchoServer::run() {
  while (echoes_left_ > 0) {
    const int ready = epoll_wait(epoll_, events_, batch_events, -1);
    ++waits_;
    if (ready < 0 && errno != EINTR) raw::die("epoll_wait", errno);
    for (int index = 0; index < ready; ++index) {
      const int descriptor = events_[index].data.fd;
      if (events_[index].events != EPOLLIN) [[unlikely]] {
        serve_rare(descriptor);
        continue;
      }
      const ssize_t received = raw::receive(descriptor, buffer_, buffer_bytes);
      // In one comparison: an error, the end of the stream, or a buffer filled to the brim.
      if (static_cast<std::size_t>(received - 1) >= buffer_bytes - 1) [[unlikely]] {
        if (echo_received(descriptor, received) == Outcome::more) serve_rare(descriptor);
        continue;
      }
      const auto length = static_cast<std::size_t>(received);
      const ssize_t sent = raw::send(descriptor, buffer_, length);
      if (sent != received) [[unlikely]] {
        after_short_send(descriptor, sent, length);
        continue;
      }
      --echoes_left_;
    }
  }
}

// Everything that is not one plain message: accept, end of stream, reset, room to send, bulk data.
void EchoServer::serve_rare(int descriptor) {
  if (descriptor == listener_) return accept_all();
  if (!unsent_.empty() && !finish_unsent(descriptor)) return;
  for (int count = 0; count < receives_per_turn; ++count) {
    // On purpose also after an emptied socket: the end of the stream may be what was signalled.
    if (echo_once(descriptor) == Outcome::stopped) return;
  }
  watch(EPOLL_CTL_MOD, descriptor, reading);  // asks for the edge again
}

EchoServer::Outcome EchoServer::after_failed_receive(int descriptor, ssize_t received) {
  if (received == -EINTR) return Outcome::more;
  if (received == -EAGAIN) return Outcome::stopped;
  close_connection(descriptor);
  return Outcome::stopped;
}

EchoServer::Outcome EchoServer::after_short_send(int descriptor, ssize_t sent, std::size_t length) {
  if (sent < 0 && sent != -EAGAIN && sent != -EINTR) {
    close_connection(descriptor);
    return Outcome::stopped;
  }
  const std::size_t done = sent < 0 ? 0 : static_cast<std::size_t>(sent);
  unsent_[descriptor].bytes.assign(buffer_ + done, buffer_ + length);
  watch(EPOLL_CTL_MOD, descriptor, writing);
  return Outcome::stopped;
}

// True: nothing is left to send and the connection may be read.
bool EchoServer::finish_unsent(int descriptor) {
  const auto found = unsent_.find(descriptor);
  if (found == unsent_.end()) return true;
  Unsent& unsent = found->second;
  while (unsent.done < unsent.bytes.size()) {
    const ssize_t sent =
        raw::send(descriptor, unsent.bytes.data() + unsent.done, unsent.bytes.size() - unsent.done);
    if (sent == -EINTR) continue;
    if (sent == -EAGAIN) return false;
    if (sent < 0) {
      close_connection(descriptor);
      return false;
    }
    unsent.done += static_cast<std::size_t>(sent);
  }
  unsent_.erase(found);
  --echoes_left_;
  watch(EPOLL_CTL_MOD, descriptor, reading);
  return true;
}

void EchoServer::accept_all() {
  accept_stalled_ = false;
  while (true) {
    const int descriptor = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor >= 0) {
      watch(EPOLL_CTL_ADD, descriptor, reading);
      continue;
    }
    if (errno == EAGAIN) return;
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      accept_stalled_ = true;  // the edge is used up: the next close accepts again
      return;
    }
    // Anything else is the error of one connection that ended before it was accepted.
    if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK) raw::die("accept4", errno);
  }
}

void EchoServer::close_connection(int descriptor) {
  if (!unsent_.empty()) unsent_.erase(descriptor);
  close(descriptor);
  if (accept_stalled_) accept_all();
}

void EchoServer::watch(int operation, int descriptor, std::uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  raw::require(epoll_ctl(epoll_, operation, descriptor, &event), "epoll_ctl");
}

}  // namespace

int main(int count, char** values) {
  return raw::serve<EchoServer>(raw::parse_echo_options(
      count, values,
      "  --echoes N  end by itself after N pairs of one receive and one send,\n"
      "              and print how many waits they took"));
}
