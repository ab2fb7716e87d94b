// What the echo servers have in common: their options, the listener, and main().
#pragma once

#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "raw.hpp"

namespace raw {

struct EchoOptions {
  sockaddr_in listen = parse_address("127.0.0.1:0");
  std::int64_t echoes = INT64_MAX;
};

/// `help` is what --echoes does, below the line with all options.
inline EchoOptions parse_echo_options(int count, char** values, const std::string& help) {
  EchoOptions options;
  Arguments arguments(count, values);
  while (arguments.next()) {
    if (arguments.name() == "--listen") {
      options.listen = parse_address(arguments.value());
    } else if (arguments.name() == "--echoes") {
      options.echoes = static_cast<std::int64_t>(arguments.count());
    } else {
      const std::string path = values[0];
      die("usage: " + path.substr(path.rfind('/') + 1) + " [--listen 127.0.0.1:0] [--echoes N]\n" +
          help);
    }
  }
  return options;
}

/// `flags`: of socket(2), besides SOCK_CLOEXEC.
inline int make_listener(const sockaddr_in& where, int flags) {
  const int listener = require(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0), "socket");
  const int on = 1;
  require(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), "SO_REUSEADDR");
  // Accepted sockets inherit it on Linux: no call per connection.
  require(setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "TCP_NODELAY");
  const auto* address = reinterpret_cast<const sockaddr*>(&where);
  require(bind(listener, address, sizeof where), "bind");
  require(listen(listener, SOMAXCONN), "listen");
  return listener;
}

inline void announce(int listener) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  require(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), "getsockname");
  char host[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &address.sin_addr, host, sizeof host);
  std::printf("listening on %s:%u\n", host, ntohs(address.sin_port));
  std::fflush(stdout);
}

/// There is nothing to save: ending inside the handler costs the loop no descriptor and no check.
inline void end_at_once(int) { _exit(0); }

template <typename EchoServer>
int serve(const EchoOptions& options) {
  raise_descriptor_limit();
  signal(SIGTERM, end_at_once);
  signal(SIGINT, end_at_once);
  // On the heap: the buffers are too large for a careful stack.
  const auto server = std::make_unique<EchoServer>(options);
  announce(server->listener());
  server->run();
  std::printf("waits %llu\n", static_cast<unsigned long long>(server->waits()));
  return 0;
}

}  // namespace raw
