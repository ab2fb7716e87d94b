#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "evix.h"
#include "support/offered.hpp"

namespace {

void count(void* data) { ++*static_cast<int*>(data); }

template <class Condition>
void run_until(evix_loop_t* loop, Condition condition) {
  for (int turns = 0; turns < 100'000 && !condition(); ++turns) {
    ASSERT_EQ(evix_loop_run_once(loop, 1'000'000'000), 0);
  }
  ASSERT_TRUE(condition());
}

/** A server and a client in one loop, connected. */
class CTcp : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_NE(loop, nullptr) << evix_last_error();
    listener = evix_tcp_listen(loop, "127.0.0.1:0", nullptr, &on_accept, this);
    ASSERT_NE(listener, nullptr) << evix_last_error();
    ASSERT_GT(evix_listener_address(listener, address, sizeof address), 0);
    EXPECT_GE(evix_listener_fd(listener), 0);
    client = evix_tcp_connect(loop, address, nullptr, &on_connect, this);
    ASSERT_NE(client, nullptr) << evix_last_error();
    run_until([this] { return server != nullptr && connect_status == 0; });
    EXPECT_EQ(evix_listener_close(listener), 0);
  }
  void TearDown() override { EXPECT_EQ(evix_loop_destroy(loop), 0); }

  template <class Condition>
  void run_until(Condition condition) {
    ::run_until(loop, condition);
  }

  static void on_accept(evix_listener_t*, int status, evix_stream_t* stream, void* data) {
    EXPECT_EQ(status, 0);
    static_cast<CTcp*>(data)->server = stream;
  }
  static void on_connect(evix_stream_t* stream, int status, void* data) {
    auto& self = *static_cast<CTcp*>(data);
    EXPECT_EQ(stream, self.client);
    self.connect_status = status;
  }

  evix_loop_t* loop = evix_loop_create(evix_backend_by_name(GetParam()));
  evix_listener_t* listener = nullptr;
  evix_stream_t* client = nullptr;
  evix_stream_t* server = nullptr;
  char address[64];
  int connect_status = -1;
};

struct Received {
  std::string bytes;
  int calls = 0;
  int status = 0;
  bool ended = false;

  static void note(evix_stream_t*, int status, const void* bytes, size_t size, void* data) {
    auto& self = *static_cast<Received*>(data);
    ++self.calls;
    self.status = status;
    self.ended = status == 0 && size == 0;
    self.bytes.append(static_cast<const char*>(bytes), size);
  }
};

struct Statuses {
  std::vector<int> all;
  std::vector<std::string> words;
  static void note(evix_stream_t*, int status, void* data) {
    static_cast<Statuses*>(data)->all.push_back(status);
    static_cast<Statuses*>(data)->words.push_back(status == 0 ? "" : evix_last_error());
  }
};

TEST_P(CTcp, SendReceiveAndTheEnd) {
  Received received;
  Statuses sent;
  EXPECT_EQ(evix_stream_receive_start(server, Received::note, &received), 0);
  EXPECT_EQ(evix_stream_send(client, "hello ", 6, Statuses::note, &sent), 0);
  EXPECT_EQ(evix_stream_send_copy(client, "world", 5), 0);
  EXPECT_TRUE(sent.all.empty()) << "never inside the call";
  EXPECT_EQ(evix_stream_shutdown(client, Statuses::note, &sent), 0);
  run_until([&] { return received.ended && sent.all.size() == 2; });
  EXPECT_EQ(received.bytes, "hello world");
  EXPECT_EQ(sent.all, (std::vector<int>{0, 0}));
  EXPECT_EQ(evix_stream_send_queue_bytes(client), 0);
}

TEST_P(CTcp, ReceiveOnceAndIntoAndTrySend) {
  Received once;
  EXPECT_EQ(evix_stream_receive(server, Received::note, &once), 0);
  EXPECT_EQ(evix_stream_try_send(client, "abc", 3), 3);
  run_until([&] { return once.calls == 1; });
  EXPECT_EQ(once.bytes, "abc");
  Received into;
  char mine[2];
  EXPECT_EQ(evix_stream_receive_into(server, mine, sizeof mine, Received::note, &into), 0);
  EXPECT_EQ(evix_stream_try_send(client, "defg", 4), 4);
  run_until([&] { return into.calls == 1; });
  EXPECT_EQ(into.bytes, "de");
  EXPECT_EQ(std::string(mine, 2), "de");
  EXPECT_EQ(once.calls, 1);
}

TEST_P(CTcp, SecondReceiveIsBusyByStatus) {
  Received first;
  Received second;
  EXPECT_EQ(evix_stream_receive(server, Received::note, &first), 0);
  EXPECT_EQ(evix_stream_receive(server, Received::note, &second), 0);
  run_until([&] { return second.calls == 1; });
  EXPECT_EQ(second.status, EVIX_EBUSY);
  EXPECT_EQ(first.calls, 0);
}

TEST_P(CTcp, CloseEndsOperationsWithEcanceledAndCompletesLast) {
  struct Order {
    std::string log;
    static void receive(evix_stream_t* stream, int status, const void*, size_t, void* data) {
      EXPECT_EQ(status, -ECANCELED);
      EXPECT_EQ(evix_stream_close(stream), EVIX_ESTALE);
      static_cast<Order*>(data)->log += "r";
    }
    static void closed(void* data) { static_cast<Order*>(data)->log += "c"; }
  } order;
  EXPECT_EQ(evix_stream_receive(server, Order::receive, &order), 0);
  EXPECT_EQ(evix_stream_close_then(server, Order::closed, &order), 0);
  EXPECT_EQ(evix_stream_connected(server), EVIX_ESTALE);
  EXPECT_EQ(order.log, "");
  run_until([&] { return order.log.size() == 2; });
  EXPECT_EQ(order.log, "rc");
}

TEST_P(CTcp, CloseWithoutACallbackStillReportsItsOperations) {
  Received received;
  EXPECT_EQ(evix_stream_receive(server, Received::note, &received), 0);
  EXPECT_EQ(evix_stream_close(server), 0);
  EXPECT_EQ(received.calls, 0);
  run_until([&] { return received.calls == 1; });
  EXPECT_EQ(received.status, -ECANCELED);
}

TEST_P(CTcp, GracefulCloseDeliversEverything) {
  int closed = 0;
  Received received;
  const std::string big(1 << 20, 'x');
  EXPECT_EQ(evix_stream_send_copy(client, big.data(), big.size()), 0);
  EXPECT_EQ(evix_stream_close_gracefully(client, 0, 0, count, &closed), 0);
  EXPECT_EQ(evix_stream_fd(client), EVIX_ESTALE);
  // It is closing, keeps the loop alive, and so is listed, without a pointer.
  std::vector<std::string> kinds;
  evix_loop_each_handle(
      loop,
      [](const evix_handle_info_t* info, void* data) {
        if (info->handle == nullptr) {
          static_cast<std::vector<std::string>*>(data)->push_back(info->kind);
        }
      },
      &kinds);
  EXPECT_EQ(kinds, std::vector<std::string>{"stream"});
  EXPECT_EQ(evix_stream_receive_start(server, Received::note, &received), 0);
  run_until([&] { return received.ended; });
  EXPECT_EQ(received.bytes.size(), big.size());
  EXPECT_EQ(evix_stream_close(server), 0);
  run_until([&] { return closed == 1; });
  EXPECT_EQ(evix_loop_run(loop), 0);
}

TEST_P(CTcp, LoopDiesDuringAGracefulClose) {
  int closed = 0;
  const std::string big(1 << 20, 'x');
  EXPECT_EQ(evix_stream_send_copy(client, big.data(), big.size()), 0);
  EXPECT_EQ(evix_stream_close_gracefully(client, 0, 0, count, &closed), 0);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
  EXPECT_EQ(closed, 0);
  loop = evix_loop_create(nullptr);
}

TEST_P(CTcp, AbortResetsThePeer) {
  Received received;
  EXPECT_EQ(evix_stream_receive_start(server, Received::note, &received), 0);
  EXPECT_EQ(evix_stream_abort(client), 0);
  run_until([&] { return received.calls == 1; });
  EXPECT_EQ(received.status, -ECONNRESET);
}

TEST_P(CTcp, WaterMarksTellFullAndDrained) {
  struct Marks {
    std::vector<int> all;
    static void note(evix_stream_t*, int mark, void* data) {
      static_cast<Marks*>(data)->all.push_back(mark);
    }
  } marks;
  EXPECT_EQ(evix_stream_set_water_marks(client, 1000, 2000, 64 << 20, Marks::note, &marks), 0);
  const std::string big(16 << 20, 'x');
  EXPECT_EQ(evix_stream_send_copy(client, big.data(), big.size()), 0);
  EXPECT_GT(evix_stream_send_queue_bytes(client), 2000);
  EXPECT_EQ(evix_stream_try_send(client, "x", 1), 0) << "behind what is queued";
  Received received;
  EXPECT_EQ(evix_stream_receive_start(server, Received::note, &received), 0);
  run_until([&] { return received.bytes.size() == big.size(); });
  EXPECT_EQ(marks.all, (std::vector<int>{EVIX_WATER_FULL, EVIX_WATER_DRAINED}));
  EXPECT_EQ(evix_stream_set_water_marks(client, 1, 2, 3, nullptr, nullptr), 0);
}

TEST_P(CTcp, ReceiveTimeout) {
  Received received;
  EXPECT_EQ(evix_stream_set_receive_timeout_ns(server, 5'000'000), 0);
  EXPECT_EQ(evix_stream_set_send_timeout_ns(server, EVIX_FOREVER), 0);
  EXPECT_EQ(evix_stream_receive(server, Received::note, &received), 0);
  run_until([&] { return received.calls == 1; });
  EXPECT_EQ(received.status, -ETIMEDOUT);
}

TEST_P(CTcp, AddressesAndOptions) {
  char text[64];
  EXPECT_GT(evix_stream_peer_address(client, text, sizeof text), 0);
  EXPECT_STREQ(text, address);
  EXPECT_GT(evix_stream_local_address(server, text, sizeof text), 0);
  EXPECT_STREQ(text, address);
  EXPECT_EQ(evix_stream_local_address(server, text, 5), static_cast<int>(strlen(address)));
  EXPECT_STREQ(text, "127.");
  EXPECT_EQ(evix_stream_set_no_delay(client, 1), 0);
  EXPECT_EQ(evix_stream_set_keep_alive(client, 30), 0);
  EXPECT_EQ(evix_stream_set_keep_alive(client, 0), 0);
  EXPECT_EQ(evix_stream_connected(client), 1);
}

TEST_P(CTcp, NullArgumentsAreRefused) {
  EXPECT_EQ(evix_stream_receive(server, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(evix_stream_receive_start(server, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(evix_stream_receive_into(server, nullptr, 1, Received::note, nullptr), -EINVAL);
  EXPECT_EQ(evix_stream_send(server, nullptr, 1, Statuses::note, nullptr), -EINVAL);
  EXPECT_EQ(evix_stream_send(server, "x", 1, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(evix_stream_send_copy(server, nullptr, 1), -EINVAL);
  EXPECT_EQ(evix_stream_try_send(server, nullptr, 1), -EINVAL);
}

INSTANTIATE_TEST_SUITE_P(Backends, CTcp,
                         testing::ValuesIn(evix::test::offered_names({"epoll", "poll", "sim",
                                                                      "io_uring"})),
                         [](const auto& tested) { return std::string(tested.param); });

class CTcpSetup : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(evix_loop_destroy(loop), 0); }
  evix_loop_t* loop = evix_loop_create(nullptr);
};

TEST_F(CTcpSetup, RefusedConnectionHasTheTrueErrorAndItsAddress) {
  // Bound and not listening, so that no other program takes the port and listens.
  const int holder = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  ASSERT_EQ(bind(holder, reinterpret_cast<sockaddr*>(&name), size), 0);
  ASSERT_EQ(getsockname(holder, reinterpret_cast<sockaddr*>(&name), &size), 0);
  const std::string address = "127.0.0.1:" + std::to_string(ntohs(name.sin_port));
  Statuses statuses;
  evix_stream_t* stream =
      evix_tcp_connect(loop, address.c_str(), nullptr, Statuses::note, &statuses);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(statuses.all, std::vector<int>{-ECONNREFUSED});
  EXPECT_EQ(statuses.words[0], "connect " + address + ": connection refused");
  EXPECT_EQ(evix_stream_connected(stream), 0);
  EXPECT_EQ(evix_stream_close(stream), 0);
  close(holder);
}

TEST_F(CTcpSetup, BadAddressesAndOptions) {
  for (const char* bad : {"", "localhost:80", "127.0.0.1", "127.0.0.1:65536", "::1:80"}) {
    EXPECT_EQ(evix_tcp_listen(loop, bad, nullptr, nullptr, nullptr), nullptr);
    EXPECT_EQ(evix_last_error_code(), EVIX_EADDRESS) << bad;
    EXPECT_EQ(evix_tcp_connect(loop, bad, nullptr, Statuses::note, nullptr), nullptr);
    EXPECT_EQ(evix_last_error_code(), EVIX_EADDRESS) << bad;
  }
  EXPECT_EQ(evix_tcp_listen(loop, nullptr, nullptr, nullptr, nullptr), nullptr);
  EXPECT_EQ(evix_tcp_connect(loop, nullptr, nullptr, Statuses::note, nullptr), nullptr);
  EXPECT_EQ(evix_last_error_code(), -EINVAL);
  evix_listen_options_t listen{};
  EXPECT_EQ(evix_tcp_listen(loop, "127.0.0.1:0", &listen, nullptr, nullptr), nullptr);
  evix_connect_options_t connect{};
  EXPECT_EQ(evix_tcp_connect(loop, "127.0.0.1:1", &connect, Statuses::note, nullptr), nullptr);
  EXPECT_EQ(evix_last_error_code(), -EINVAL);
  connect.size = sizeof connect;
  connect.local_address = "nonsense";
  EXPECT_EQ(evix_tcp_connect(loop, "127.0.0.1:1", &connect, Statuses::note, nullptr), nullptr);
  EXPECT_EQ(evix_last_error_code(), EVIX_EADDRESS);
  EXPECT_EQ(evix_tcp_adopt(loop, -1), nullptr);
  EXPECT_EQ(evix_last_error_code(), -EBADF);
}

TEST_F(CTcpSetup, PortInUse) {
  evix_listener_t* listener = evix_tcp_listen(loop, "127.0.0.1:0", nullptr, nullptr, nullptr);
  char address[64];
  evix_listener_address(listener, address, sizeof address);
  EXPECT_EQ(evix_tcp_listen(loop, address, nullptr, nullptr, nullptr), nullptr);
  EXPECT_EQ(evix_last_error_code(), -EADDRINUSE);
  EXPECT_NE(std::string(evix_last_error()).find(address), std::string::npos) << evix_last_error();
}

TEST_F(CTcpSetup, AdoptedSocketIsClosedByTheStream) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  evix_stream_t* stream = evix_tcp_adopt(loop, fds[0]);
  ASSERT_NE(stream, nullptr) << evix_last_error();
  EXPECT_EQ(evix_stream_fd(stream), fds[0]);
  EXPECT_EQ(evix_stream_send_copy(stream, "x", 1), 0);
  EXPECT_EQ(evix_stream_close(stream), 0);
  EXPECT_EQ(fcntl(fds[0], F_GETFD), -1);
  char byte = 0;
  EXPECT_EQ(read(fds[1], &byte, 1), 1);
  EXPECT_EQ(read(fds[1], &byte, 1), 0);
  close(fds[1]);
}

TEST_F(CTcpSetup, AcceptOneAndStop) {
  struct Context {
    int accepted = 0;
    static void note(evix_listener_t*, int status, evix_stream_t* stream, void* data) {
      EXPECT_EQ(status, 0);
      ++static_cast<Context*>(data)->accepted;
      evix_stream_close(stream);
    }
  } context;
  evix_listener_t* listener = evix_tcp_listen(loop, "127.0.0.1:0", nullptr, nullptr, nullptr);
  char address[64];
  evix_listener_address(listener, address, sizeof address);
  EXPECT_EQ(evix_listener_accept(listener, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(evix_listener_accept(listener, Context::note, &context), 0);
  Statuses statuses;
  evix_tcp_connect(loop, address, nullptr, Statuses::note, &statuses);
  evix_tcp_connect(loop, address, nullptr, Statuses::note, &statuses);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(context.accepted, 1);
  EXPECT_EQ(evix_listener_accept_start(listener, Context::note, &context), 0);
  while (context.accepted < 2) ASSERT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
  EXPECT_EQ(evix_listener_accept_stop(listener), 0);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(statuses.all, (std::vector<int>{0, 0}));
}

struct Accepted {
  std::vector<int> statuses;
  std::vector<evix_stream_t*> streams;
  static void note(evix_listener_t*, int status, evix_stream_t* stream, void* data) {
    static_cast<Accepted*>(data)->statuses.push_back(status);
    if (status == 0) static_cast<Accepted*>(data)->streams.push_back(stream);
  }
};

TEST_F(CTcpSetup, NoDelayIsInheritedFromTheListener) {
  for (const int wanted : {0, 1}) {
    evix_listen_options_t options{};
    options.size = sizeof options;
    options.no_delay = wanted;
    Accepted accepted;
    evix_listener_t* listener =
        evix_tcp_listen(loop, "127.0.0.1:0", &options, &Accepted::note, &accepted);
    char address[64];
    ASSERT_GT(evix_listener_address(listener, address, sizeof address), 0);
    Statuses connected;
    ASSERT_NE(evix_tcp_connect(loop, address, nullptr, &Statuses::note, &connected), nullptr);
    run_until(loop, [&] { return accepted.streams.size() == 1 && connected.all.size() == 1; });
    int value = -1;
    socklen_t size = sizeof value;
    ASSERT_EQ(getsockopt(evix_stream_fd(accepted.streams.front()), IPPROTO_TCP, TCP_NODELAY, &value,
                         &size),
              0);
    EXPECT_EQ(value != 0 ? 1 : 0, wanted);
  }
}

TEST(CTcpLimit, IsToldOnceAndGoesOn) {
  evix_loop_options_t options{};
  options.size = sizeof options;
  options.connections_max = 1;
  evix_loop_t* loop = evix_loop_create_ex(&options);
  Accepted accepted;
  evix_listener_t* listener =
      evix_tcp_listen(loop, "127.0.0.1:0", nullptr, &Accepted::note, &accepted);
  char address[64];
  ASSERT_GT(evix_listener_address(listener, address, sizeof address), 0);
  Statuses connected;
  for (int count = 0; count < 3; ++count) {
    ASSERT_NE(evix_tcp_connect(loop, address, nullptr, &Statuses::note, &connected), nullptr);
  }
  run_until(loop, [&] { return accepted.statuses.size() == 2 && connected.all.size() == 3; });
  EXPECT_EQ(accepted.statuses, (std::vector<int>{0, EVIX_ECONNECTIONS}));
  EXPECT_STREQ(evix_error_text(EVIX_ECONNECTIONS),
               "as many connections are open as the loop may have");
  evix_loop_counters_t counters{};
  counters.size = sizeof counters;
  EXPECT_EQ(evix_loop_counters(loop, &counters), 0);
  EXPECT_EQ(counters.connections, 1U);
  EXPECT_EQ(evix_stream_close(accepted.streams.front()), 0);
  run_until(loop, [&] { return accepted.statuses.size() == 4; });
  EXPECT_EQ(accepted.statuses, (std::vector<int>{0, EVIX_ECONNECTIONS, 0, EVIX_ECONNECTIONS}));
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

}  // namespace
