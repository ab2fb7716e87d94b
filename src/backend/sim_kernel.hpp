#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "backend/sim.hpp"
#include "base/prng.hpp"
#include "evix/poller.hpp"
#include "sys/calls.hpp"

/** @file
 * The state of the simulated kernel. sim_ports.cpp: who holds which port; sim_socket.cpp: TCP;
 * sim_options.cpp: socket options; sim_driver.cpp: readiness and time; sim_calls.cpp: the table.
 */
namespace evix::detail {

/** Host as 16 bytes of IPv6; IPv4 is mapped to ::ffff:a.b.c.d. */
struct SimAddress {
  std::array<std::uint8_t, 16> host{};
  std::uint16_t port = 0;

  bool operator==(const SimAddress&) const = default;
  bool is_mapped() const noexcept;    ///< an IPv4 address
  bool is_any() const noexcept;       ///< 0.0.0.0 or ::
  bool is_loopback() const noexcept;  ///< 127.0.0.0/8 or ::1
};

SimAddress sim_any(int family) noexcept;
SimAddress sim_loopback(bool mapped) noexcept;
/** @return 0, or what bind(2) and connect(2) say to a malformed address. */
int sim_read_address(int family, const sockaddr* address, socklen_t size, SimAddress& out) noexcept;
/** As getsockname(2): cuts to *size and sets it to the full size. */
void sim_write_address(int family, const SimAddress& from, sockaddr* address,
                       socklen_t* size) noexcept;

/** Bytes in the order of arrival; freed when empty, so an idle connection holds none. */
class SimBytes {
 public:
  std::size_t size() const noexcept { return bytes_.size() - head_; }
  void append(const void* bytes, std::size_t size);
  std::size_t take(void* into, std::size_t size) noexcept;
  void clear() noexcept;

 private:
  std::vector<std::byte> bytes_;
  std::size_t head_ = 0;
};

/**
 * States of TCP as far as a program can tell them apart when acknowledgements take no time.
 *   closed ─connect─► connecting ─► established ─own FIN─► finishing ─peer's FIN─► closed
 *   closed ─listen──► listening           └──peer's FIN─► close_wait ─own FIN────► closed
 * A reset leads to closed from everywhere.
 */
enum class SimState : std::uint8_t {
  closed,
  listening,
  connecting,
  established,
  finishing,   ///< own FIN sent, the peer's not yet here (FIN_WAIT)
  close_wait,  ///< the peer's FIN is here, the own one not yet sent
};

/** What connect(2) remembers between calls, beside the state of TCP. */
enum class SimConnect : std::uint8_t { unconnected, connecting, connected, disconnecting };

struct SimSocket;

/** One registered interest. Shared with the ready list, which may hold it after its removal. */
struct SimInterest {
  SimSocket* socket = nullptr;  ///< null: an event descriptor of the real kernel
  native_handle handle = no_handle;
  std::uint64_t key = 0;
  Ready interest = Ready::none;
  Trigger trigger = Trigger::level;
  bool registered = true;
  bool armed = true;    ///< false after a one_shot has fired
  bool queued = false;  ///< in the ready list
  Ready real_ready = Ready::none;
};

/** What set_option stores; a listener's children inherit it. */
struct SimOptions {
  bool reuse_address = false;
  bool reuse_port = false;
  bool keep_alive = false;
  bool no_delay = false;
  bool ipv6_only = false;
  int keep_idle_s = 7200;
  int linger_on = 0;
  int linger_s = 0;
  int send_buffer = 0;  ///< 0: not set
  int receive_buffer = 0;
};

struct SimSocket {
  explicit SimSocket(int family_given) : family(family_given), local(sim_any(family_given)) {}

  int family;
  native_handle handle = no_handle;  ///< no_handle: closed by the program, or not yet accepted
  SimState state = SimState::closed;
  SimConnect connect = SimConnect::unconnected;
  bool receive_shut = false;
  bool send_shut = false;
  bool end_seen = false;        ///< the peer's FIN has arrived: end of stream even after an error
  bool no_space = false;        ///< somebody was told that sending has to wait
  bool address_chosen = false;  ///< bind(2) gave the host; else connect(2) did
  bool port_chosen = false;     ///< bind(2) gave the port: it stays held until the close
  bool port_held = false;
  bool in_accept_queue = false;
  int pending_error = 0;  ///< SO_ERROR
  unsigned backlog = 0;
  std::int64_t connect_deadline_ns = 0;
  SimAddress local;
  SimAddress remote;
  SimSocket* peer = nullptr;  ///< set while a segment can reach it; itself after a self-connect
  SimBytes received;
  std::deque<SimSocket*> accept_queue;
  SimOptions options;
  std::shared_ptr<SimInterest> interest;
  std::size_t owner_index = 0;
};

/** Which sockets hold which local port. */
class SimPorts {
 public:
  /** Whether bind(2), or listen(2) later, must refuse `socket` the address `wanted`. */
  bool conflicts(const SimSocket& socket, const SimAddress& wanted, std::int64_t now_ns) const;
  /** Whether a connection between these two addresses exists. */
  bool connected(const SimAddress& local, const SimAddress& remote) const;
  /** A port of the ephemeral range that nobody holds; 0 when there is none. */
  std::uint16_t free_port(std::int64_t now_ns, bool despite_time_wait);
  void hold(SimSocket& socket);
  void release(SimSocket& socket);
  void listen(SimSocket& socket) { ports_[socket.local.port].listeners.push_back(&socket); }
  void unlisten(SimSocket& socket);
  /** The first closer keeps the port for 60 s: TIME_WAIT. */
  void keep(const SimSocket& socket, std::int64_t now_ns);
  /** The listener that a connection request reaches, or null. */
  SimSocket* listener(const SimAddress& remote, Prng& prng) const;

 private:
  struct Kept {
    SimAddress local;
    bool reuse_address;
    bool reuse_port;
    bool ipv6_only;
    std::int64_t until_ns;
  };
  struct Port {
    std::vector<SimSocket*> holders;
    std::vector<SimSocket*> listeners;
    std::vector<Kept> kept;
  };
  std::unordered_map<std::uint16_t, Port> ports_;  // never walked: its order is not the seed's
  std::uint16_t next_ephemeral_ = 0;
};

class SimKernel {
 public:
  explicit SimKernel(std::uint64_t seed) : prng_(seed) {}

  std::int64_t now_ns() const noexcept { return now_ns_; }
  void advance(std::int64_t duration_ns) noexcept;
  Prng& prng() noexcept { return prng_; }

  /** The open simulated socket with this number, or null. */
  SimSocket* find(native_handle handle) const noexcept;
  bool is_event(native_handle handle) const noexcept { return events_.contains(handle); }

  int event_create();
  int socket(int domain, int type, int protocol);
  int bind(SimSocket& socket, const sockaddr* address, socklen_t size);
  int listen(SimSocket& socket, int backlog);
  int accept(SimSocket& socket);
  int connect(SimSocket& socket, const sockaddr* address, socklen_t size);
  std::int64_t receive(SimSocket& socket, void* bytes, std::size_t size);
  std::int64_t send(SimSocket& socket, const void* bytes, std::size_t size);
  int shutdown(SimSocket& socket, int how);
  int close(native_handle handle);
  int peer_name(SimSocket& socket, sockaddr* address, socklen_t* size);
  int get_option(SimSocket& socket, int level, int name, void* value, socklen_t* size);
  int set_option(SimSocket& socket, int level, int name, const void* value, socklen_t size);

  /** Lets the connects that have been asked for succeed or fail, in the seed's order. */
  void complete_connects();
  /** When the next unanswered connect gives up. */
  std::optional<std::int64_t> connect_deadline_ns() const noexcept;

  // Readiness, for the driver.
  /** The bits of poll(2) now. Notes that a full socket was seen so, as Linux does. */
  Ready readiness(SimSocket& socket) const noexcept;
  std::shared_ptr<SimInterest> event_interest(native_handle handle) const;
  void add_interest(const std::shared_ptr<SimInterest>& interest);
  void remove_interest(SimInterest& interest);
  void forget_interests();
  void enqueue(const std::shared_ptr<SimInterest>& interest);
  std::vector<std::shared_ptr<SimInterest>>& ready() noexcept { return ready_; }
  const std::vector<std::shared_ptr<SimInterest>>& event_interests() const noexcept {
    return event_interests_;
  }

 private:
  SimSocket& make_socket(int family);
  bool numbers_exhausted() const noexcept;
  int open_number(SimSocket& socket);
  void destroy_if_unreachable(SimSocket& socket);

  int start_connect(SimSocket& socket, const SimAddress& remote);
  void complete_connect(SimSocket& socket);
  void establish(SimSocket& socket, SimSocket& listener);
  void forget_connect(SimSocket& socket);
  int option_value(SimSocket& socket, int level, int name, int& value);
  int set_socket_option(SimSocket& socket, int name, int value);

  void stop_listening(SimSocket& socket);
  void send_end(SimSocket& socket);
  void send_reset(SimSocket& socket);
  void fail(SimSocket& socket, int error);
  void finish(SimSocket& socket);
  void disconnect(SimSocket& socket);
  void close_socket(SimSocket& socket);
  void wake(SimSocket& socket, Ready changed);

  Prng prng_;
  std::int64_t now_ns_ = sim_start_ns;
  SimPorts ports_;
  std::vector<std::unique_ptr<SimSocket>> sockets_;  // open, queued for accept, or closing
  std::vector<SimSocket*> table_;                    // by number - sim_descriptor_base
  std::priority_queue<int, std::vector<int>, std::greater<>> free_numbers_;
  std::unordered_set<int> events_;  // never walked
  std::vector<SimSocket*> connecting_;
  std::vector<std::shared_ptr<SimInterest>> event_interests_;
  std::vector<std::shared_ptr<SimInterest>> ready_;
};

/** The bytes that `socket` may have on their way before send(2) says EAGAIN. */
std::size_t sim_send_capacity(const SimSocket& socket) noexcept;
bool sim_writable(const SimSocket& socket) noexcept;

/** Every change of a state is of interest to everybody; data only to those who asked. */
inline constexpr Ready sim_any_change = static_cast<Ready>(0x203f);
/** Reported whatever the interest. */
inline constexpr Ready sim_always = Ready::error | Ready::hangup | Ready::read_closed;

}  // namespace evix::detail
