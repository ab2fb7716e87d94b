// Load for the echo servers, on raw epoll and one thread: it must be no slower than the fastest
// server, so it uses nothing of evix. Every byte that comes back is compared.
//
// With --steps it stops where the server is idle, so that a script can read the server's CPU
// clock there: it prints one line per step and goes on when it receives a line.
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "load_report.hpp"
#include "raw.hpp"

namespace {

using raw::Counts;
using raw::Pattern;
using raw::piece_bytes;

constexpr int batch_events = 1'024;
// A client that closes first leaves its port in TIME_WAIT: 28,000 ports of one source address
// are used up within a second of a storm, so its connections come from several.
constexpr std::uint32_t storm_sources = 8;

struct Options {
  sockaddr_in server{};
  std::size_t connections = 1;
  std::size_t size = 64;
  std::size_t pipeline = 1;
  std::uint64_t echoes = 0;  // 0: as many as fit into the duration
  std::uint64_t duration_ns = 1'000'000'000;
  std::uint64_t warm_up_ns = 0;
  std::uint64_t patience_ns = 10'000'000'000;
  bool idle = false;
  bool storm = false;
  bool steps = false;
};

void end_step(const char* line) {
  std::printf("%s\n", line);
  std::fflush(stdout);
  char byte = 0;
  while (true) {
    const ssize_t got = read(STDIN_FILENO, &byte, 1);
    if (got == 1 && byte == '\n') return;
    if (got == 0) std::exit(0);  // whoever gave the steps is gone
    if (got < 0 && errno != EINTR) raw::die("read of the next step", errno);
  }
}

// When to start another message, and how many are on their way.
class Pace {
 public:
  void begin(std::uint64_t duration_ns, std::uint64_t echoes) {
    started_ns_ = raw::monotonic_ns();
    ends_ns_ = echoes != 0 ? UINT64_MAX : started_ns_ + duration_ns;
    left_ = echoes != 0 ? echoes : UINT64_MAX;
    under_way_ = 0;
  }
  bool start_one(std::uint64_t now_ns) {
    if (left_ == 0 || now_ns >= ends_ns_) return false;
    --left_;
    ++under_way_;
    return true;
  }
  void end(std::uint64_t number) { under_way_ -= number; }
  bool none_left() const { return left_ == 0; }
  std::uint64_t under_way() const { return under_way_; }
  std::uint64_t started_ns() const { return started_ns_; }

 private:
  std::uint64_t started_ns_ = 0;
  std::uint64_t ends_ns_ = 0;
  std::uint64_t left_ = 0;
  std::uint64_t under_way_ = 0;
};

void watch(int epoll, int descriptor, std::size_t index) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = index;
  raw::require(epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event), "epoll_ctl");
}

// Calls handle(index) for every ready connection until nothing is under way any more.
// False: the server stayed silent for too long.
template <typename Handle>
bool turn_until_done(int epoll, const Pace& pace, const Options& options, Handle handle) {
  const int patience_ms = static_cast<int>(options.patience_ns / 1'000'000);
  std::vector<epoll_event> events(batch_events);
  while (pace.under_way() > 0) {
    const int ready = epoll_wait(epoll, events.data(), batch_events, patience_ms);
    if (ready == 0) return false;
    if (ready < 0 && errno != EINTR) raw::die("epoll_wait", errno);
    for (int index = 0; index < ready; ++index) {
      handle(events[static_cast<std::size_t>(index)].data.u64);
    }
  }
  return true;
}

// Connections that stay open and keep `pipeline` messages under way each.
class EchoLoad {
 public:
  explicit EchoLoad(const Options& options)
      : options_(options), connections_(options.connections), buffer_(piece_bytes) {
    epoll_ = raw::require(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  }

  void connect_all();
  Counts run(std::uint64_t duration_ns, std::uint64_t echoes);

 private:
  struct Connection {
    int descriptor = -1;
    std::uint64_t due = 0;                 // bytes of all messages started
    std::uint64_t sent = 0;                // bytes
    std::uint64_t received = 0;            // bytes
    std::vector<std::uint64_t> starts_ns;  // of the messages under way, a ring of `pipeline`
  };

  void start_message(Connection& connection, std::uint64_t now_ns);
  void send_due(std::size_t index);
  void receive(std::size_t index);
  void finish_messages(Connection& connection, std::uint64_t before);
  bool finished(const Connection& connection) const;
  void fail(std::size_t index);
  void close_now(std::size_t index);

  const Options& options_;
  int epoll_ = -1;
  Pattern pattern_;
  Pace pace_;
  Counts counts_;
  std::vector<Connection> connections_;
  std::vector<char> buffer_;
};

void EchoLoad::connect_all() {
  for (std::size_t index = 0; index < connections_.size(); ++index) {
    const int descriptor = raw::require(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    const int on = 1;
    raw::require(setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "TCP_NODELAY");
    const auto* address = reinterpret_cast<const sockaddr*>(&options_.server);
    raw::require(connect(descriptor, address, sizeof options_.server), "connect");
    raw::set_nonblocking(descriptor);
    connections_[index].descriptor = descriptor;
    connections_[index].starts_ns.resize(options_.pipeline);
    watch(epoll_, descriptor, index);
  }
}

Counts EchoLoad::run(std::uint64_t duration_ns, std::uint64_t echoes) {
  counts_ = Counts();
  pace_.begin(duration_ns, echoes);
  for (std::size_t index = 0; index < connections_.size(); ++index) {
    Connection& connection = connections_[index];
    if (connection.descriptor < 0) continue;
    for (std::size_t count = 0; count < options_.pipeline; ++count) {
      // A window shorter than this loop still gives every connection its first messages.
      start_message(connection, pace_.started_ns());
    }
    send_due(index);
  }
  const bool answered = turn_until_done(epoll_, pace_, options_, [this](std::size_t index) {
    if (connections_[index].descriptor < 0) return;
    receive(index);
    if (connections_[index].descriptor >= 0) send_due(index);
  });
  counts_.seconds = static_cast<double>(raw::monotonic_ns() - pace_.started_ns()) * 1e-9;
  if (!answered) {
    counts_.lost += pace_.under_way();
    ++counts_.errors;
  }
  return counts_;
}

void EchoLoad::start_message(Connection& connection, std::uint64_t now_ns) {
  if (!pace_.start_one(now_ns)) return;
  const std::uint64_t number = connection.due / options_.size;
  connection.starts_ns[number % options_.pipeline] = raw::monotonic_ns();
  connection.due += options_.size;
}

void EchoLoad::send_due(std::size_t index) {
  Connection& connection = connections_[index];
  while (connection.sent < connection.due) {
    const std::size_t length =
        std::min<std::uint64_t>(connection.due - connection.sent, piece_bytes);
    const ssize_t sent =
        send(connection.descriptor, pattern_.at(index, connection.sent), length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) return fail(index);
    connection.sent += static_cast<std::uint64_t>(sent);
  }
}

void EchoLoad::receive(std::size_t index) {
  Connection& connection = connections_[index];
  while (true) {
    const ssize_t got = recv(connection.descriptor, buffer_.data(), piece_bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return got == 0 && finished(connection) ? close_now(index) : fail(index);
    const auto length = static_cast<std::size_t>(got);
    if (length > connection.sent - connection.received) return fail(index);  // nobody sent them
    counts_.wrong_bytes += pattern_.wrong(index, connection.received, buffer_.data(), length);
    const std::uint64_t before = connection.received / options_.size;
    connection.received += length;
    finish_messages(connection, before);
    if (length < piece_bytes) return;  // emptied: what comes later is a new edge
  }
}

void EchoLoad::finish_messages(Connection& connection, std::uint64_t before) {
  const std::uint64_t after = connection.received / options_.size;
  if (after == before) return;
  const std::uint64_t now_ns = raw::monotonic_ns();
  for (std::uint64_t number = before; number < after; ++number) {
    counts_.latency.add(now_ns - connection.starts_ns[number % options_.pipeline]);
    start_message(connection, now_ns);
  }
  counts_.echoes += after - before;
  pace_.end(after - before);
}

void EchoLoad::fail(std::size_t index) {
  Connection& connection = connections_[index];
  const std::uint64_t missing =
      connection.due / options_.size - connection.received / options_.size;
  ++counts_.errors;
  counts_.lost += missing;
  pace_.end(missing);
  close_now(index);
}

// A server that ends after the agreed number of echoes closes while the load still reads the last
// ones of other connections: that is no error.
bool EchoLoad::finished(const Connection& connection) const {
  return pace_.none_left() && connection.received == connection.due;
}

void EchoLoad::close_now(std::size_t index) {
  close(connections_[index].descriptor);
  connections_[index].descriptor = -1;
}

// Connections that live for one echo: `connections` of them at any time.
class StormLoad {
 public:
  explicit StormLoad(const Options& options)
      : options_(options), connections_(options.connections), buffer_(piece_bytes) {
    epoll_ = raw::require(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  }

  Counts run(std::uint64_t duration_ns, std::uint64_t echoes);

 private:
  struct Connection {
    int descriptor = -1;
    std::uint64_t started_ns = 0;
    std::size_t sent = 0;
    std::size_t received = 0;
  };

  void start(std::size_t index, std::uint64_t now_ns);
  void handle(std::size_t index);
  bool send_rest(std::size_t index);
  bool receive_rest(std::size_t index);
  void finish(std::size_t index, bool good);

  const Options& options_;
  int epoll_ = -1;
  std::uint32_t source_ = 0;
  Pattern pattern_;
  Pace pace_;
  Counts counts_;
  std::vector<Connection> connections_;
  std::vector<char> buffer_;
};

Counts StormLoad::run(std::uint64_t duration_ns, std::uint64_t echoes) {
  counts_ = Counts();
  pace_.begin(duration_ns, echoes);
  for (std::size_t index = 0; index < connections_.size(); ++index) {
    start(index, pace_.started_ns());
  }
  const bool answered =
      turn_until_done(epoll_, pace_, options_, [this](std::size_t index) { handle(index); });
  counts_.seconds = static_cast<double>(raw::monotonic_ns() - pace_.started_ns()) * 1e-9;
  if (!answered) {
    counts_.lost += pace_.under_way();
    ++counts_.errors;
  }
  return counts_;
}

void StormLoad::start(std::size_t index, std::uint64_t now_ns) {
  if (!pace_.start_one(now_ns)) return;
  Connection& connection = connections_[index];
  connection = Connection();
  connection.descriptor =
      raw::require(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket");
  connection.started_ns = raw::monotonic_ns();

  const int on = 1;
  sockaddr_in source{};
  source.sin_family = AF_INET;
  source.sin_addr.s_addr = htonl(INADDR_LOOPBACK + source_++ % storm_sources);
  // The port is chosen by connect, which may share it between different destinations.
  raw::require(
      setsockopt(connection.descriptor, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on),
      "IP_BIND_ADDRESS_NO_PORT");
  raw::require(
      bind(connection.descriptor, reinterpret_cast<const sockaddr*>(&source), sizeof source),
      "bind");
  const auto* address = reinterpret_cast<const sockaddr*>(&options_.server);
  if (connect(connection.descriptor, address, sizeof options_.server) != 0 &&
      errno != EINPROGRESS) {
    raw::die("connect", errno);
  }
  watch(epoll_, connection.descriptor, index);
}

void StormLoad::handle(std::size_t index) {
  if (!send_rest(index) || !receive_rest(index)) return finish(index, false);
  if (connections_[index].received == options_.size) finish(index, true);
}

bool StormLoad::send_rest(std::size_t index) {
  Connection& connection = connections_[index];
  while (connection.sent < options_.size) {
    const std::size_t length = std::min(options_.size - connection.sent, piece_bytes);
    const ssize_t sent =
        send(connection.descriptor, pattern_.at(index, connection.sent), length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;  // also: not yet connected
    connection.sent += static_cast<std::size_t>(sent);
  }
  return true;
}

bool StormLoad::receive_rest(std::size_t index) {
  Connection& connection = connections_[index];
  while (connection.received < connection.sent) {
    const ssize_t got = recv(connection.descriptor, buffer_.data(), piece_bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    const auto length = static_cast<std::size_t>(got);
    if (length > connection.sent - connection.received) return false;  // nobody sent them
    counts_.wrong_bytes += pattern_.wrong(index, connection.received, buffer_.data(), length);
    connection.received += length;
    if (length < piece_bytes) return true;
  }
  return true;
}

void StormLoad::finish(std::size_t index, bool good) {
  const std::uint64_t now_ns = raw::monotonic_ns();
  close(connections_[index].descriptor);
  connections_[index].descriptor = -1;
  if (good) {
    ++counts_.echoes;
    counts_.latency.add(now_ns - connections_[index].started_ns);
  } else {
    ++counts_.errors;
    ++counts_.lost;
  }
  pace_.end(1);
  start(index, now_ns);
}

constexpr const char* usage =
    "usage: floor_load 127.0.0.1:PORT [options]\n"
    "  --connections N   at once (1)\n"
    "  --size BYTES      of a message (64)\n"
    "  --pipeline K      messages under way on each connection (1)\n"
    "  --duration S      seconds (1), or\n"
    "  --echoes N        end after N echoes in all\n"
    "  --warm-up S       the same load for S seconds before, not counted (0)\n"
    "  --patience S      silence after which the missing echoes count as lost (10)\n"
    "  --idle            connect and hold for the duration\n"
    "  --storm           connect, one echo, close; again and again\n"
    "  --steps           print a line at each step and wait for a line on standard input:\n"
    "                    warm, result, end; with --idle: connected, result (one echo each), end";

Options parse_options(int count, char** values) {
  Options options;
  raw::Arguments arguments(count, values);
  bool addressed = false;
  while (arguments.next()) {
    const std::string_view name = arguments.name();
    if (name == "--connections") {
      options.connections = arguments.count();
    } else if (name == "--size") {
      options.size = arguments.count();
    } else if (name == "--pipeline") {
      options.pipeline = arguments.count();
    } else if (name == "--echoes") {
      options.echoes = arguments.count();
    } else if (name == "--duration") {
      options.duration_ns = arguments.seconds_as_ns();
    } else if (name == "--warm-up") {
      options.warm_up_ns = arguments.seconds_as_ns();
    } else if (name == "--patience") {
      options.patience_ns = arguments.seconds_as_ns();
    } else if (name == "--idle") {
      options.idle = true;
    } else if (name == "--storm") {
      options.storm = true;
    } else if (name == "--steps") {
      options.steps = true;
    } else if (!name.starts_with("-")) {
      options.server = raw::parse_address(name);
      addressed = true;
    } else {
      raw::die(usage);
    }
  }
  if (!addressed || options.connections == 0 || options.size == 0 || options.pipeline == 0 ||
      (options.idle && options.storm)) {
    raw::die(usage);
  }
  return options;
}

bool clean(const Counts& counts) {
  return counts.errors == 0 && counts.lost == 0 && counts.wrong_bytes == 0;
}

// Exit code 1: something was lost or wrong.
int report(const Options& options, const Counts& counts) {
  const std::string line = raw::json_line(counts, options.connections, options.size,
                                          options.storm ? 1 : options.pipeline);
  if (options.steps) {
    end_step(line.c_str());
  } else {
    std::printf("%s\n", line.c_str());
  }
  return clean(counts) ? 0 : 1;
}

int run_idle(const Options& options, EchoLoad& load) {
  if (options.steps) {
    end_step("connected");
    return report(options, load.run(0, options.connections * options.pipeline));
  }
  usleep(static_cast<useconds_t>(options.duration_ns / 1'000));
  return report(options, Counts());
}

template <typename Load>
int run_load(const Options& options, Load& load) {
  if (options.warm_up_ns != 0) {
    const Counts counts = load.run(options.warm_up_ns, 0);
    if (!clean(counts)) return report(options, counts);
  }
  if (options.steps) end_step("warm");
  return report(options, load.run(options.duration_ns, options.echoes));
}

}  // namespace

int main(int count, char** values) {
  raw::raise_descriptor_limit();
  const Options options = parse_options(count, values);
  if (options.storm) {
    StormLoad load(options);
    return run_load(options, load);
  }
  EchoLoad load(options);
  load.connect_all();
  return options.idle ? run_idle(options, load) : run_load(options, load);
}
