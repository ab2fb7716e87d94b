#include <fcntl.h>
#include <sys/socket.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/tcp_support.hpp"
#include "base/prng.hpp"
#include "support/descriptors.hpp"

/** @file
 * Peers that misbehave: each of 6 openings with each of 8 transfers and each of 6 endings against
 * an echo server, beside a peer that behaves (traps.md, B6).
 */
namespace evix::test {
namespace {

constexpr const char* needs_raw_peers = "the peers are sockets of the real kernel";

constexpr std::size_t sent_bytes_max = 32 * 1024 * 1024;

/** A socket that is driven by hand, between the turns of the server's loop. */
struct Peer {
  RawSocket socket;
  std::string sent;
  std::string received;
  bool ended = false;  ///< the server's end or a reset was seen
  bool was_urgent = false;

  void open(const Address& address, int receive_buffer_bytes) {
    socket = RawSocket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (receive_buffer_bytes != 0) {
      setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                 sizeof receive_buffer_bytes);
    }
    const detail::SocketAddress name = detail::to_socket_address(address);
    EXPECT_EQ(::connect(socket.get(), name.get(), name.size), 0) << std::strerror(errno);
    fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  }
  /** What goes in of the next `size` bytes. @return whether all did, or nothing ever will. */
  bool send(std::size_t size) {
    static const std::string all = pattern(sent_bytes_max);
    const std::string_view next = std::string_view(all).substr(sent.size(), size);
    EXPECT_EQ(next.size(), size) << "more was taken than any buffer can hold";
    const ssize_t count =
        ::send(socket.get(), next.data(), next.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) sent += next.substr(0, static_cast<std::size_t>(count));
    return count < 0 ? errno != EAGAIN : static_cast<std::size_t>(count) == size;
  }
  /** @return whether `size` bytes in all, or the end, have come. */
  bool receive(std::size_t size) {
    char room[4096];
    while (!ended && received.size() < size) {
      const std::size_t wanted = std::min(sizeof room, size - received.size());
      const ssize_t count = ::recv(socket.get(), room, wanted, MSG_DONTWAIT);
      if (count > 0) received.append(room, static_cast<std::size_t>(count));
      if (count == 0 || (count < 0 && errno != EAGAIN)) ended = true;
      if (count <= 0) break;
    }
    return ended || received.size() >= size;
  }
};

/** Done between turns until it returns true. */
using Step = std::function<bool(Peer&)>;
struct Part {
  const char* name;
  std::vector<Step> steps;
  /** The server waits in vain: only a limit of its own ends that. */
  bool lasts = false;
  /** A transfer: what has come back afterwards. An ending: whether everything has. */
  std::size_t echoed = 0;
};

Step once(void (*action)(Peer&)) {
  return [action](Peer& peer) {
    action(peer);
    return true;
  };
}
Step sends(std::size_t size) {
  return [size, target = std::size_t{0}](Peer& peer) mutable {
    if (target == 0) target = peer.sent.size() + size;
    const std::size_t rest = target - std::min(target, peer.sent.size());
    if (rest != 0 && !peer.send(rest)) return false;
    target = 0;
    return true;
  };
}
Step sends_bytewise(int count) {
  return [count, left = count](Peer& peer) mutable {
    if (left == 0) left = count;
    if (!peer.send(1)) return false;
    return --left == 0;
  };
}
/** Until nothing moves any more: the server has stopped to read. */
Step floods() {
  constexpr int patience = 3;
  return [refused = 0](Peer& peer) mutable {
    const std::size_t before = peer.sent.size();
    (void)peer.send(256 * 1024);
    refused = peer.sent.size() == before ? refused + 1 : 0;
    return std::exchange(refused, refused == patience ? 0 : refused) == patience;
  };
}
Step receives(std::size_t size) {
  return [size](Peer& peer) { return peer.receive(size); };
}

void shut_write(Peer& peer) { ::shutdown(peer.socket.get(), SHUT_WR); }
void shut_read(Peer& peer) { ::shutdown(peer.socket.get(), SHUT_RD); }
// Once: of two urgent bytes the kernel hands out the first among the others (tcp(7)).
void send_urgent(Peer& peer) {
  if (std::exchange(peer.was_urgent, true)) return;
  ::send(peer.socket.get(), "!", 1, MSG_OOB | MSG_NOSIGNAL);
}
void close_socket(Peer& peer) { peer.socket.close(); }
void reset(Peer& peer) {
  const linger now{1, 0};
  setsockopt(peer.socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  peer.socket.close();
}
void nothing(Peer&) {}

constexpr std::size_t everything = SIZE_MAX;

std::vector<Part> transfers() {
  return {{"nothing", {}},
          {"one byte", {sends(1)}},
          {"300 bytes one by one, unread", {sends_bytewise(300)}},
          {"100,000 bytes, unread", {sends(100'000)}},
          {"100,000 bytes and their echo", {sends(100'000), receives(100'000)}, false, 100'000},
          {"more than fits, unread", {floods()}, true},
          {"half of the echo", {sends(50'000), receives(25'000)}, false, 25'000},
          {"urgent data between others", {sends(1000), once(send_urgent), sends(1000)}}};
}

std::vector<Part> endings() {
  return {{"close", {once(close_socket)}},
          {"reset", {once(reset)}},
          {"half-close and read to the end",
           {once(shut_write), receives(everything)},
           false,
           everything},
          {"half-close, then close", {once(shut_write), once(close_socket)}},
          {"half-close, then reset", {once(shut_write), once(nothing), once(reset)}},
          {"silence", {}, true}};
}

class HostilePeer : public TcpConformance {
 protected:
  /** The server's side of one peer. */
  struct Served {
    TcpStream stream;
    std::string received;
    int sends_begun = 0;
    int sends_ended = 0;
    int ends = 0;
    bool closed = false;
  };

  void SetUp() override {
    TcpConformance::SetUp();
    if (is_sim()) return;
    ASSERT_TRUE(listener_.listen("127.0.0.1:0", [this](Result<TcpStream> stream) {
      ASSERT_TRUE(stream);
      serve(std::move(stream).value());
    }));
    honest_.connect(*listener_.local_address(), [this](const Result<void>& result) {
      ASSERT_TRUE(result) << result.error().message();
      honest_.receive_start([this](const Result<Buffer>& bytes) {
        ASSERT_TRUE(bytes) << bytes.error().message();
        honest_got_ += bytes->text();
      });
    });
    ASSERT_TRUE(until([&] { return honest_.connected() && served_.size() == 1; }));
    echo_honestly();
  }

  void serve(TcpStream stream) {
    const bool hostile = !served_.empty();
    served_.push_back(std::make_unique<Served>());
    Served& served = *served_.back();
    served.stream = std::move(stream);
    if (hostile) {
      served.stream.set_receive_timeout(limit_);
      served.stream.set_send_timeout(limit_);
      served.stream.set_water_marks({.hard_bytes_max = 512 * 1024});
    }
    served.stream.receive_start([this, &served](Result<Buffer> bytes) {
      EXPECT_EQ(served.ends, 0) << "a call after the end";
      if (!bytes) {
        ++served.ends;
        return close(served);
      }
      if (bytes->empty()) {
        ++served.ends;
        return close_gracefully(served);
      }
      served.received += bytes->text();
      echo(served, std::move(bytes).value());
    });
  }

  void echo(Served& served, Buffer bytes) {
    ++served.sends_begun;
    served.stream.send(std::move(bytes), [this, &served](const Result<void>& sent) {
      ++served.sends_ended;
      // The peer does not read: enough of it.
      if (!sent) close(served);
    });
  }
  void close(Served& served) {
    served.stream.close([&served] { served.closed = true; });
  }
  void close_gracefully(Served& served) {
    served.stream.close_gracefully({.timeout = limit_}, [&served] { served.closed = true; });
  }

  void echo_honestly() {
    ++honest_rounds_;
    const std::string message = pattern(700, honest_rounds_);
    honest_got_.clear();
    ASSERT_TRUE(honest_.send_copy(message));
    ASSERT_TRUE(until([&] { return honest_got_.size() >= message.size(); }));
    EXPECT_TRUE(same_bytes(honest_got_, message));
  }

  void play(Peer& peer, const std::vector<Step>& steps) {
    for (Step step : steps) {  // a copy: it begins anew
      ASSERT_TRUE(until([&] {
        for (std::uint64_t turns = chance_.below(3); turns != 0; --turns) loop.run_ready();
        loop.wake();
        return step(peer);
      }));
    }
  }

  struct Opening {
    std::vector<Step> steps{};
    int receive_buffer_bytes = 0;
    bool loses = false;  ///< it cannot send, or cannot receive any more
  };

  void attack(const Opening& opening, const Part& transfer, const Part& ending) {
    SCOPED_TRACE(std::string(transfer.name) + "; " + ending.name);
    const bool cut = transfer.lasts || ending.lasts;
    limit_ = cut ? Duration(10ms) : forever;
    Peer peer;
    peer.open(*listener_.local_address(), opening.receive_buffer_bytes);
    if (chance_.below(2) == 0) {
      ASSERT_TRUE(until([&] { return served_.size() == 2; }));
    }
    ASSERT_NO_FATAL_FAILURE(play(peer, opening.steps));
    ASSERT_NO_FATAL_FAILURE(play(peer, transfer.steps));
    if (!cut && !opening.loses) {
      EXPECT_GE(peer.received.size(), transfer.echoed);
    }
    ASSERT_NO_FATAL_FAILURE(play(peer, ending.steps));
    if (!cut && !opening.loses && ending.echoed == everything) {
      EXPECT_EQ(peer.received.size(), peer.sent.size());
    }
    ASSERT_NO_FATAL_FAILURE(echo_honestly());
    ASSERT_TRUE(until([&] { return served_.size() == 2 && served_.back()->closed; }));
    const Served& served = *served_.back();
    EXPECT_EQ(served.sends_begun, served.sends_ended);
    EXPECT_EQ(served.ends, 1);
    EXPECT_TRUE(
        same_bytes(served.received, std::string_view(peer.sent).substr(0, served.received.size())));
    EXPECT_TRUE(
        same_bytes(peer.received, std::string_view(peer.sent).substr(0, peer.received.size())));
    served_.pop_back();
    EXPECT_EQ(loop.counters().send_queue_bytes, 0U);
    EXPECT_EQ(loop.counters().connections, 1U);
  }

  /** This opening with all that may follow, some times with other turns between. */
  void attack_with(const Opening& opening) {
    const std::uint64_t handles = loop.counters().handles;
    const std::size_t descriptors = open_descriptors();
    for (std::uint64_t round = 0; round < scaled(1000 / 48, 1); ++round) {
      for (const Part& transfer : transfers()) {
        for (const Part& ending : endings()) {
          ASSERT_NO_FATAL_FAILURE(attack(opening, transfer, ending));
          if (HasFailure()) return;
        }
      }
    }
    EXPECT_EQ(loop.counters().handles, handles);
    EXPECT_EQ(open_descriptors(), descriptors);
  }

 private:
  TcpListener listener_{loop};
  TcpStream honest_{loop};
  std::string honest_got_;
  std::uint32_t honest_rounds_ = 0;
  Duration limit_ = forever;  ///< of a server that waits for a peer
  std::deque<std::unique_ptr<Served>> served_;
  detail::Prng chance_{20};
};
EVIX_OVER_BACKENDS(HostilePeer);

TEST_P(HostilePeer, ThatConnects) {
  EVIX_SKIP_ON(BackendKind::sim, needs_raw_peers);
  attack_with({});
}

TEST_P(HostilePeer, WithATinyWindow) {
  EVIX_SKIP_ON(BackendKind::sim, needs_raw_peers);
  attack_with({.receive_buffer_bytes = 1});
}

TEST_P(HostilePeer, ThatHalfClosesFirst) {
  EVIX_SKIP_ON(BackendKind::sim, needs_raw_peers);
  attack_with({.steps = {once(shut_write)}, .loses = true});
}

TEST_P(HostilePeer, ThatShutsItsInputFirst) {
  EVIX_SKIP_ON(BackendKind::sim, needs_raw_peers);
  attack_with({.steps = {once(shut_read)}, .loses = true});
}

TEST_P(HostilePeer, ThatIsUrgentFirst) {
  EVIX_SKIP_ON(BackendKind::sim, needs_raw_peers);
  attack_with({.steps = {once(send_urgent)}});
}

TEST_P(HostilePeer, ThatSendsAtOnceAndTwice) {
  EVIX_SKIP_ON(BackendKind::sim, needs_raw_peers);
  attack_with({.steps = {sends(70'000), once(nothing), sends(70'000)}});
}

}  // namespace
}  // namespace evix::test
