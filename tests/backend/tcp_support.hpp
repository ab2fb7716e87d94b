#pragma once

#include <evix/evix.hpp>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/conformance.hpp"
#include "backend/sim.hpp"
#include "loop/core.hpp"
#include "support/fault_calls.hpp"
#include "sys/address.hpp"

/** @file
 * Pairs of streams, the ledger of operations, raw peers, and loops with faults, for the TCP suites.
 */
namespace evix::test {

/** How many calls that start something are on the stack: no callback may run while it is not 0. */
inline int starts_on_stack = 0;

/** Runs `start`, during which no callback may run. */
template <class Start>
decltype(auto) starting(Start&& start) {
  struct Depth {
    Depth() { ++starts_on_stack; }
    ~Depth() { --starts_on_stack; }
  } const depth;
  return start();
}

/** What became of one operation: the ledger's entry. */
struct Outcome {
  int calls = 0;
  std::error_code code;
  std::string message;
  std::size_t count = 0;  ///< of a receive
  std::string text;       ///< received, all calls together

  bool done() const noexcept { return calls > 0; }
  bool ok() const noexcept { return calls == 1 && !code; }

  template <class T>
  void note(const Result<T>& result) {
    EXPECT_EQ(starts_on_stack, 0) << "a callback ran inside the call that started it";
    ++calls;
    code = result ? std::error_code() : result.error().code();
    message = result ? std::string() : result.error().message();
  }

  TcpStream::DoneCallback callback() {
    return [this](Result<void> result) { note(result); };
  }
  TcpStream::CountCallback count_callback() {
    return [this](Result<std::size_t> result) {
      note(result);
      if (result) count = *result;
    };
  }
  TcpStream::ReceiveCallback receive_callback() {
    return [this](Result<Buffer> result) {
      note(result);
      if (!result) return;
      count = result->size();
      text += result->text();
    };
  }
  Callback<void()> closed_callback() {
    return [this] { note(Result<void>()); };
  }
};

/** Everything that a stream receives, until it ends. */
struct Inbox {
  std::string text;
  int ends = 0;
  int errors = 0;
  std::error_code code;
  std::string message;

  bool over() const noexcept { return ends + errors > 0; }
  TcpStream::ReceiveCallback callback() {
    return [this](Result<Buffer> result) {
      EXPECT_EQ(starts_on_stack, 0) << "a callback ran inside the call that started it";
      if (!result) {
        ++errors;
        code = result.error().code();
        message = result.error().message();
      } else if (result->empty()) {
        ++ends;
      } else {
        text += result->text();
      }
    };
  }
};

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/** Bytes that differ at each place and for each seed. */
inline std::string pattern(std::size_t size, std::uint32_t seed = 1) {
  std::string text(size, '\0');
  std::uint32_t state = seed * 2654435761U + 1;
  for (char& byte : text) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24);
  }
  return text;
}

/** EXPECT_EQ of long texts prints them; this says where they differ. */
inline testing::AssertionResult same_bytes(std::string_view got, std::string_view expected) {
  if (got == expected) return testing::AssertionSuccess();
  std::size_t place = 0;
  while (place < got.size() && place < expected.size() && got[place] == expected[place]) ++place;
  return testing::AssertionFailure() << "got " << got.size() << " bytes, expected "
                                     << expected.size() << ", they differ from byte " << place;
}

struct Pair {
  TcpStream client;
  TcpStream server;
};

/** A loop for a backend whose system calls count and fail as a test wants; sim included. */
template <class Calls>
struct FaultyLoopOf {
  explicit FaultyLoopOf(BackendKind kind, LoopOptions options = {}) {
    options.backend = kind;
    if (kind == BackendKind::sim) {
      sim = detail::make_sim(options.sim_seed);
      calls = std::make_unique<Calls>(*sim.calls);
      options.system_calls = calls.get();
      loop = std::make_unique<Loop>(*detail::make_loop(options, std::move(sim.driver)));
    } else {
      calls = std::make_unique<Calls>();
      options.system_calls = calls.get();
      loop = std::make_unique<Loop>(options);
    }
  }
  detail::Sim sim;
  std::unique_ptr<Calls> calls;
  std::unique_ptr<Loop> loop;
};
using FaultyLoop = FaultyLoopOf<detail::FaultCalls>;

/** Runs `act` in a callback of `loop` and leaves run(). */
template <class Act>
void in_callback(Loop& loop, Act act) {
  const KeepAlive keep = loop.keep_alive();
  Timer timer(loop);
  timer.after(1ns, [&] {
    act();
    loop.stop();
  });
  ASSERT_EQ(loop.run(), 0);
}

/** A descriptor of the real kernel, closed at the end. */
class RawSocket {
 public:
  RawSocket() = default;
  explicit RawSocket(int handle) : handle_(handle) {}
  RawSocket(RawSocket&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  RawSocket& operator=(RawSocket&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~RawSocket() { close(); }
  int get() const noexcept { return handle_; }
  int release() noexcept { return std::exchange(handle_, -1); }
  void close() noexcept {
    if (handle_ >= 0) ::close(std::exchange(handle_, -1));
  }
  /** Blocking connect; the listener's queue takes it without an accept. */
  static RawSocket connected_to(const Address& address) {
    RawSocket made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(address.port());
    std::memcpy(&to.sin_addr, address.bytes().data(), 4);
    EXPECT_EQ(::connect(made.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0)
        << std::strerror(errno);
    return made;
  }
  /**
   * A socket that is bound and does not listen: connects to its port are refused, and no other
   * program is given it by port 0. A listener with reuse_address can still bind to it.
   * @return without a descriptor when the port is taken (errno)
   */
  static RawSocket bound_to(const Address& address) {
    const detail::SocketAddress name = detail::to_socket_address(address);
    RawSocket made(::socket(name.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (name.family() == AF_INET6)
      setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (::bind(made.get(), name.get(), name.size) != 0) made.close();
    return made;
  }
  Address local_address() const {
    detail::SocketAddress name;
    name.size = sizeof name.storage;
    EXPECT_EQ(getsockname(handle_, name.get(), &name.size), 0) << std::strerror(errno);
    return detail::from_socket_address(name.storage, name.size);
  }

 private:
  int handle_ = -1;
};

class TcpConformance : public Conformance {
 protected:
  /** run_until() that lets the simulated time pass also when the loop has nothing to do. */
  template <std::predicate Predicate>
  [[nodiscard]] testing::AssertionResult until(Loop& on, Predicate&& predicate) {
    const KeepAlive waiting = on.keep_alive();
    return run_until(on, predicate);
  }
  template <std::predicate Predicate>
  [[nodiscard]] testing::AssertionResult until(Predicate&& predicate) {
    return until(loop, predicate);
  }
  /** Turns that do not wait: for what must not happen. */
  static void settle(Loop& on, int turns = 20) {
    for (int i = 0; i < turns; ++i) ASSERT_EQ(on.run_ready(), 0);
  }
  void settle(int turns = 20) { settle(loop, turns); }

  /**
   * @param server_buffer_bytes of both directions of the accepted stream, and at most of what the
   *     client has unread at the server; 0: what the kernel chooses. Real kernels only.
   */
  static Pair make_pair(Loop& on, int server_buffer_bytes = 0) {
    Pair pair;
    TcpListener listener(on);
    const auto listening = listener.listen("127.0.0.1:0");
    EXPECT_TRUE(listening.has_value()) << listening.error().message();
    if (server_buffer_bytes != 0 && !is_sim()) {
      const int handle = listener.native();
      setsockopt(handle, SOL_SOCKET, SO_RCVBUFFORCE, &server_buffer_bytes,
                 sizeof server_buffer_bytes);
    }
    Outcome connected;
    pair.client = TcpStream(on);
    pair.client.connect(*listener.local_address(), connected.callback());
    listener.accept([&pair](Result<TcpStream> accepted) {
      EXPECT_TRUE(accepted.has_value());
      if (accepted) pair.server = std::move(accepted).value();
    });
    const KeepAlive waiting = on.keep_alive();
    EXPECT_TRUE(run_until(on, [&] { return connected.done() && pair.server; }));
    EXPECT_TRUE(connected.ok()) << connected.message;
    return pair;
  }
  Pair make_pair() { return make_pair(loop); }

  /** Bytes that were sent and not acknowledged, or (`unsent`) not even sent: tcp(7). */
  static int outstanding(const TcpStream& stream, bool unsent) {
    int count = 0;
    EXPECT_EQ(ioctl(stream.native(), unsent ? SIOCOUTQNSD : SIOCOUTQ, &count), 0);
    return count;
  }

  /**
   * Fills the kernel's buffers up to where nothing moves until the peer reads, so that sends are
   * queued. @return the bytes that went in: block after block of pattern(64 KiB), the last one cut.
   */
  static std::size_t stuff(TcpStream& stream) {
    return stuff(stream, [&stream](auto bytes) { return stream.try_send(bytes); });
  }
  /** The same with `send`, which may do it without the stream's knowledge. */
  template <class Send>
  static std::size_t stuff(TcpStream& stream, Send&& send) {
    const std::string block = pattern(64 * 1024);
    std::size_t sum = 0;
    bool shut = false;  // the peer's window, seen before the attempt: nothing can free room then
    for (;;) {
      const auto rest = bytes_of(block).subspan(sum % block.size());
      const Result<std::size_t> taken = send(rest);
      EXPECT_TRUE(taken.has_value());
      if (!taken) return sum;
      sum += *taken;
      if (*taken == 0 && (shut || is_sim())) return sum;
      if (is_sim()) continue;
      // It is shut when all that was sent is acknowledged and more waits.
      const int unsent = outstanding(stream, true);
      shut = unsent > 0 && outstanding(stream, false) == unsent;
      if (*taken == 0 && !shut) ::poll(nullptr, 0, 1);  // an acknowledgement is under way
    }
  }

  /**
   * A loopback address, port 0, that other programs do not bind to or connect from: a port of it
   * that was free a moment ago still is. All connects of this machine draw from one range.
   */
  static Address own_address() {
    if (is_sim()) return *Address::parse("127.0.0.1:0");  // no other program is in there
    const auto process = static_cast<std::uint32_t>(getpid());
    const auto byte = [&](int place) { return static_cast<std::uint8_t>(process >> 8 * place); };
    return Address::ipv4({127, static_cast<std::uint8_t>(1 + byte(2) % 254), byte(1), byte(0)}, 0);
  }
  /** A port of own_address() on which nobody listens and to which a test can bind. */
  static Address free_address(Loop& on) {
    TcpListener listener(on);
    EXPECT_TRUE(listener.listen(own_address()).has_value());
    return *listener.local_address();
  }
  /** A port of the loopback address on which nobody listens until the test ends. */
  Address dead_address(Loop& on, std::string_view host = "127.0.0.1:0") {
    if (is_sim()) {
      TcpListener listener(on);
      EXPECT_TRUE(listener.listen(host).has_value());
      return *listener.local_address();
    }
    held_.push_back(RawSocket::bound_to(*Address::parse(host)));
    EXPECT_GE(held_.back().get(), 0) << std::strerror(errno);
    return held_.back().local_address();
  }

  /** Time of the loop that `body` takes. */
  template <class Body>
  static Duration elapsed(Loop& on, Body&& body) {
    on.update_now();
    const TimePoint before = on.now();
    body();
    on.update_now();
    return on.now() - before;
  }
  /** On sim exactly `expected`; else at least that, and at most 2 s more on a busy machine. */
  static void expect_time(Duration got, Duration expected) {
    if (is_sim()) {
      EXPECT_EQ(got, expected);
    } else {
      EXPECT_GE(got, expected);
      EXPECT_LT(got, expected + 2s);
    }
  }
  static bool has_ipv6() {
    if (is_sim()) return true;
    const RawSocket probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    return probe.get() >= 0 &&
           ::bind(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }

 private:
  std::vector<RawSocket> held_;  // by dead_address()
};

/** For a machine without IPv6; sim always has it. */
#define EVIX_SKIP_WITHOUT_IPV6()                                          \
  do {                                                                    \
    if (!has_ipv6()) GTEST_SKIP() << "this machine has no IPv6 loopback"; \
  } while (false)

}  // namespace evix::test
