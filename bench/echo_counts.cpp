// What does an echo cost in system calls and in allocations? Counted in an untraced run: every
// system call of the server's loop goes through a table that counts, and so does operator new on
// the server's thread.
//
// usage: bench_echo_counts [BACKEND [CONNECTIONS [ECHOES [WARM_UP]]]]
// default: epoll 50 100000 20000
//
// The server, as `evix echo` does it, runs on one loop and thread; the load on another of each,
// with one message of 64 bytes in flight on each connection, and compares every byte. Reading the
// clock is counted apart: it is no system call on Linux (vdso(7)).
// How many messages share a wait depends on which side is slower at the moment: compare that part
// with the floor's (floor_echo_epoll --echoes N prints its waits) in the same minute.
// Exit code 1: an allocation after the warm-up, a wrong byte, or other calls than these:
// epoll and poll: the waits, one receive and one send for each echo, and of epoll one epoll_ctl for
// each 1024 events, with which the poller looks for descriptors that others have closed;
// io_uring: at most one io_uring_enter for each turn.

#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <evix/evix.hpp>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sys/calls.hpp"

namespace {

thread_local std::uint64_t allocations = 0;

}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using evix::detail::CallId;

constexpr std::size_t message_bytes = 64;
constexpr std::uint64_t events_per_audit = 1024;
constexpr std::size_t call_count = static_cast<std::size_t>(CallId::count);
using Counts = std::array<std::uint64_t, call_count>;

class CountingCalls final : public evix::detail::Calls {
 public:
  const Counts& counts() const noexcept { return counts_; }

  std::int64_t clock_now() noexcept override { return note(CallId::clock_now), Calls::clock_now(); }
  int socket(int domain, int type, int protocol) noexcept override {
    return note(CallId::socket), Calls::socket(domain, type, protocol);
  }
  int bind(int fd, const sockaddr* address, socklen_t size) noexcept override {
    return note(CallId::bind), Calls::bind(fd, address, size);
  }
  int listen(int fd, int backlog) noexcept override {
    return note(CallId::listen), Calls::listen(fd, backlog);
  }
  int accept(int fd) noexcept override { return note(CallId::accept), Calls::accept(fd); }
  int connect(int fd, const sockaddr* address, socklen_t size) noexcept override {
    return note(CallId::connect), Calls::connect(fd, address, size);
  }
  std::int64_t receive(int fd, void* bytes, std::size_t size) noexcept override {
    return note(CallId::receive), Calls::receive(fd, bytes, size);
  }
  std::int64_t send(int fd, const void* bytes, std::size_t size) noexcept override {
    return note(CallId::send), Calls::send(fd, bytes, size);
  }
  int shutdown(int fd, int how) noexcept override {
    return note(CallId::shutdown), Calls::shutdown(fd, how);
  }
  int close(int fd) noexcept override { return note(CallId::close), Calls::close(fd); }
  int local_name(int fd, sockaddr* address, socklen_t* size) noexcept override {
    return note(CallId::local_name), Calls::local_name(fd, address, size);
  }
  int peer_name(int fd, sockaddr* address, socklen_t* size) noexcept override {
    return note(CallId::peer_name), Calls::peer_name(fd, address, size);
  }
  int get_option(int fd, int level, int name, void* value, socklen_t* size) noexcept override {
    return note(CallId::get_option), Calls::get_option(fd, level, name, value, size);
  }
  int set_option(int fd, int level, int name, const void* value, socklen_t size) noexcept override {
    return note(CallId::set_option), Calls::set_option(fd, level, name, value, size);
  }
  int duplicate(int fd) noexcept override { return note(CallId::duplicate), Calls::duplicate(fd); }
  int descriptor_flags(int fd) noexcept override {
    return note(CallId::descriptor_flags), Calls::descriptor_flags(fd);
  }
  int set_nonblocking(int fd, int flags) noexcept override {
    return note(CallId::set_nonblocking), Calls::set_nonblocking(fd, flags);
  }
  int epoll_create() noexcept override { return note(CallId::epoll_create), Calls::epoll_create(); }
  int epoll_control(int epoll_fd, int operation, int fd, epoll_event* event) noexcept override {
    return note(CallId::epoll_control), Calls::epoll_control(epoll_fd, operation, fd, event);
  }
  int epoll_wait_ns(int epoll_fd, epoll_event* events, int count_max,
                    std::int64_t timeout_ns) noexcept override {
    return note(CallId::epoll_wait_ns),
           Calls::epoll_wait_ns(epoll_fd, events, count_max, timeout_ns);
  }
  int epoll_wait_ms(int epoll_fd, epoll_event* events, int count_max,
                    int timeout_ms) noexcept override {
    return note(CallId::epoll_wait_ms),
           Calls::epoll_wait_ms(epoll_fd, events, count_max, timeout_ms);
  }
  int poll(pollfd* entries, std::size_t count, std::int64_t timeout_ns) noexcept override {
    return note(CallId::poll), Calls::poll(entries, count, timeout_ns);
  }
  int ring_setup(unsigned entries, void* parameters) noexcept override {
    return note(CallId::ring_setup), Calls::ring_setup(entries, parameters);
  }
  int ring_enter(int fd, unsigned submit_count, unsigned wait_count, unsigned flags,
                 const void* argument, std::size_t size) noexcept override {
    return note(CallId::ring_enter),
           Calls::ring_enter(fd, submit_count, wait_count, flags, argument, size);
  }
  int ring_register(int fd, unsigned operation, void* argument, unsigned count) noexcept override {
    return note(CallId::ring_register), Calls::ring_register(fd, operation, argument, count);
  }
  int memory_map(int fd, std::size_t size, std::uint64_t offset, void** memory) noexcept override {
    return note(CallId::memory_map), Calls::memory_map(fd, size, offset, memory);
  }
  int memory_unmap(void* memory, std::size_t size) noexcept override {
    return note(CallId::memory_unmap), Calls::memory_unmap(memory, size);
  }
  int event_create() noexcept override { return note(CallId::event_create), Calls::event_create(); }
  int event_read(int fd) noexcept override {
    return note(CallId::event_read), Calls::event_read(fd);
  }
  // Other threads call this one; no figure here is made of it.
  int event_write(int fd) noexcept override { return Calls::event_write(fd); }
  int signal_action(int signal, const struct sigaction* action,
                    struct sigaction* before) noexcept override {
    return note(CallId::signal_action), Calls::signal_action(signal, action, before);
  }

 private:
  void note(CallId id) noexcept { ++counts_[static_cast<std::size_t>(id)]; }
  Counts counts_{};
};

struct Snapshot {
  Counts calls{};
  std::uint64_t turns = 0;
  std::uint64_t allocations = 0;
};

/** Serves until so many echoes are done, and notes the counts after the warm-up and at the end. */
class Server {
 public:
  Server(evix::BackendKind backend, std::uint64_t warm_up, std::uint64_t echoes)
      : warm_up_(warm_up), end_(warm_up + echoes) {
    evix::LoopOptions options;
    options.backend = backend;
    options.system_calls = &calls_;
    loop_.emplace(options);
    listener_ = evix::TcpListener(*loop_);
  }
  /** On the calling thread. */
  evix::Address listen() {
    if (auto listening = listener_.listen("127.0.0.1:0"); !listening) {
      std::exit(evix::complain(listening.error()));
    }
    listener_.accept_start([this](evix::Result<evix::TcpStream> stream) {
      if (!stream) std::exit(evix::complain(stream.error()));
      auto& peer = *peers_.emplace_back(std::make_unique<evix::TcpStream>(std::move(*stream)));
      peer.receive_start(
          [this, &peer](evix::Result<evix::Buffer>&& buffer) { echo(peer, buffer); });
    });
    return *listener_.local_address();
  }
  void run() {
    loop_->run();
    peers_.clear();
    listener_ = evix::TcpListener();
  }
  evix::BackendKind backend() const { return loop_->backend(); }
  const Snapshot& warm() const { return warm_; }
  const Snapshot& done() const { return done_; }

 private:
  void echo(evix::TcpStream& peer, evix::Result<evix::Buffer>& buffer) {
    if (!buffer || buffer->empty()) return peer.close();
    const auto sent = peer.try_send(*buffer);
    if (!sent || *sent != buffer->size()) return peer.close();
    if (++echoes_ == warm_up_) warm_ = snapshot();
    if (echoes_ != end_) return;
    done_ = snapshot();
    loop_->stop();
  }

  Snapshot snapshot() const { return {calls_.counts(), loop_->counters().turns, allocations}; }

  CountingCalls calls_;
  std::optional<evix::Loop> loop_;
  evix::TcpListener listener_;
  std::vector<std::unique_ptr<evix::TcpStream>> peers_;
  const std::uint64_t warm_up_;
  const std::uint64_t end_;
  std::uint64_t echoes_ = 0;
  Snapshot warm_;
  Snapshot done_;
};

/** One message in flight on each connection, until the server closes. */
class Load {
 public:
  Load(evix::Loop& loop, const evix::Address& address, std::size_t connections) {
    for (std::size_t i = 0; i < connections; ++i) {
      auto& client =
          *clients_.emplace_back(std::make_unique<Client>(Client{evix::TcpStream(loop)}));
      client.stream.connect(address, [this, &client](evix::Result<void> connected) {
        if (!connected) std::exit(evix::complain(connected.error()));
        client.stream.receive_start(
            [this, &client](evix::Result<evix::Buffer>&& buffer) { received(client, buffer); });
        send(client);
      });
    }
  }
  std::uint64_t wrong() const { return wrong_; }

 private:
  struct Client {
    evix::TcpStream stream;
    std::uint8_t round = 0;
    std::size_t received = 0;
  };
  void send(Client& client) {
    std::array<std::byte, message_bytes> message;
    message.fill(std::byte{++client.round});
    (void)client.stream.send_copy(message);
  }
  void received(Client& client, evix::Result<evix::Buffer>& buffer) {
    if (!buffer || buffer->empty()) return client.stream.close();
    for (const std::byte byte : buffer->bytes()) wrong_ += byte != std::byte{client.round};
    client.received += buffer->size();
    if (client.received < message_bytes) return;
    client.received = 0;
    send(client);
  }

  std::vector<std::unique_ptr<Client>> clients_;
  std::uint64_t wrong_ = 0;
};

void pin_to(std::size_t core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  (void)sched_setaffinity(0, sizeof cores, &cores);  // one core only: both share it
}

/** What was counted between the warm-up and the end. */
class Figures {
 public:
  Figures(const Snapshot& from, const Snapshot& to)
      : turns(to.turns - from.turns), allocated(to.allocations - from.allocations) {
    for (std::size_t i = 0; i < call_count; ++i) {
      counts_[i] = to.calls[i] - from.calls[i];
      if (static_cast<CallId>(i) != CallId::clock_now) total += counts_[i];
    }
    waits = of(CallId::epoll_wait_ns) + of(CallId::epoll_wait_ms) + of(CallId::poll) +
            of(CallId::ring_enter);
  }
  std::uint64_t of(CallId id) const { return counts_[static_cast<std::size_t>(id)]; }

  std::uint64_t turns;
  std::uint64_t allocated;
  std::uint64_t total = 0;
  std::uint64_t waits = 0;

 private:
  Counts counts_{};
};

int report(const Server& server, std::uint64_t echoes, std::uint64_t wrong) {
  const Figures figures(server.warm(), server.done());
  const std::uint64_t received = figures.of(CallId::receive);
  const std::uint64_t sent = figures.of(CallId::send);
  const std::uint64_t audits = figures.of(CallId::epoll_control);
  const std::uint64_t other = figures.total - figures.waits - audits - received - sent;
  const auto per_echo = [&](std::uint64_t count) {
    return static_cast<double>(count) / static_cast<double>(echoes);
  };
  std::printf(
      "%s, %llu echoes: system calls per echo %.4f (receive %.4f, send %.4f, wait %.4f, epoll_ctl "
      "%.4f, other %llu in all), turns per echo %.4f, clock readings per echo %.4f, allocations "
      "%llu, wrong bytes %llu\n",
      std::string(to_string(server.backend())).c_str(), static_cast<unsigned long long>(echoes),
      per_echo(figures.total), per_echo(received), per_echo(sent), per_echo(figures.waits),
      per_echo(audits), static_cast<unsigned long long>(other), per_echo(figures.turns),
      per_echo(figures.of(CallId::clock_now)), static_cast<unsigned long long>(figures.allocated),
      static_cast<unsigned long long>(wrong));
  const bool rings = server.backend() == evix::BackendKind::io_uring;
  const std::uint64_t each = rings ? 0 : echoes;
  const std::uint64_t audits_max = rings ? 0 : echoes / events_per_audit + 1;
  const bool as_planned = received == each && sent == each && other == 0 && audits <= audits_max &&
                          (!rings || figures.waits <= figures.turns);
  return figures.allocated == 0 && wrong == 0 && as_planned ? 0 : 1;
}

std::uint64_t argument(int argc, char** argv, int index, std::uint64_t otherwise) {
  return argc > index ? std::strtoull(argv[index], nullptr, 10) : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const auto backend = evix::backend_kind(argc > 1 ? argv[1] : "epoll");
  if (!backend) return evix::complain(backend.error());
  if (*backend == evix::BackendKind::sim) {
    std::fputs("sim has no sockets that the load could reach\n", stderr);
    return 2;
  }
  const std::uint64_t connections = argument(argc, argv, 2, 50);
  const std::uint64_t echoes = argument(argc, argv, 3, 100'000);
  const std::uint64_t warm_up = argument(argc, argv, 4, 20'000);
  Server server(*backend, warm_up, echoes);
  const evix::Address address = server.listen();
  evix::Loop loop;
  std::thread thread([&] {
    pin_to(0);
    server.run();
    loop.stop();
  });
  pin_to(1);
  const Load load(loop, address, connections);
  loop.run();
  thread.join();
  return report(server, echoes, load.wrong());
}
