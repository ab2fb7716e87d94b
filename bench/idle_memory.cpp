// What does an idle connection cost in memory? So many connections are accepted by one loop and
// receive; what operator new has given out meanwhile, and what the objects of the caller take
// (sizeof), is divided by their number.
//
// usage: bench_idle_memory [CONNECTIONS]     (default 9000; twice as many descriptors are needed)
//
// `requested` is what was asked for, `usable` what malloc gave (malloc_usable_size), `in use` its
// own account with its headers (mallinfo2). Everything that grows is in it, whole: slabs and
// tables are larger than what they hold by part of their last chunk, and arrays that double.
// A second line follows after an echo on each connection, which adds the loop's one receive buffer
// of 64 KiB, whatever the number. Exit code 1: more than 192 bytes before it.

#include <malloc.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <evix/evix.hpp>
#include <new>
#include <vector>

namespace {

constexpr std::size_t target_bytes = 192;

std::int64_t requested_bytes = 0;
std::int64_t usable_bytes = 0;

// The size that was asked for stands before the memory: what is freed must be known as well.
constexpr std::size_t header_bytes = 16;

}  // namespace

void* operator new(std::size_t size) {
  auto* memory = static_cast<std::byte*>(std::malloc(size + header_bytes));
  if (memory == nullptr) throw std::bad_alloc();
  *reinterpret_cast<std::size_t*>(memory) = size;
  requested_bytes += static_cast<std::int64_t>(size);
  usable_bytes += static_cast<std::int64_t>(malloc_usable_size(memory) - header_bytes);
  return memory + header_bytes;
}
void operator delete(void* pointer) noexcept {
  if (pointer == nullptr) return;
  std::byte* memory = static_cast<std::byte*>(pointer) - header_bytes;
  requested_bytes -= static_cast<std::int64_t>(*reinterpret_cast<std::size_t*>(memory));
  usable_bytes -= static_cast<std::int64_t>(malloc_usable_size(memory) - header_bytes);
  std::free(memory);
}
void operator delete(void* pointer, std::size_t) noexcept { operator delete(pointer); }

namespace {

struct Usage {
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

double print(const char* when, const Usage& before, std::size_t connections) {
  const Usage after;
  const auto each = [&](std::int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(connections) +
           static_cast<double>(sizeof(evix::TcpStream));
  };
  const double requested = each(after.requested - before.requested);
  std::printf("%-10s %zu connections, bytes each: requested %.1f, usable %.1f, in use %.1f\n", when,
              connections, requested, each(after.usable - before.usable),
              each(after.in_use - before.in_use));
  return requested;
}

void echo_each(evix::Loop& loop, const std::vector<int>& clients) {
  char byte = 'x';
  for (const int fd : clients) {
    if (::send(fd, &byte, 1, MSG_NOSIGNAL) != 1) fail("send");
    loop.run_ready();
    if (::recv(fd, &byte, 1, 0) != 1) fail("recv");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t connections = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 9000;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);

  evix::Loop loop;
  std::vector<evix::TcpStream> streams;  // sizeof is counted, so the array itself is not
  std::vector<int> clients;
  streams.reserve(connections);
  clients.reserve(connections);
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
  while (streams.size() < connections) {
    clients.push_back(connect_to(port));
    while (streams.size() < clients.size()) loop.run_ready();
  }
  const double idle = print("idle", before, connections);
  echo_each(loop, clients);
  print("after echo", before, connections);
  std::printf("of these %zu for the caller's TcpStream; %s the target of %zu\n",
              sizeof(evix::TcpStream), idle <= target_bytes ? "within" : "OVER", target_bytes);
  for (const int fd : clients) ::close(fd);
  return idle <= target_bytes ? 0 : 1;
}
