// What does an idle connection cost in memory? So many connections are accepted by one loop and
// receive; what operator new has given out meanwhile, and what the objects of the caller take
// (sizeof), is divided by their number.
//
// usage: bench_idle_memory [CONNECTIONS]     (default 9000; as many descriptors are needed)
//
// `requested` is what was asked for, `usable` what malloc gave (malloc_usable_size), `in use` its
// own account with its headers (mallinfo2). Everything that grows is in it, whole: slabs and
// tables are larger than what they hold by part of their last chunk, and arrays that double.
// A second line follows after an echo on each connection. Receive buffers of 64 KiB are counted
// apart, as their number does not depend on that of the connections: over epoll one after the first
// echo, over io_uring the ring's from the first receive on. The clients are another process's:
// their descriptors are not the server's. EVIX_BACKEND chooses. Exit code 1: more than 192 bytes
// before the echoes.

#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <evix/evix.hpp>
#include <new>
#include <string>
#include <vector>

#include "base/buffer_pool.hpp"

namespace {

constexpr std::size_t target_bytes = 192;
constexpr std::size_t receive_buffer_bytes = std::size_t{64} * 1024;
constexpr std::size_t block_bytes = sizeof(evix::detail::BufferBlock) + receive_buffer_bytes;

std::int64_t requested_bytes = 0;
std::int64_t usable_bytes = 0;
std::int64_t receive_buffers = 0;

// The size that was asked for stands before the memory: what is freed must be known as well.
constexpr std::size_t header_bytes = 16;

void count(std::byte* memory, std::size_t size, std::int64_t sign) {
  if (size == block_bytes) receive_buffers += sign;
  requested_bytes += sign * static_cast<std::int64_t>(size);
  usable_bytes += sign * static_cast<std::int64_t>(malloc_usable_size(memory) - header_bytes);
}

}  // namespace

void* operator new(std::size_t size) {
  auto* memory = static_cast<std::byte*>(std::malloc(size + header_bytes));
  if (memory == nullptr) throw std::bad_alloc();
  *reinterpret_cast<std::size_t*>(memory) = size;
  count(memory, size, 1);
  return memory + header_bytes;
}
void operator delete(void* pointer) noexcept {
  if (pointer == nullptr) return;
  std::byte* memory = static_cast<std::byte*>(pointer) - header_bytes;
  count(memory, *reinterpret_cast<std::size_t*>(memory), -1);
  std::free(memory);
}
void operator delete(void* pointer, std::size_t) noexcept { operator delete(pointer); }

namespace {

struct Usage {
  std::int64_t buffers = receive_buffers;
  std::int64_t requested = requested_bytes;
  std::int64_t usable = usable_bytes;
  std::int64_t in_use = static_cast<std::int64_t>(mallinfo2().uordblks + mallinfo2().hblkhd);
};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(2);
}

int connect_to(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fail("connect");
  }
  return fd;
}

/** A process that connects or has an echo made at each command, and answers when it is done. */
class Clients {
 public:
  Clients() {
    if (::pipe(commands_.data()) != 0 || ::pipe2(answers_.data(), O_NONBLOCK) != 0) fail("pipe");
    const pid_t child = ::fork();
    if (child < 0) fail("fork");
    if (child == 0) serve();
    ::close(commands_[0]);
    ::close(answers_[1]);
  }
  void connect(std::uint16_t port) { tell(port); }
  /** On the connection after that of the call before. */
  void echo() { tell(0); }
  /** Whether the last command is done. */
  bool done() {
    char answer = 0;
    return ::read(answers_[0], &answer, 1) == 1;
  }

 private:
  void tell(std::uint16_t command) {
    if (::write(commands_[1], &command, sizeof command) != sizeof command) fail("write");
  }
  [[noreturn]] void serve() {
    ::close(commands_[1]);
    std::vector<int> clients;
    std::size_t echoes = 0;
    std::uint16_t command = 0;
    while (::read(commands_[0], &command, sizeof command) == sizeof command) {
      char byte = 'x';
      if (command != 0) {
        clients.push_back(connect_to(command));
      } else {
        const int fd = clients[echoes++ % clients.size()];
        if (::send(fd, &byte, 1, MSG_NOSIGNAL) != 1) fail("send");
        if (::recv(fd, &byte, 1, 0) != 1) fail("recv");
      }
      if (::write(answers_[1], &byte, 1) != 1) fail("write");
    }
    std::_Exit(0);
  }

  std::array<int, 2> commands_{};
  std::array<int, 2> answers_{};
};

double print(const char* when, const Usage& before, std::size_t connections) {
  const Usage after;
  const std::int64_t buffers = after.buffers - before.buffers;
  const std::int64_t apart = buffers * static_cast<std::int64_t>(block_bytes);
  const auto each = [&](std::int64_t bytes) {
    return static_cast<double>(bytes - apart) / static_cast<double>(connections) +
           static_cast<double>(sizeof(evix::TcpStream));
  };
  const double requested = each(after.requested - before.requested);
  std::printf(
      "%-10s %zu connections, bytes each: requested %.1f, usable %.1f, in use %.1f; and %lld"
      " receive buffers\n",
      when, connections, requested, each(after.usable - before.usable),
      each(after.in_use - before.in_use), static_cast<long long>(buffers));
  return requested;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t connections = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 9000;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);

  Clients clients;
  evix::Loop loop(evix::LoopOptions{.buffer_size = receive_buffer_bytes});
  std::vector<evix::TcpStream> streams;  // sizeof is counted, so the array itself is not
  streams.reserve(connections);
  evix::TcpListener listener(loop);
  if (auto listening = listener.listen("127.0.0.1:0"); !listening) {
    return evix::complain(listening.error());
  }
  listener.accept_start([&](evix::Result<evix::TcpStream> stream) {
    if (!stream) std::exit(evix::complain(stream.error()));
    evix::TcpStream* peer = &streams.emplace_back(std::move(*stream));
    peer->receive_start([peer](evix::Result<evix::Buffer>&& buffer) {
      if (buffer && !buffer->empty()) (void)peer->try_send(*buffer);
    });
  });
  const std::uint16_t port = listener.local_address()->port();
  loop.run_ready();

  const Usage before;
  for (std::size_t count = 1; count <= connections; ++count) {
    clients.connect(port);
    for (bool done = false; !done || streams.size() < count; done = done || clients.done()) {
      loop.run_ready();
    }
  }
  loop.run_ready();
  const double idle = print("idle", before, connections);
  for (std::size_t count = 0; count < connections; ++count) {
    clients.echo();
    while (!clients.done()) loop.run_ready();
  }
  print("after echo", before, connections);
  std::printf("of these %zu for the caller's TcpStream; backend %s; %s the target of %zu\n",
              sizeof(evix::TcpStream), std::string(to_string(loop.backend())).c_str(),
              idle <= target_bytes ? "within" : "OVER", target_bytes);
  return idle <= target_bytes ? 0 : 1;
}
