#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include "backend/tcp_support.hpp"

namespace evix::test {
namespace {

class TcpOptions : public TcpConformance {
 protected:
  TcpOptions() : faulty(GetParam()), own(*faulty.loop) {}

  /** What the kernel says of an option; the simulated one is asked through its table. */
  int option(const TcpStream& stream, int level, int name) {
    int value = -1;
    socklen_t size = sizeof value;
    EXPECT_EQ(faulty.calls->get_option(stream.native(), level, name, &value, &size), 0);
    return value;
  }

  FaultyLoop faulty;
  Loop& own;
};
EVIX_OVER_BACKENDS(TcpOptions);

TEST_P(TcpOptions, NoDelay) {
  Pair pair = make_pair(own);
  EXPECT_EQ(option(pair.client, IPPROTO_TCP, TCP_NODELAY), 0);
  ASSERT_TRUE(pair.client.set_no_delay(true).has_value());
  EXPECT_NE(option(pair.client, IPPROTO_TCP, TCP_NODELAY), 0);
  ASSERT_TRUE(pair.client.set_no_delay(false).has_value());
  EXPECT_EQ(option(pair.client, IPPROTO_TCP, TCP_NODELAY), 0);
}

TEST_P(TcpOptions, NoDelayIsInheritedFromTheListener) {
  for (const bool wanted : {false, true}) {
    TcpListener listener(own);
    ASSERT_TRUE(listener.listen("127.0.0.1:0", {.no_delay = wanted}));
    TcpStream accepted;
    listener.accept([&](Result<TcpStream> stream) { accepted = std::move(*stream); });
    TcpStream client(own);
    client.connect(*listener.local_address(), [](const Result<void>&) {});
    ASSERT_TRUE(until(own, [&] { return static_cast<bool>(accepted); }));
    EXPECT_EQ(option(accepted, IPPROTO_TCP, TCP_NODELAY) != 0, wanted);
  }
}

TEST_P(TcpOptions, KeepAlive) {
  Pair pair = make_pair(own);
  EXPECT_EQ(option(pair.client, SOL_SOCKET, SO_KEEPALIVE), 0);
  ASSERT_TRUE(pair.client.set_keep_alive(42s).has_value());
  EXPECT_NE(option(pair.client, SOL_SOCKET, SO_KEEPALIVE), 0);
  EXPECT_EQ(option(pair.client, IPPROTO_TCP, TCP_KEEPIDLE), 42);
  ASSERT_TRUE(pair.client.set_keep_alive(std::nullopt).has_value());
  EXPECT_EQ(option(pair.client, SOL_SOCKET, SO_KEEPALIVE), 0);
}

TEST_P(TcpOptions, KeepAliveOfAnyLength) {
  Pair pair = make_pair(own);
  for (const auto& [asked, set] : {std::pair{0s, 1},
                                   {-5s, 1},
                                   {std::chrono::seconds::min(), 1},
                                   {32'767s, 32'767},
                                   {32'768s, 32'767},
                                   {std::chrono::seconds::max(), 32'767}}) {
    ASSERT_TRUE(pair.client.set_keep_alive(asked).has_value()) << asked.count();
    EXPECT_EQ(option(pair.client, IPPROTO_TCP, TCP_KEEPIDLE), set);
  }
}

TEST_P(TcpOptions, FailureIsToldWithTheDescriptor) {
  Pair pair = make_pair(own);
  faulty.calls->fail(detail::CallId::set_option, 1, EINVAL);
  const auto set = pair.client.set_no_delay(true);
  ASSERT_FALSE(set.has_value());
  EXPECT_EQ(set.error().code(), std::errc::invalid_argument);
  EXPECT_EQ(set.error().message(), "set no delay descriptor " +
                                       std::to_string(pair.client.native()) + ": invalid argument");
}

TEST_P(TcpOptions, BeforeTheConnectionThereIsNoSocket) {
  TcpStream stream(own);
  EXPECT_FALSE(stream.set_no_delay(true).has_value());
  EXPECT_FALSE(stream.set_keep_alive(1s).has_value());
  EXPECT_FALSE(stream.peer_address().has_value());
  EXPECT_EQ(stream.native(), no_handle);
  EXPECT_EQ(stream.send_queue_bytes(), 0U);
}

TEST_P(TcpOptions, DescriptorsAreCloseOnExecAndNonBlocking) {
  EVIX_SKIP_ON(BackendKind::sim, "descriptor flags are the real kernel's");
  TcpListener listener(own);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  Pair pair = make_pair(own);
  for (const int handle : {listener.native(), pair.client.native(), pair.server.native()}) {
    EXPECT_EQ(fcntl(handle, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    EXPECT_EQ(fcntl(handle, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  }
}

TEST_P(TcpOptions, UnreferencedStreamsLetTheLoopEnd) {
  Pair pair = make_pair(own);
  pair.server.receive_start([](const Result<Buffer>&) {});
  EXPECT_TRUE(pair.server.referenced());
  pair.server.unreference();
  EXPECT_EQ(own.run(), 0);
  EXPECT_TRUE(pair.server.active());
  pair.server.reference();
  EXPECT_EQ(own.run_for(10ms), 0);
  EXPECT_TRUE(own.alive());
}

TEST_P(TcpOptions, HandlesSayWhatTheyWaitFor) {
  Pair pair = make_pair(own);
  TcpListener listener(own);
  ASSERT_TRUE(listener.listen("127.0.0.1:0", [](const Result<TcpStream>&) {}).has_value());
  listener.set_name("front");
  stuff(pair.client);
  pair.client.set_name("both");
  pair.client.receive_start([](const Result<Buffer>&) {});
  pair.client.send(bytes_of("x"), {});
  pair.server.set_name("closing");
  pair.server.close_gracefully();
  int found = 0;
  for (const HandleInfo& info : own.handles()) {
    if (info.name == "front") {
      EXPECT_EQ(info.waits_for, "accept");
      EXPECT_EQ(info.kind, HandleKind::listener);
      EXPECT_EQ(info.handle, listener.native());
    } else if (info.name == "both") {
      EXPECT_EQ(info.waits_for, "receive, send");
    } else if (info.name == "closing") {
      EXPECT_EQ(info.waits_for, "the peer's end");
    } else {
      continue;
    }
    ++found;
    EXPECT_TRUE(info.active);
  }
  EXPECT_EQ(found, 3);
}

// ---- Descriptors of the caller ---------------------------------------------------------------

class TcpAdopt : public TcpConformance {
 protected:
  void SetUp() override {
    EVIX_SKIP_ON(BackendKind::sim, "adopts descriptors of the real kernel");
    TcpConformance::SetUp();
  }
  static bool is_open(int handle) { return fcntl(handle, F_GETFD) >= 0; }
};
EVIX_OVER_BACKENDS(TcpAdopt);

TEST_P(TcpAdopt, ConnectedTcpSocket) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  TcpStream server;
  listener.accept([&](Result<TcpStream> stream) { server = std::move(stream).value(); });
  RawSocket raw = RawSocket::connected_to(*listener.local_address());
  const int handle = raw.get();
  auto adopted = TcpStream::adopt(loop, handle);
  ASSERT_TRUE(adopted.has_value()) << adopted.error().message();
  (void)raw.release();
  EXPECT_EQ(adopted->native(), handle);
  EXPECT_TRUE(adopted->connected());
  EXPECT_EQ(fcntl(handle, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  EXPECT_EQ(*adopted->peer_address(), *listener.local_address());
  ASSERT_TRUE(until([&] { return static_cast<bool>(server); }));
  Inbox inbox;
  server.receive_start(inbox.callback());
  ASSERT_TRUE(adopted->send_copy("adopted").has_value());
  ASSERT_TRUE(until([&] { return inbox.text == "adopted"; }));
  adopted->close();
  EXPECT_FALSE(is_open(handle));
  ASSERT_TRUE(until([&] { return inbox.over(); }));
}

TEST_P(TcpAdopt, SocketPairIsAStreamToo) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  auto one = TcpStream::adopt(loop, ends[0]);
  auto two = TcpStream::adopt(loop, ends[1]);
  ASSERT_TRUE(one.has_value() && two.has_value());
  Inbox inbox;
  two->receive_start(inbox.callback());
  const std::string sent = pattern(1'000'000);
  Outcome done;
  Outcome shut;
  one->send(bytes_of(sent), done.callback());
  one->shutdown_send(shut.callback());
  ASSERT_TRUE(until([&] { return inbox.over() && shut.done(); }));
  EXPECT_TRUE(done.ok());
  EXPECT_TRUE(shut.ok());
  EXPECT_TRUE(same_bytes(inbox.text, sent));
  EXPECT_EQ(*one->peer_address(), Address());  // no IP address
}

TEST_P(TcpAdopt, OthersHoldTheDescriptionToo) {
  // After close() nothing comes from the description although a duplicate keeps it open.
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const RawSocket peer(ends[1]);
  const RawSocket duplicate(fcntl(ends[0], F_DUPFD_CLOEXEC, 0));
  auto adopted = TcpStream::adopt(loop, ends[0]);
  ASSERT_TRUE(adopted.has_value());
  Inbox inbox;
  adopted->receive_start(inbox.callback());
  settle(2);
  adopted->receive_stop();
  adopted->close();
  ASSERT_EQ(::write(peer.get(), "x", 1), 1);
  EXPECT_TRUE(rests());
  EXPECT_EQ(inbox.text, "");
}

TEST_P(TcpAdopt, RefusedDescriptorsStayTheCallers) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  int datagram_ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, datagram_ends), 0);
  const RawSocket holders[] = {RawSocket(pipe_ends[0]),
                               RawSocket(pipe_ends[1]),
                               RawSocket(datagram_ends[0]),
                               RawSocket(datagram_ends[1]),
                               RawSocket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
                               RawSocket(::open("/dev/null", O_RDONLY | O_CLOEXEC))};
  const struct {
    int handle;
    int error;
  } table[] = {
      {-1, EBADF},
      {1'000'000'000, EBADF},
      {pipe_ends[0], ENOTSOCK},
      {datagram_ends[0], ESOCKTNOSUPPORT},
      {holders[4].get(), ENOTCONN},  // never connected
      {holders[5].get(), ENOTSOCK},
      {listener.native(), ENOTCONN},
  };
  const std::uint64_t handles = loop.counters().handles;
  for (const auto& [handle, error] : table) {
    const auto adopted = TcpStream::adopt(loop, handle);
    ASSERT_FALSE(adopted.has_value()) << handle;
    EXPECT_EQ(adopted.error().code(), std::error_code(error, std::system_category()))
        << adopted.error().message();
    EXPECT_TRUE(
        adopted.error().message().starts_with("adopt descriptor " + std::to_string(handle) + ": "));
  }
  EXPECT_EQ(loop.counters().handles, handles);
  for (const RawSocket& holder : holders) EXPECT_TRUE(is_open(holder.get()));
}

}  // namespace
}  // namespace evix::test
