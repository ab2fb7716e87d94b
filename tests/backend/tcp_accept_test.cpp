#include <fcntl.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <optional>
#include <thread>

#include "backend/tcp_support.hpp"

namespace evix::test {
namespace {

using detail::CallId;

class TcpAccept : public TcpConformance {
 protected:
  static std::unique_ptr<TcpStream> connect_to(Loop& on, const Address& address) {
    auto client = std::make_unique<TcpStream>(on);
    client->connect(address, [](Result<void> result) {
      EXPECT_TRUE(result.has_value()) << result.error().message();
    });
    return client;
  }
};
EVIX_OVER_BACKENDS(TcpAccept);

std::error_code system_code(int error) { return {error, std::system_category()}; }

TEST_P(TcpAccept, OneTakesOne) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  EXPECT_FALSE(listener.active());
  const Address address = *listener.local_address();
  const auto first = connect_to(loop, address);
  const auto second = connect_to(loop, address);
  std::vector<TcpStream> accepted;
  const auto take = [&](Result<TcpStream> stream) {
    EXPECT_EQ(starts_on_stack, 0);
    EXPECT_FALSE(listener.active());
    accepted.push_back(std::move(stream).value());
  };
  starting([&] { listener.accept(take); });
  EXPECT_TRUE(listener.active());
  ASSERT_TRUE(until([&] { return accepted.size() == 1; }));
  settle();
  EXPECT_EQ(accepted.size(), 1U);
  EXPECT_TRUE(rests());  // one connection waits, nobody accepts it
  starting([&] { listener.accept(take); });
  ASSERT_TRUE(until([&] { return accepted.size() == 2; }));
}

TEST_P(TcpAccept, StartTakesAllUntilStop) {
  TcpListener listener(loop);
  std::vector<TcpStream> accepted;
  ASSERT_TRUE(listener
                  .listen("127.0.0.1:0",
                          [&](Result<TcpStream> stream) {
                            ASSERT_TRUE(stream.has_value());
                            accepted.push_back(std::move(stream).value());
                          })
                  .has_value());
  std::vector<std::unique_ptr<TcpStream>> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(connect_to(loop, *listener.local_address()));
  ASSERT_TRUE(until([&] { return accepted.size() == 100; }));
  EXPECT_TRUE(listener.active());
  listener.accept_stop();
  listener.accept_stop();
  EXPECT_FALSE(listener.active());
  clients.push_back(connect_to(loop, *listener.local_address()));
  settle();
  EXPECT_EQ(accepted.size(), 100U);
  // The one that came meanwhile is not lost.
  listener.accept_start(
      [&](Result<TcpStream> stream) { accepted.push_back(std::move(stream).value()); });
  ASSERT_TRUE(until([&] { return accepted.size() == 101; }));
}

TEST_P(TcpAccept, StartReplacesAnEarlierStart) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  int before = 0;
  int after = 0;
  listener.accept_start([&](const Result<TcpStream>&) { ++before; });
  listener.accept_start([&](const Result<TcpStream>&) { ++after; });
  const auto client = connect_to(loop, *listener.local_address());
  ASSERT_TRUE(until([&] { return after > 0; }));
  EXPECT_EQ(before, 0);
  EXPECT_EQ(after, 1);
}

TEST_P(TcpAccept, StopCloseAndDestroyInsideTheCallback) {
  enum class Way { stop, close, destroy };
  for (const Way way : {Way::stop, Way::close, Way::destroy}) {
    auto listener = std::make_unique<TcpListener>(loop);
    ASSERT_TRUE(listener->listen("127.0.0.1:0").has_value());
    const Address address = *listener->local_address();
    const auto witness = std::make_shared<int>(0);
    std::vector<TcpStream> accepted;
    listener->accept_start([&, witness](Result<TcpStream> stream) {
      EXPECT_TRUE(stream.has_value());
      accepted.push_back(std::move(stream).value());
      if (way == Way::stop) listener->accept_stop();
      if (way == Way::close) listener->close();
      if (way == Way::destroy) listener.reset();
      ++*witness;  // what the callback holds lives until it returns
    });
    std::vector<std::unique_ptr<TcpStream>> clients;
    for (int i = 0; i < 5; ++i) {
      clients.push_back(std::make_unique<TcpStream>(loop));
      clients.back()->connect(address, [](const Result<void>&) {});
    }
    ASSERT_TRUE(until([&] { return *witness > 0; }));
    settle();
    EXPECT_EQ(*witness, 1);
    EXPECT_EQ(accepted.size(), 1U);
    EXPECT_EQ(witness.use_count(), 1);
    EXPECT_TRUE(accepted[0].connected());
  }
}

TEST_P(TcpAccept, NestedRunInsideTheCallbackUsesIt) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  const Address address = *listener.local_address();
  std::vector<TcpStream> accepted;
  std::unique_ptr<TcpStream> second;
  listener.accept_start([&](Result<TcpStream> stream) {
    accepted.push_back(std::move(stream).value());
    if (accepted.size() > 1) return;
    second = connect_to(loop, address);
    EXPECT_TRUE(until([&] { return accepted.size() == 2; }));
  });
  const auto first = connect_to(loop, address);
  ASSERT_TRUE(until([&] { return accepted.size() == 2; }));
}

TEST_P(TcpAccept, CloseCancelsOneAcceptOnce) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  Outcome one;
  starting([&] {
    listener.accept([&](const Result<TcpStream>& stream) { one.note(stream); });
    listener.close();
  });
  settle();
  EXPECT_EQ(one.calls, 1);
  EXPECT_EQ(one.code, std::errc::operation_canceled);
  EXPECT_TRUE(listener.closed());
  EXPECT_EQ(listener.native(), no_handle);
}

TEST_P(TcpAccept, CloseEndsASeriesSilently) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  Outcome series;
  const auto witness = std::make_shared<int>(0);
  listener.accept_start([&, witness](const Result<TcpStream>& stream) { series.note(stream); });
  listener.close();
  listener.close();
  settle();
  EXPECT_EQ(series.calls, 0);
  EXPECT_EQ(witness.use_count(), 1);
}

TEST_P(TcpAccept, PortIsFreeWhenCloseReturns) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen(own_address()).has_value());
  const Address address = *listener.local_address();
  listener.accept_start([](const Result<TcpStream>&) {});
  settle(3);
  listener.close();
  TcpListener next(loop);
  const auto listening = next.listen(address, ListenOptions{.reuse_address = false});
  EXPECT_TRUE(listening.has_value()) << listening.error().message();
}

TEST_P(TcpAccept, WaitingConnectionsAreResetByTheClose) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  const auto client = connect_to(loop, *listener.local_address());
  ASSERT_TRUE(until([&] { return client->connected(); }));
  Inbox inbox;
  client->receive_start(inbox.callback());
  listener.close();
  ASSERT_TRUE(until([&] { return inbox.over(); }));
  EXPECT_EQ(inbox.code, std::errc::connection_reset);
}

TEST_P(TcpAccept, BeforeListenIsClosed) {
  TcpListener listener(loop);
  Outcome one;
  Outcome series;
  starting([&] { listener.accept([&](const Result<TcpStream>& stream) { one.note(stream); }); });
  EXPECT_EQ(loop.run(), 0);
  starting([&] {
    listener.accept_start([&](const Result<TcpStream>& stream) { series.note(stream); });
  });
  EXPECT_EQ(loop.run(), 0);
  for (const Outcome* outcome : {&one, &series}) {
    EXPECT_EQ(outcome->calls, 1);
    EXPECT_EQ(outcome->code, make_error_code(Errc::closed));
    EXPECT_EQ(outcome->message, "accept: the handle or its loop is closed");
  }
  EXPECT_FALSE(listener.closed());
  EXPECT_FALSE(listener.local_address().has_value());
}

TEST_P(TcpAccept, RefusedStartDoesNotDisturbTheNext) {
  TcpListener listener(loop);
  Outcome refused;
  starting([&] {
    listener.accept_start([&](const Result<TcpStream>& stream) { refused.note(stream); });
  });
  std::vector<TcpStream> accepted;
  int errors = 0;
  const auto listening = listener.listen("127.0.0.1:0", [&](Result<TcpStream> stream) {
    if (stream) {
      accepted.push_back(std::move(stream).value());
    } else {
      ++errors;
    }
  });
  ASSERT_TRUE(listening.has_value());
  const auto client = connect_to(loop, *listener.local_address());
  ASSERT_TRUE(until([&] { return accepted.size() == 1; }));
  settle();
  EXPECT_EQ(refused.calls, 1);
  EXPECT_EQ(refused.code, make_error_code(Errc::closed));
  EXPECT_EQ(errors, 0);
  EXPECT_TRUE(listener.active());
}

// ---- What cannot be listened on --------------------------------------------------------------

TEST_P(TcpAccept, UnparsableAddressTable) {
  TcpListener listener(loop);
  for (const char* text : {"", "127.0.0.1", "localhost:80", "127.0.0.1:65536", "[::1]", "x"}) {
    const auto listening = listener.listen(text);
    ASSERT_FALSE(listening.has_value()) << text;
    EXPECT_EQ(listening.error().code(), make_error_code(Errc::invalid_address)) << text;
  }
  EXPECT_EQ(listener.listen(Address()).error().code(), make_error_code(Errc::invalid_address));
  EXPECT_EQ(listener.listen("x", [](const Result<TcpStream>&) {}).error().code(),
            make_error_code(Errc::invalid_address));
  EXPECT_FALSE(listener.active());
  EXPECT_TRUE(listener.listen("127.0.0.1:0").has_value());
}

TEST_P(TcpAccept, PortInUse) {
  TcpListener first(loop);
  ASSERT_TRUE(first.listen("127.0.0.1:0").has_value());
  const Address address = *first.local_address();
  TcpListener second(loop);
  const auto listening = second.listen(address);
  ASSERT_FALSE(listening.has_value());
  EXPECT_EQ(listening.error().code(), std::errc::address_in_use);
  EXPECT_EQ(listening.error().message(),
            "listen " + address.to_string() + ": address already in use");
  EXPECT_EQ(second.native(), no_handle);
  // The same handle can listen elsewhere.
  EXPECT_TRUE(second.listen("127.0.0.1:0").has_value());
}

TEST_P(TcpAccept, ReusePortSharesThePort) {
  TcpListener first(loop);
  const ListenOptions shared{.reuse_port = true};
  ASSERT_TRUE(first.listen("127.0.0.1:0", shared).has_value());
  TcpListener second(loop);
  EXPECT_TRUE(second.listen(*first.local_address(), shared).has_value());
  TcpListener third(loop);
  EXPECT_EQ(third.listen(*first.local_address()).error().code(), std::errc::address_in_use);
}

TEST_P(TcpAccept, AddressOfAnotherMachine) {
  TcpListener listener(loop);
  const auto listening = listener.listen("192.0.2.1:0");
  ASSERT_FALSE(listening.has_value());
  EXPECT_EQ(listening.error().code(), std::errc::address_not_available);
  EXPECT_EQ(listening.error().message(), "listen 192.0.2.1:0: cannot assign requested address");
}

TEST_P(TcpAccept, ListenTwiceIsBusyAndAfterCloseClosed) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  const Address address = *listener.local_address();
  EXPECT_EQ(listener.listen("127.0.0.1:0").error().code(), make_error_code(Errc::busy));
  EXPECT_EQ(*listener.local_address(), address);
  listener.close();
  const auto again = listener.listen(address);
  EXPECT_EQ(again.error().code(), make_error_code(Errc::closed));
  EXPECT_EQ(again.error().message(),
            "listen " + address.to_string() + ": the handle or its loop is closed");
  Outcome accepted;
  starting([&] { listener.accept([&](const Result<TcpStream>& s) { accepted.note(s); }); });
  settle(2);
  EXPECT_EQ(accepted.calls, 1);
  EXPECT_EQ(accepted.code, make_error_code(Errc::closed));
}

/** Holds one port number for IPv6 alone and for IPv4, so that no other program takes either. */
struct HeldNumber {
  HeldNumber() {
    for (int attempt = 0; attempt < 100; ++attempt) {
      six = RawSocket::bound_to(*Address::parse("[::]:0"));
      four = RawSocket::bound_to(Address::ipv4({127, 0, 0, 1}, six.local_address().port()));
      if (four.get() >= 0) return;
      EXPECT_EQ(errno, EADDRINUSE) << "not just a program that has the number for IPv4";
    }
    ADD_FAILURE() << "no number is free for both after 100 attempts";
  }
  RawSocket six;
  RawSocket four;
};

TEST_P(TcpAccept, ListensOnIpv6Only) {
  EVIX_SKIP_WITHOUT_IPV6();
  std::optional<HeldNumber> held;
  if (!is_sim()) held.emplace();  // no other program is in there
  const Address wanted = held ? held->six.local_address() : *Address::parse("[::]:0");
  TcpListener six(loop);
  const auto listening = six.listen(wanted, ListenOptions{.ipv6_only = true});
  ASSERT_TRUE(listening.has_value()) << listening.error().message();
  const std::uint16_t port = six.local_address()->port();
  // The IPv4 port of the same number stays free.
  TcpListener four(loop);
  const auto both = four.listen(Address::ipv4({127, 0, 0, 1}, port));
  EXPECT_TRUE(both.has_value()) << both.error().message();
  four.close();
  TcpStream client(loop);
  Outcome connected;
  client.connect(Address::ipv4({127, 0, 0, 1}, port), connected.callback());
  ASSERT_TRUE(until([&] { return connected.done(); }));
  EXPECT_EQ(connected.code, std::errc::connection_refused);
}

TEST_P(TcpAccept, DualStackTakesBoth) {
  EVIX_SKIP_WITHOUT_IPV6();
  TcpListener both(loop);
  const auto listening = both.listen("[::]:0");
  ASSERT_TRUE(listening.has_value()) << listening.error().message();
  const std::uint16_t port = both.local_address()->port();
  std::vector<TcpStream> accepted;
  both.accept_start(
      [&](Result<TcpStream> stream) { accepted.push_back(std::move(stream).value()); });
  const auto four = connect_to(loop, Address::ipv4({127, 0, 0, 1}, port));
  ASSERT_TRUE(until([&] { return accepted.size() == 1; }));
  // An IPv4 peer of an IPv6 socket has its mapped address.
  EXPECT_TRUE(accepted[0].peer_address()->to_string().starts_with("[::ffff:"))
      << accepted[0].peer_address()->to_string();
}

TEST_P(TcpAccept, FailedStepsOfListenLeaveNothingOpen) {
  FaultyLoop faulty(GetParam());
  for (const auto& [call, error] : {std::pair{CallId::socket, EMFILE},
                                    {CallId::set_option, ENOPROTOOPT},
                                    {CallId::bind, EACCES},
                                    {CallId::listen, EADDRINUSE}}) {
    faulty.calls->reset_counts();
    faulty.calls->fail(call, 1, error);
    TcpListener listener(*faulty.loop);
    const auto listening = listener.listen("127.0.0.1:0");
    ASSERT_FALSE(listening.has_value());
    EXPECT_EQ(listening.error().code(), system_code(error));
    EXPECT_EQ(faulty.calls->count(CallId::close), call == CallId::socket ? 0U : 1U);
    EXPECT_EQ(listener.native(), no_handle);
  }
}

/** 0: as it should be; else what was wrong. Runs in a child that has given its rights away. */
int listen_without_rights(BackendKind kind) {
  const passwd* nobody = getpwnam("nobody");
  if (nobody == nullptr || setgid(nobody->pw_gid) != 0 || setuid(nobody->pw_uid) != 0) return 77;
  const RawSocket raw(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(81);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // The limit bites: the plain call is refused too.
  if (::bind(raw.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return 2;
  if (errno != EACCES) return 3;
  Loop own(LoopOptions{.backend = kind});
  TcpListener listener(own);
  const auto listening = listener.listen("127.0.0.1:81");
  if (listening) return 4;
  if (listening.error().code() != std::errc::permission_denied) return 5;
  if (listening.error().message() != "listen 127.0.0.1:81: permission denied") return 6;
  return listener.listen("127.0.0.1:0") ? 0 : 7;
}

TEST_P(TcpAccept, PrivilegedPortWithoutRights) {
  EVIX_SKIP_ON(BackendKind::sim, "the simulated kernel knows no users");
  int first_free = 1024;
  if (FILE* file = std::fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "r")) {
    EXPECT_EQ(std::fscanf(file, "%d", &first_free), 1);
    std::fclose(file);
  }
  if (first_free <= 81) GTEST_SKIP() << "no port is privileged on this machine";
  if (getuid() != 0) {
    TcpListener listener(loop);
    EXPECT_EQ(listener.listen("127.0.0.1:81").error().code(), std::errc::permission_denied);
    return;
  }
  const pid_t child = fork();
  if (child == 0) _exit(listen_without_rights(GetParam()));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// ---- Failing accepts -------------------------------------------------------------------------

TEST_P(TcpAccept, TrapT048TransientErrorsKeepAccepting) {
  FaultyLoop faulty(GetParam());
  Loop& own = *faulty.loop;
  std::size_t accepted = 0;
  int errors = 0;
  TcpListener listener(own);
  ASSERT_TRUE(listener
                  .listen("127.0.0.1:0",
                          [&](const Result<TcpStream>& stream) {
                            stream ? ++accepted : static_cast<std::size_t>(++errors);
                          })
                  .has_value());
  settle(own, 2);
  std::size_t clients = 0;
  for (const int error : {ECONNABORTED, EINTR, EPROTO, ENETDOWN, ENOPROTOOPT, EHOSTDOWN, ENONET,
                          EHOSTUNREACH, ENETUNREACH, EPERM}) {
    faulty.calls->fail(CallId::accept, 1, error, 1000);
    TcpStream client(own);
    Outcome connected;
    client.connect(*listener.local_address(), connected.callback());
    ++clients;
    ASSERT_TRUE(until(own, [&] { return accepted == clients && connected.done(); }))
        << "errno " << error;
    EXPECT_TRUE(connected.ok());
    faulty.calls->restore(CallId::accept);
  }
  EXPECT_EQ(errors, 0);
  EXPECT_EQ(faulty.calls->injected(CallId::accept), 10'000U);
  EXPECT_TRUE(rests(own));
}

TEST_P(TcpAccept, TrapT048FatalErrorsEndItOnce) {
  FaultyLoop faulty(GetParam());
  Loop& own = *faulty.loop;
  for (const int error : {EINVAL, ENOTSOCK, EBADF, EOPNOTSUPP, EFAULT}) {
    TcpListener listener(own);
    Outcome ended;
    ASSERT_TRUE(
        listener.listen("127.0.0.1:0", [&](const Result<TcpStream>& stream) { ended.note(stream); })
            .has_value());
    faulty.calls->refuse(CallId::accept, error);
    TcpStream client(own);
    client.connect(*listener.local_address(), [](const Result<void>&) {});
    ASSERT_TRUE(until(own, [&] { return ended.done(); }));
    const std::uint64_t tries = faulty.calls->count(CallId::accept);
    settle(own);
    EXPECT_TRUE(rests(own));
    EXPECT_EQ(ended.calls, 1);
    EXPECT_EQ(ended.code, system_code(error));
    EXPECT_EQ(faulty.calls->count(CallId::accept), tries);  // no further try
    EXPECT_FALSE(listener.active());
    // It can be started again, and serves.
    faulty.calls->restore(CallId::accept);
    Outcome again;
    listener.accept([&](const Result<TcpStream>& stream) { again.note(stream); });
    ASSERT_TRUE(until(own, [&] { return again.done(); }));
    EXPECT_TRUE(again.ok());
    if (error == EINVAL) continue;
    if (!full_counts()) break;  // one second of rest each
  }
}

TEST_P(TcpAccept, TrapT048ListenerReplacedByAPipe) {
  EVIX_SKIP_ON(BackendKind::sim, "dup2 over the listener needs a real descriptor");
  TcpListener listener(loop);
  Outcome ended;
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const RawSocket read_end(ends[0]);
  const RawSocket write_end(ends[1]);
  ASSERT_EQ(dup2(read_end.get(), listener.native()), listener.native());
  ASSERT_EQ(::write(write_end.get(), "x", 1), 1);
  listener.accept_start([&](const Result<TcpStream>& stream) { ended.note(stream); });
  ASSERT_TRUE(until([&] { return ended.done(); }));
  EXPECT_TRUE(rests());
  EXPECT_EQ(ended.calls, 1);
  EXPECT_EQ(ended.code, std::errc::not_a_socket);
  EXPECT_FALSE(listener.active());
}

TEST_P(TcpAccept, StarvationIsToldOnceAndRetriedAfterTheDelay) {
  FaultyLoop faulty(GetParam());
  Loop& own = *faulty.loop;
  for (const int error : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
    TcpListener listener(own);
    ListenOptions patient;
    patient.retry_delay = 60ms;
    ASSERT_TRUE(listener.listen("127.0.0.1:0", patient).has_value());
    std::vector<TcpStream> accepted;
    int errors = 0;
    std::error_code code;
    listener.accept_start([&](Result<TcpStream> stream) {
      if (stream) {
        accepted.push_back(std::move(stream).value());
      } else {
        ++errors;
        code = stream.error().code();
      }
    });
    TcpStream client(own);
    client.connect(*listener.local_address(), [](const Result<void>&) {});
    faulty.calls->refuse(CallId::accept, error);
    ASSERT_TRUE(until(own, [&] { return errors > 0; }));
    EXPECT_EQ(code, system_code(error));
    EXPECT_TRUE(listener.active());
    const std::uint64_t tries = faulty.calls->count(CallId::accept);
    const KeepAlive waiting = own.keep_alive();
    ASSERT_EQ(own.run_for(310ms), 0);
    const std::uint64_t more = faulty.calls->count(CallId::accept) - tries;
    EXPECT_GE(more, is_sim() ? 5U : 1U);  // one try every 60 ms
    EXPECT_LE(more, 5U);
    EXPECT_EQ(errors, 1);
    faulty.calls->restore(CallId::accept);
    ASSERT_TRUE(until(own, [&] { return accepted.size() == 1; }));
    EXPECT_EQ(errors, 1);
    // The next episode is told again.
    faulty.calls->refuse(CallId::accept, error);
    TcpStream second(own);
    second.connect(*listener.local_address(), [](const Result<void>&) {});
    ASSERT_TRUE(until(own, [&] { return errors == 2; }));
    faulty.calls->restore(CallId::accept);
    listener.accept_stop();
    EXPECT_EQ(own.counters().timers_armed, 0U);
  }
}

TEST_P(TcpAccept, ClosedStreamEndsTheWaitForDescriptors) {
  FaultyLoop faulty(GetParam());
  Loop& own = *faulty.loop;
  Pair other = make_pair(own);
  TcpListener listener(own);
  ListenOptions patient;
  patient.retry_delay = 1h;
  ASSERT_TRUE(listener.listen("127.0.0.1:0", patient).has_value());
  std::vector<TcpStream> accepted;
  int errors = 0;
  listener.accept_start([&](Result<TcpStream> stream) {
    stream ? accepted.push_back(std::move(stream).value()) : static_cast<void>(++errors);
  });
  TcpStream client(own);
  client.connect(*listener.local_address(), [](const Result<void>&) {});
  faulty.calls->fail(CallId::accept, 1, EMFILE);
  ASSERT_TRUE(until(own, [&] { return errors == 1 && client.connected(); }));
  settle(own);
  EXPECT_TRUE(accepted.empty());
  const Duration took = elapsed(own, [&] {
    other.server.close();
    ASSERT_TRUE(until(own, [&] { return accepted.size() == 1; }));
  });
  EXPECT_LT(took, Duration(1s));
  EXPECT_EQ(errors, 1);
}

// ---- The descriptor limit of the process -----------------------------------------------------

/** Lowers the soft limit of descriptor numbers while it lives. */
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    set(limit);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  void set(rlim_t limit) {
    rlimit now = before_;
    now.rlim_cur = limit;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
  }

 private:
  rlimit before_{};
};

/** The limit under which this process can open `room` more descriptors. */
rlim_t limit_with_room(std::size_t room) {
  int number = 0;
  for (;; ++number) {
    if (fcntl(number, F_GETFD) >= 0) continue;
    if (room == 0) return static_cast<rlim_t>(number);
    --room;
  }
}

/** A blocking echo through raw sockets while the loop runs; how long it took. */
Duration raw_echo(Loop& on, const RawSocket& client) {
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(::send(client.get(), "ping", 4, MSG_NOSIGNAL), 4);
  char bytes[4];
  for (int turn = 0; turn < 1000; ++turn) {
    EXPECT_EQ(on.run_ready(), 0);
    if (::recv(client.get(), bytes, 4, MSG_DONTWAIT) == 4) break;
  }
  EXPECT_EQ(std::string(bytes, 4), "ping");
  return std::chrono::steady_clock::now() - before;
}

/** The best of five: any one of them the machine may hold up. */
Duration best_raw_echo(Loop& on, const RawSocket& client) {
  Duration best = 1h;
  for (int attempt = 0; attempt < 5; ++attempt) best = std::min(best, raw_echo(on, client));
  return best;
}

TEST_P(TcpAccept, TrapT044DescriptorLimit) {
  EVIX_SKIP_ON(BackendKind::sim, "the descriptor limit is the process's");
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  const Address address = *listener.local_address();
  constexpr std::size_t client_count = 200;
  constexpr std::size_t room = client_count - 50;
  std::vector<RawSocket> clients;  // the kernel's queue takes them all
  for (std::size_t i = 0; i < client_count; ++i) {
    clients.push_back(RawSocket::connected_to(address));
  }
  settle(1);  // the loop's own descriptors exist
  ASSERT_TRUE(rests());
  const DescriptorLimit limit(limit_with_room(room));
  std::vector<std::unique_ptr<TcpStream>> streams;
  int errors = 0;
  listener.accept_start([&](Result<TcpStream> accepted) {
    if (!accepted) {
      ++errors;
      EXPECT_EQ(accepted.error().code(), std::errc::too_many_files_open);
      return;
    }
    streams.push_back(std::make_unique<TcpStream>(std::move(accepted).value()));
    TcpStream& stream = *streams.back();
    stream.receive_start([&stream](Result<Buffer> bytes) {
      if (bytes && !bytes->empty()) stream.send(std::move(bytes).value(), {});
    });
  });
  ASSERT_TRUE(until([&] { return errors > 0; }));
  EXPECT_EQ(streams.size(), room);
  // It rests: a try every 100 ms, not a spin.
  const Duration cpu_before = thread_cpu_time();
  const std::uint64_t turns_before = loop.counters().turns;
  ASSERT_EQ(loop.run_for(1s), 0);
  EXPECT_LT(thread_cpu_time() - cpu_before, Duration(20ms));
  EXPECT_LE(loop.counters().turns - turns_before, 25U);
  EXPECT_EQ(errors, 1);
  // Those that are in are served.
  for (const std::size_t i : {std::size_t{0}, room / 2, room - 1}) {
    EXPECT_LT(best_raw_echo(loop, clients[i]), Duration(5ms));
  }
  // 50 places become free: the 50 that wait get in.
  const Duration took = elapsed(loop, [&] {
    for (std::size_t i = 0; i < 50; ++i) streams[i].reset();
    ASSERT_TRUE(until([&] { return streams.size() == client_count; }));
  });
  EXPECT_LT(took, Duration(100ms));
  for (std::size_t i = room; i < client_count; ++i) {
    EXPECT_LT(best_raw_echo(loop, clients[i]), Duration(100ms));
  }
}

TEST_P(TcpAccept, TrapT045SteadyArrivalsAtTheLimit) {
  EVIX_SKIP_ON(BackendKind::sim, "the descriptor limit is the process's");
  // Clients in another process, so that they need no descriptors of this one: each connects, waits
  // for nothing, closes, connects again. A thread here takes every free descriptor.
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  const Address address = *listener.local_address();
  const pid_t hammer = fork();
  if (hammer == 0) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(address.port());
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (;;) {
      for (int burst = 0; burst < 5; ++burst) {  // 5000 a second
        const int handle = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)::connect(handle, reinterpret_cast<sockaddr*>(&to), sizeof to);
        const linger reset{1, 0};
        setsockopt(handle, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        ::close(handle);
      }
      ::poll(nullptr, 0, 1);
    }
  }
  settle(1);
  ASSERT_TRUE(rests());
  std::atomic<bool> stop{false};
  std::thread thief;
  {
    const DescriptorLimit limit(limit_with_room(20));
    thief = std::thread([&stop] {
      std::vector<RawSocket> taken;
      while (!stop) {
        RawSocket one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (one.get() >= 0) {
          taken.push_back(std::move(one));
        } else {
          ::poll(nullptr, 0, 1);
        }
        if (taken.size() > 10) taken.clear();  // lets some free now and then
      }
    });
    std::atomic<int> sleeper_late = 0;
    std::thread sleeper([&] {
      while (!stop) {
        const auto due = std::chrono::steady_clock::now() + 10ms;
        ::poll(nullptr, 0, 10);
        if (std::chrono::steady_clock::now() - due > 20ms) ++sleeper_late;
      }
    });
    int errors = 0;
    std::deque<TcpStream> streams;
    listener.accept_start([&](Result<TcpStream> accepted) {
      if (!accepted) {
        ++errors;
        return;
      }
      streams.push_back(std::move(accepted).value());
      if (streams.size() > 12) streams.pop_front();
    });
    Timer ticks(loop);
    int on_time = 0;
    int late = 0;
    TimePoint due{};
    loop.update_now();
    due = loop.now() + 10ms;
    ticks.every(10ms, [&] {
      loop.update_now();
      ++(loop.now() - due < 20ms ? on_time : late);
      due += 10ms * (1 + ticks.missed_ticks());
    });
    const Duration span = full_counts() ? 5s : 1s;
    const Duration cpu_before = thread_cpu_time();
    const std::uint64_t turns_before = loop.counters().turns;
    sleeper_late = 0;
    EXPECT_EQ(loop.run_for(span), 0);
    const Duration cpu = thread_cpu_time() - cpu_before;
    EXPECT_LT(cpu, span / 5);
    EXPECT_GE(loop.counters().turns - turns_before, 50U);
    // Other programs may hold this one up now and then, and then the sleeper too; a loop that is
    // stuck is late every time.
    EXPECT_GE(on_time + 8 * sleeper_late, 4 * late);
    EXPECT_GT(on_time, 0);
    ticks.stop();
    listener.accept_stop();
    stop = true;
    thief.join();
    sleeper.join();
  }
  kill(hammer, SIGKILL);
  EXPECT_EQ(waitpid(hammer, nullptr, 0), hammer);
}

TEST_P(TcpAccept, LoopDestroyedWithOneUnansweredError) {
  TcpListener listener;
  {
    FaultyLoop faulty(GetParam());
    listener = TcpListener(*faulty.loop);
    ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
    listener.accept([](const Result<TcpStream>&) { ADD_FAILURE(); });
    listener.close();  // its notice is queued and dies with the loop
  }
  EXPECT_TRUE(listener.closed());
  EXPECT_EQ(listener.listen("127.0.0.1:0").error().code(), make_error_code(Errc::closed));
  listener.accept_stop();
  listener.close();
}

}  // namespace
}  // namespace evix::test
