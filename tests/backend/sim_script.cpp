#include "backend/sim_script.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "backend/sim.hpp"
#include "support/errno_names.hpp"

namespace evix::detail {
namespace {

constexpr std::int64_t patience_ns = 5'000'000'000;
constexpr Ready everything = Ready::readable | Ready::priority | Ready::writable;
constexpr short poll_everything = POLLIN | POLLPRI | POLLOUT | POLLRDHUP;

class RealWorld final : public World {
 public:
  RealWorld() : epoll_(calls().epoll_create()) {}
  ~RealWorld() override { calls().close(epoll_); }
  Calls& calls() override { return Calls::kernel(); }
  Ready bits(int fd) override {
    pollfd entry{fd, poll_everything, 0};
    calls().poll(&entry, 1, 0);
    return static_cast<Ready>(entry.revents);
  }
  void wait_for(int fd, Ready wanted) override {
    pollfd entry{fd, static_cast<short>(wanted), 0};
    calls().poll(&entry, 1, 1'000'000);
  }
  int add_edge(int fd) override {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | static_cast<unsigned>(EPOLLET);
    event.data.fd = fd;
    return calls().epoll_control(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
  std::vector<DriverEvent> edges() override {
    std::array<epoll_event, 16> events{};
    const int count = calls().epoll_wait_ms(epoll_, events.data(), 16, 0);
    std::vector<DriverEvent> result;
    for (int index = 0; index < count; ++index) {
      const epoll_event& event = events[static_cast<std::size_t>(index)];
      result.push_back(
          {static_cast<std::uint64_t>(event.data.fd), static_cast<Ready>(event.events)});
    }
    return result;
  }

 private:
  int epoll_;
};

class SimulatedWorld final : public World {
 public:
  explicit SimulatedWorld(std::uint64_t seed) : sim_(make_sim(seed)) {}
  Calls& calls() override { return *sim_.calls; }
  Ready bits(int fd) override {
    if (edge_.contains(fd)) return Ready::none;  // scripts ask edge-triggered sockets by "edges"
    sim_.driver->add(fd, 0, everything, Trigger::one_shot);
    for (const DriverEvent& event : wait()) {
      if (event.key != 0)
        edge_events_.push_back(event);
      else
        last_ = event.ready;
    }
    sim_.driver->remove(fd, 0);
    return std::exchange(last_, Ready::none);
  }
  void wait_for(int, Ready) override {}
  int add_edge(int fd) override {
    edge_[fd] = true;
    return sim_.driver->add(fd, static_cast<std::uint64_t>(fd), everything, Trigger::edge);
  }
  std::vector<DriverEvent> edges() override {
    auto events = wait();
    events.insert(events.begin(), edge_events_.begin(), edge_events_.end());
    edge_events_.clear();
    return events;
  }

 private:
  std::vector<DriverEvent> wait() {
    std::array<DriverEvent, 16> events{};
    const int count = sim_.driver->wait(0, events);
    return {events.begin(), events.begin() + count};
  }

  Sim sim_;
  Ready last_ = Ready::none;
  std::map<int, bool> edge_;
  std::vector<DriverEvent> edge_events_;
};

struct Option {
  std::string_view name;
  int level;
  int number;
};
constexpr std::array<Option, 14> options = {{{"reuseaddr", SOL_SOCKET, SO_REUSEADDR},
                                             {"reuseport", SOL_SOCKET, SO_REUSEPORT},
                                             {"nodelay", IPPROTO_TCP, TCP_NODELAY},
                                             {"keepalive", SOL_SOCKET, SO_KEEPALIVE},
                                             {"keepidle", IPPROTO_TCP, TCP_KEEPIDLE},
                                             {"v6only", IPPROTO_IPV6, IPV6_V6ONLY},
                                             {"sndbuf", SOL_SOCKET, SO_SNDBUF},
                                             {"rcvbuf", SOL_SOCKET, SO_RCVBUF},
                                             {"type", SOL_SOCKET, SO_TYPE},
                                             {"domain", SOL_SOCKET, SO_DOMAIN},
                                             {"listening", SOL_SOCKET, SO_ACCEPTCONN},
                                             {"linger", SOL_SOCKET, SO_LINGER},
                                             {"unknown", SOL_SOCKET, 9999},
                                             {"unknown_level", 9999, 1}}};

std::string result_text(std::int64_t result) {
  if (result >= 0) return std::to_string(result);
  return test::errno_name(static_cast<int>(-result));
}

std::string ok_text(std::int64_t result) { return result >= 0 ? "ok" : result_text(result); }

struct Name {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

int port_of(const Name& name) {
  sockaddr_in as_ipv4{};
  std::memcpy(&as_ipv4, &name.storage, sizeof as_ipv4);  // sin6_port has the same place
  return ntohs(as_ipv4.sin_port);
}

std::string host_of(const Name& name) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (name.storage.ss_family == AF_INET) {
    const auto* ipv4 = reinterpret_cast<const sockaddr_in*>(&name.storage);
    return inet_ntop(AF_INET, &ipv4->sin_addr, text.data(), text.size());
  }
  const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(&name.storage);
  return inet_ntop(AF_INET6, &ipv6->sin6_addr, text.data(), text.size());
}

Name make_name(const std::string& host, int port) {
  Name name;
  sockaddr_in ipv4{};
  if (inet_pton(AF_INET, host.c_str(), &ipv4.sin_addr) == 1) {
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(static_cast<std::uint16_t>(port));
    std::memcpy(&name.storage, &ipv4, sizeof ipv4);
    name.size = sizeof ipv4;
    return name;
  }
  sockaddr_in6 ipv6{};
  inet_pton(AF_INET6, host.c_str(), &ipv6.sin6_addr);
  ipv6.sin6_family = AF_INET6;
  ipv6.sin6_port = htons(static_cast<std::uint16_t>(port));
  std::memcpy(&name.storage, &ipv6, sizeof ipv6);
  name.size = sizeof ipv6;
  return name;
}

class Runner {
 public:
  explicit Runner(World& world) : world_(world), calls_(world.calls()) {}
  ~Runner() {
    for (const auto& [name, fd] : open_) calls_.close(fd);
  }

  std::string step(const std::vector<std::string>& words, const std::string& expected) {
    const std::string& verb = words[0];
    if (verb == "socket" || verb == "socket6") return open(words[1], verb == "socket6");
    if (verb == "pair") return pair(words[1], words[2]);
    if (verb == "accept") return accept(words[1], words[2], expected);
    if (verb == "connect") return connect(words);
    if (verb == "edges") return edges(expected);
    const int fd = number(words[1]);
    if (verb == "bind") return bind(words[1], words[2], words[3]);
    if (verb == "listen") return ok_text(calls_.listen(fd, std::stoi(words[2])));
    if (verb == "send") return send(fd, words);
    if (verb == "recv") return receive(fd, std::stoul(words[2]));
    if (verb == "fill") return fill(fd);
    if (verb == "drain") return drain(fd);
    if (verb == "shut") return shut(fd, words[2]);
    if (verb == "close") return close(words[1]);
    if (verb == "error") return error(fd);
    if (verb == "set") return set(fd, words);
    if (verb == "get") return get(fd, words[2]);
    if (verb == "name" || verb == "peer") return name(fd, verb == "peer");
    if (verb == "await") return await(fd, words[2]);
    if (verb == "edge") return ok_text(world_.add_edge(fd));
    return "unknown step";
  }

 private:
  /** Of a name that was never opened: a number that no kernel gives. */
  int number(const std::string& name) const {
    const auto found = open_.find(name);
    return found == open_.end() ? -1 : found->second;
  }

  std::string open(const std::string& name, bool ipv6) {
    const int fd =
        calls_.socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) open_[name] = fd;
    return ok_text(fd);
  }

  std::string pair(const std::string& client, const std::string& server) {
    open("l", false);
    bind("l", "127.0.0.1", "0");
    calls_.listen(number("l"), 5);
    open(client, false);
    connect({"connect", client, "l"});
    const std::string accepted = accept(server, "l", "ok");
    await(number(client), "OUT");
    return accepted;
  }

  std::string accept(const std::string& name, const std::string& listener,
                     const std::string& expected) {
    if (expected == "ok") await(number(listener), "IN");
    const int fd = calls_.accept(number(listener));
    if (fd >= 0) open_[name] = fd;
    return ok_text(fd);
  }

  int port(const std::string& word) {
    if (word == "free") return free_port();
    if (word[0] != '@') return std::stoi(word);
    Name name;
    calls_.local_name(number(word.substr(1)), name.get(), &name.size);
    return port_of(name);
  }

  /** One that no program of this machine holds for IPv4 or IPv6; port 0 asks for one of them. */
  int free_port() {
    open("probe", true);
    bind("probe", "::", "0");
    const int found = port("@probe");
    close("probe");
    return found;
  }

  std::string bind(const std::string& name, const std::string& host, const std::string& where) {
    Name address = make_name(host, port(where));
    const int result = calls_.bind(number(name), address.get(), address.size);
    if (result == 0) remember_port(name);
    return ok_text(result);
  }

  std::string connect(const std::vector<std::string>& words) {
    const std::string& name = words[1];
    Name address;
    if (words.size() == 4) {
      address = make_name(words[2], port(words[3]));
    } else if (words[2] == "unspec") {
      address.size = sizeof(sockaddr_in);
    } else if (words[2] == "nobody") {
      if (number("nobody") < 0) open("nobody", false);
      bind("nobody", "127.0.0.1", "0");
      calls_.local_name(number("nobody"), address.get(), &address.size);
    } else {
      calls_.local_name(number(words[2]), address.get(), &address.size);
    }
    const int result = calls_.connect(number(name), address.get(), address.size);
    if (result == -EINPROGRESS) remember_port(name);
    return ok_text(result);
  }

  void remember_port(const std::string& name) {
    Name local;
    calls_.local_name(number(name), local.get(), &local.size);
    ports_[port_of(local)] = name + ".port";
  }

  std::string send(int fd, const std::vector<std::string>& words) {
    const std::string text = words.size() > 2 ? words[2] : "";
    return result_text(calls_.send(fd, text.data(), text.size()));
  }

  std::string receive(int fd, std::size_t size) {
    std::string text(size, '\0');
    const std::int64_t count = calls_.receive(fd, text.data(), size);
    if (count < 0) return result_text(count);
    return count == 0 ? "end" : text.substr(0, static_cast<std::size_t>(count));
  }

  std::string fill(int fd) {
    std::vector<char> block(100'000);
    for (;;) {
      for (std::size_t index = 0; index < block.size(); ++index) {
        block[index] = static_cast<char>((filled_ + index) % 251);
      }
      const std::int64_t count = calls_.send(fd, block.data(), block.size());
      if (count < 0) return filled_ == 0 ? "nothing" : result_text(count);
      filled_ += static_cast<std::size_t>(count);
    }
  }

  std::string drain(int fd) {
    std::vector<char> block(70'001);
    const std::int64_t deadline_ns = Calls::kernel().clock_now() + patience_ns;
    while (Calls::kernel().clock_now() < deadline_ns) {
      const std::int64_t count = calls_.receive(fd, block.data(), block.size());
      if (count == -EAGAIN && drained_ < filled_) {
        world_.wait_for(fd, Ready::readable);
        continue;
      }
      if (count <= 0) {
        const std::string all = drained_ == filled_ ? "all " : std::to_string(drained_) + " ";
        return all + (count == 0 ? "end" : result_text(count));
      }
      for (std::size_t index = 0; index < static_cast<std::size_t>(count); ++index, ++drained_) {
        if (block[index] != static_cast<char>(drained_ % 251)) return "wrong byte";
      }
    }
    return "too late";
  }

  std::string shut(int fd, const std::string& how) {
    const int value = how == "rd" ? SHUT_RD : how == "wr" ? SHUT_WR : how == "rdwr" ? SHUT_RDWR : 7;
    return ok_text(calls_.shutdown(fd, value));
  }

  std::string close(const std::string& name) {
    const auto found = open_.find(name);
    if (found == open_.end()) return ok_text(calls_.close(-1));
    const int fd = found->second;
    open_.erase(found);
    return ok_text(calls_.close(fd));
  }

  std::string error(int fd) {
    int value = 0;
    socklen_t size = sizeof value;
    const int result = calls_.get_option(fd, SOL_SOCKET, SO_ERROR, &value, &size);
    return ok_text(result < 0 ? result : -value);
  }

  std::string set(int fd, const std::vector<std::string>& words) {
    const int value = std::stoi(words[3]);
    const Option* option = std::ranges::find(options, words[2], &Option::name);
    if (words[2] == "linger") {
      const linger wanted{value >= 0, std::max(value, 0)};
      return ok_text(calls_.set_option(fd, SOL_SOCKET, SO_LINGER, &wanted, sizeof wanted));
    }
    return ok_text(calls_.set_option(fd, option->level, option->number, &value, sizeof value));
  }

  std::string get(int fd, const std::string& name) {
    const Option* option = std::ranges::find(options, name, &Option::name);
    std::array<int, 4> value{};
    socklen_t size = sizeof value;
    const int result = calls_.get_option(fd, option->level, option->number, value.data(), &size);
    if (result < 0) return result_text(result);
    std::string text = std::to_string(value[0]);
    if (size == 2 * sizeof(int)) text += "," + std::to_string(value[1]);
    return text;
  }

  std::string name(int fd, bool of_peer) {
    Name name;
    const int result = of_peer ? calls_.peer_name(fd, name.get(), &name.size)
                               : calls_.local_name(fd, name.get(), &name.size);
    if (result < 0) return result_text(result);
    const int port = port_of(name);
    return host_of(name) + ":" + (ports_.contains(port) ? ports_[port] : std::to_string(port));
  }

  std::string await(int fd, const std::string& wanted) {
    const std::int64_t deadline_ns = Calls::kernel().clock_now() + patience_ns;
    std::string now = bits_text(world_.bits(fd));
    while (now != wanted && Calls::kernel().clock_now() < deadline_ns) {
      if (&calls_ != &Calls::kernel()) return now;  // the simulated world does not change by itself
      world_.wait_for(fd, ~world_.bits(fd) & everything);
      now = bits_text(world_.bits(fd));
    }
    return now;
  }

  std::string edges(const std::string& expected) {
    const std::int64_t deadline_ns = Calls::kernel().clock_now() + patience_ns;
    std::map<std::string, std::string> seen;
    do {
      for (const DriverEvent& event : world_.edges()) {
        for (const auto& [name, fd] : open_) {
          if (fd == static_cast<int>(event.key)) seen[name] = bits_text(event.ready);
        }
      }
    } while (joined(seen) != expected && &calls_ == &Calls::kernel() &&
             Calls::kernel().clock_now() < deadline_ns);
    return joined(seen);
  }

  static std::string joined(const std::map<std::string, std::string>& seen) {
    std::string text;
    for (const auto& [name, bits] : seen) text += (text.empty() ? "" : " ") + name + ":" + bits;
    return text.empty() ? "-" : text;
  }

  World& world_;
  Calls& calls_;
  std::map<std::string, int> open_;
  std::map<int, std::string> ports_;
  std::size_t filled_ = 0;
  std::size_t drained_ = 0;
};

struct Line {
  std::vector<std::string> words;
  std::string expected;
};

std::vector<Line> parse(std::string_view script) {
  std::vector<Line> lines;
  std::istringstream stream{std::string(script)};
  for (std::string text; std::getline(stream, text);) {
    Line line;
    const std::size_t equals = text.find(" = ");
    std::istringstream words(text.substr(0, equals));
    for (std::string word; words >> word;) line.words.push_back(word);
    if (equals != std::string::npos) line.expected = text.substr(equals + 3);
    if (!line.words.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

std::string line_text(const Line& line, const std::string& result) {
  std::string text;
  for (const std::string& word : line.words) text += word + " ";
  return text + "= " + result;
}

}  // namespace

std::unique_ptr<World> make_real_world() { return std::make_unique<RealWorld>(); }

std::unique_ptr<World> make_simulated_world(std::uint64_t seed) {
  return std::make_unique<SimulatedWorld>(seed);
}

std::string bits_text(Ready bits) {
  constexpr std::array<std::pair<Ready, const char*>, 7> names = {{{Ready::readable, "IN"},
                                                                   {Ready::priority, "PRI"},
                                                                   {Ready::writable, "OUT"},
                                                                   {Ready::error, "ERR"},
                                                                   {Ready::hangup, "HUP"},
                                                                   {Ready::read_closed, "RDHUP"},
                                                                   {Ready::invalid, "NVAL"}}};
  std::string text;
  for (const auto& [bit, name] : names) {
    if (any(bits, bit)) text += (text.empty() ? "" : "|") + std::string(name);
  }
  return text.empty() ? "-" : text;
}

std::vector<std::string> run_script(World& world, std::string_view script) {
  std::vector<std::string> transcript;
  Runner runner(world);
  for (const Line& line : parse(script)) {
    transcript.push_back(line_text(line, runner.step(line.words, line.expected)));
  }
  return transcript;
}

std::vector<std::string> expected_lines(std::string_view script) {
  std::vector<std::string> lines;
  for (const Line& line : parse(script)) lines.push_back(line_text(line, line.expected));
  return lines;
}

}  // namespace evix::detail
