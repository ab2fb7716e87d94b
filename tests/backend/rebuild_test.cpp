#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "backend/fork_support.hpp"
#include "backend/tcp_support.hpp"

/** @file
 * Loop::rebuild(): new kernel objects under what is in flight.
 */
namespace evix::test {
namespace {

using detail::CallId;

constexpr const char* needs_descriptors = "needs real descriptors";

class Rebuild : public TcpConformance {
 protected:
  static CallId maker() {
    return GetParam() == BackendKind::io_uring ? CallId::ring_setup : CallId::epoll_create;
  }
};
EVIX_OVER_BACKENDS(Rebuild);

/** Both ways at once, more than any buffer takes. */
struct Exchange {
  static constexpr std::size_t parts = 8;
  static constexpr std::size_t part_size = 512 * 1024;

  explicit Exchange(Pair& pair) : client(pair.client), server(pair.server) {
    client.receive_start(at_client.callback());
    server.receive_start(at_server.callback());
    for (std::uint32_t part = 0; part < parts; ++part) {
      up.push_back(pattern(part_size, part + 1));
      down.push_back(pattern(part_size, part + 100));
    }
    for (std::size_t part = 0; part < parts; ++part) {
      client.send(bytes_of(up[part]), counted());
      EXPECT_TRUE(client.send_copy("up"));
      server.send(bytes_of(down[part]), counted());
      EXPECT_TRUE(server.send_copy("down"));
    }
  }
  TcpStream::DoneCallback counted() {
    return [this](const Result<void>& sent) {
      EXPECT_TRUE(sent.has_value());
      ++sends;
    };
  }
  bool done() const {
    const std::size_t words_up = parts * std::string_view("up").size();
    const std::size_t words_down = parts * std::string_view("down").size();
    return sends == 2 * parts && at_server.text.size() == parts * part_size + words_up &&
           at_client.text.size() == parts * part_size + words_down;
  }
  void expect_every_byte() const {
    std::string expected_up;
    std::string expected_down;
    for (std::size_t part = 0; part < parts; ++part) {
      expected_up += up[part] + "up";
      expected_down += down[part] + "down";
    }
    EXPECT_TRUE(same_bytes(at_server.text, expected_up));
    EXPECT_TRUE(same_bytes(at_client.text, expected_down));
    EXPECT_EQ(at_server.errors + at_client.errors, 0);
  }

  TcpStream& client;
  TcpStream& server;
  Inbox at_client;
  Inbox at_server;
  std::vector<std::string> up;
  std::vector<std::string> down;
  std::size_t sends = 0;
};

TEST_P(Rebuild, BetweenAllTurnsOfAnExchange) {
  Pair pair = make_pair();
  Exchange exchange(pair);
  int rebuilt = 0;
  ASSERT_TRUE(until([&] {
    EXPECT_TRUE(loop.rebuild());
    ++rebuilt;
    return exchange.done();
  }));
  exchange.expect_every_byte();
  EXPECT_GT(rebuilt, 5);
}

TEST_P(Rebuild, InsideEveryCallbackOfAnExchange) {
  Pair pair = make_pair();
  std::string got;
  std::size_t echoed = 0;
  pair.server.receive_start([&](Result<Buffer> bytes) {
    ASSERT_TRUE(bytes);
    EXPECT_TRUE(loop.rebuild());
    pair.server.send(std::move(bytes).value(), [&](Result<void> sent) {
      EXPECT_TRUE(sent.has_value());
      EXPECT_TRUE(loop.rebuild());
      ++echoed;
    });
    EXPECT_TRUE(loop.rebuild());
  });
  pair.client.receive_start([&](Result<Buffer> bytes) {
    ASSERT_TRUE(bytes);
    EXPECT_TRUE(loop.rebuild());
    got += bytes->text();
  });
  const std::string sent = pattern(1'000'000);
  Outcome done;
  pair.client.send(bytes_of(sent), done.callback());
  ASSERT_TRUE(until([&] { return got.size() == sent.size(); }));
  EXPECT_TRUE(done.ok());
  EXPECT_TRUE(same_bytes(got, sent));
  EXPECT_GT(echoed, 0U);
}

TEST_P(Rebuild, ListenersAndConnectsGoOn) {
  TcpListener listener(loop);
  std::vector<TcpStream> accepted;
  ASSERT_TRUE(listener.listen("127.0.0.1:0", [&](Result<TcpStream> stream) {
    ASSERT_TRUE(stream);
    EXPECT_TRUE(loop.rebuild());
    accepted.push_back(std::move(stream).value());
  }));
  std::vector<TcpStream> clients;
  int connected = 0;
  for (std::size_t i = 1; i <= 20; ++i) {
    clients.emplace_back(loop).connect(*listener.local_address(), [&](Result<void> result) {
      EXPECT_TRUE(result.has_value());
      ++connected;
    });
    ASSERT_TRUE(loop.rebuild());
    if (i % 5 == 0) {
      ASSERT_TRUE(until([&] { return accepted.size() == i; }));
    }
  }
  ASSERT_TRUE(until([&] { return connected == 20; }));
  settle();
  EXPECT_EQ(accepted.size(), 20U);
}

TEST_P(Rebuild, TimersPostsAndWakersGoOn) {
  std::string order;
  Timer timer(loop);
  timer.after(20ms, [&] { order += 't'; });
  Waker waker(loop, [&] { order += 'w'; });
  const WakeSender wake = waker.sender();
  ASSERT_EQ(loop.run_ready(), 0);
  loop.post([&] { order += 'p'; });
  ASSERT_TRUE(loop.rebuild());
  ASSERT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(order, "p");
  // The event that wakes the loop is in the new set as well.
  std::thread([&] { wake.wake(); }).join();
  ASSERT_TRUE(until([&] { return order.contains('w'); }));
  ASSERT_TRUE(loop.rebuild());
  std::thread([&] { loop.post([&] { order += 'P'; }); }).join();
  ASSERT_TRUE(until([&] { return order.size() == 4; }));
  std::ranges::sort(order);  // when the timer comes among them is a matter of the machine
  EXPECT_EQ(order, "Pptw");
}

TEST_P(Rebuild, WatchersAndSignalsGoOn) {
  EVIX_SKIP_ON(BackendKind::sim, needs_descriptors);
  const Pipe pipe;
  const Pipe once;
  const Pipe paused;
  std::string order;
  Watcher watcher(loop);
  ASSERT_TRUE(watcher.start(pipe.read_end(), Ready::readable, [&](Ready) {
    pipe.take();
    order += 'w';
    EXPECT_TRUE(loop.rebuild());
  }));
  Watcher one(loop);
  ASSERT_TRUE(one.once(once.read_end(), Ready::readable, [&](Ready) {
    EXPECT_TRUE(loop.rebuild());
    order += '1';
  }));
  Watcher silent(loop);
  ASSERT_TRUE(silent.start(paused.read_end(), Ready::readable, [&](Ready) {
    order += '!';
    silent.stop();
  }));
  ASSERT_TRUE(silent.set_interest(Ready::none));
  SignalWatcher signal(loop);
  ASSERT_TRUE(signal.start(SIGUSR2, [&](int) {
    EXPECT_TRUE(loop.rebuild());
    order += 's';
  }));
  ASSERT_EQ(loop.run_ready(), 0);
  paused.put();
  ASSERT_TRUE(loop.rebuild());
  settle();
  EXPECT_EQ(order, "");
  pipe.put();
  ASSERT_TRUE(loop.rebuild());
  ASSERT_TRUE(until([&] { return order == "w"; }));
  pipe.put();
  pipe.put();
  ASSERT_TRUE(until([&] { return order == "www"; }));
  once.put();  // and nobody reads it
  ASSERT_TRUE(until([&] { return order == "www1"; }));
  ASSERT_EQ(::raise(SIGUSR2), 0);
  ASSERT_TRUE(until([&] { return order == "www1s"; }));
  settle();
  EXPECT_EQ(order, "www1s");
  ASSERT_TRUE(silent.set_interest(Ready::readable));
  ASSERT_TRUE(until([&] { return order.size() == 6; }));
  EXPECT_EQ(order, "www1s!");
  EXPECT_TRUE(rests());
}

// The poll backend has no object of the kernel's, and the simulated kernel none that can be
// refused.
TEST_P(Rebuild, ARefusedOneLosesNothing) {
  FaultyLoop faulty(GetParam());
  Loop& own = *faulty.loop;
  Pair pair = make_pair(own);
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_EQ(own.run_ready(), 0);
  const std::uint64_t made = faulty.calls->count(maker());
  faulty.calls->fail(maker(), 1, EMFILE);
  const auto refused = own.rebuild();
  const bool has_object = GetParam() == BackendKind::epoll || GetParam() == BackendKind::io_uring;
  EXPECT_EQ(refused.has_value(), !has_object);
  if (has_object) {
    EXPECT_EQ(refused.error().code(), std::errc::too_many_files_open);
    EXPECT_EQ(faulty.calls->count(maker()), made + 1);
  }
  ASSERT_TRUE(pair.client.send_copy("nothing is lost"));
  ASSERT_TRUE(until(own, [&] { return inbox.text == "nothing is lost"; }));
  ASSERT_TRUE(own.rebuild());
  ASSERT_TRUE(pair.client.send_copy(", nothing"));
  ASSERT_TRUE(until(own, [&] { return inbox.text == "nothing is lost, nothing"; }));
  EXPECT_EQ(inbox.errors, 0);
}

int serve_as(uid_t user, const LoopOptions& options) {
  Loop own(options);
  TcpListener listener(own);
  TcpStream server;
  std::string got;
  if (!listener.listen("127.0.0.1:0", [&](Result<TcpStream> stream) {
        if (!stream) return;
        server = std::move(stream).value();
        server.receive_start([&](Result<Buffer> bytes) {
          if (bytes) got += bytes->text();
        });
      })) {
    return 1;
  }
  TcpStream client(own);
  client.connect(*listener.local_address(), [](Result<void>) {});
  if (own.run_once(1s) != 0) return 2;
  if (::setresuid(user, user, user) != 0) return 3;
  if (!own.rebuild()) return 4;
  Timer late(own);
  bool too_late = false;
  late.after(10s, [&] { too_late = true; });
  if (!client.send_copy("as another")) return 5;
  while (got != "as another") {
    if (own.run_once(1s) != 0) return 6;
    if (too_late) return 7;
  }
  return 0;
}

TEST_P(Rebuild, AfterThePrivilegesWereGivenUp) {
  constexpr uid_t nobody = 65534;
  // Only root can become somebody else; others stay who they are.
  const uid_t user = ::geteuid() == 0 ? nobody : ::getuid();
  EXPECT_EQ(run_child([user] { return serve_as(user, options()); }), 0);
}

TEST_P(Rebuild, ChildOfAForkIsToldWhatComesFirst) {
  EVIX_SKIP_ON(BackendKind::sim, needs_descriptors);
  EXPECT_EQ(run_child([&] {
              const auto early = loop.rebuild();
              if (early || !(early.error() == Errc::forked)) return 1;
              if (!loop.after_fork()) return 2;
              return loop.rebuild() ? 0 : 3;
            }),
            0);
  EXPECT_TRUE(loop.rebuild());
}

}  // namespace
}  // namespace evix::test
