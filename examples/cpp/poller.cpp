// The poll layer by itself: a poller and a timer queue, no loop. A listener is registered with a
// token, a timeout with a callback; then for ever: run the timers, wait for at most what they
// allow, walk the events. Here "for ever" ends with the first byte that arrives.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <evix/poller.hpp>
#include <evix/timer_queue.hpp>

using namespace std::chrono_literals;

namespace {

enum Token : std::uint64_t { listener_token = 1, peer_token = 2 };

// A listening socket on a port of the kernel's choice; -1 when there is none.
int listen_on_loopback(sockaddr_in& address) {
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (::bind(fd, name, size) != 0 || ::listen(fd, 1) != 0) return -1;
  return ::getsockname(fd, name, &size) == 0 ? fd : -1;
}

void connect_and_write(const sockaddr_in& address) {
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::write(client, "!", 1) == 1) {
    std::puts("timer: connected and wrote a byte");
  }
  ::close(client);
}

}  // namespace

int main() {
  auto poller = evix::Poller::create();
  if (!poller) return evix::complain(poller.error());
  evix::TimerQueue timers;

  sockaddr_in address{};
  const int listener = listen_on_loopback(address);
  const auto listening =
      poller->add(listener, evix::Ready::readable, evix::Trigger::level, listener_token);
  if (!listening) return evix::complain(listening.error());
  timers.add(1500us, [] { std::puts("timer: 1.5 ms"); });
  timers.add(3ms, [&] { connect_and_write(address); });

  for (bool running = true; running;) {
    const auto count = poller->wait(timers.run());
    if (!count && count.error() == std::errc::interrupted) continue;
    if (!count) return evix::complain(count.error());
    while (const auto event = poller->next()) {
      if (event->token == listener_token) {
        const int peer = ::accept4(event->handle, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        std::puts("listener: readable, accepted");
        const auto added =
            poller->add(peer, evix::Ready::readable, evix::Trigger::one_shot, peer_token);
        if (!added) return evix::complain(added.error());
      } else {
        char byte = 0;
        if (::read(event->handle, &byte, 1) == 1) std::printf("peer: readable, '%c'\n", byte);
        poller->remove(event->id);  // first remove, then close
        ::close(event->handle);
        running = false;
      }
    }
    for (const evix::ChangeFailure& failure : poller->failures()) evix::complain(failure.error);
  }
  poller->remove(*listening);
  ::close(listener);
  std::printf("interests left: %zu, timers left: %zu\n", poller->size(), timers.size());
}
