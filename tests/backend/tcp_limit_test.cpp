#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/fork_support.hpp"
#include "backend/tcp_support.hpp"
#include "support/descriptors.hpp"

/** @file
 * LoopOptions::connections_max: what listeners do at the limit.
 */
namespace evix::test {
namespace {

/** A listener of a loop with a limit, and clients on another loop that is run beside it. */
class TcpLimit : public TcpConformance {
 protected:
  static LoopOptions limited(std::size_t connections_max) {
    LoopOptions made = options();
    made.connections_max = connections_max;
    return made;
  }

  /** What an accept_start() was told. */
  struct Door {
    TcpListener listener;
    std::vector<std::unique_ptr<TcpStream>> streams;
    std::size_t accepted = 0;
    int full = 0;
    int errors = 0;

    explicit Door(Loop& loop) : listener(loop) {
      EXPECT_TRUE(listener.listen("127.0.0.1:0"));
      start();
    }
    void start() {
      listener.accept_start([this](Result<TcpStream> stream) {
        if (stream) {
          ++accepted;
          streams.push_back(std::make_unique<TcpStream>(std::move(stream).value()));
        } else if (stream.error() == Errc::connections_full) {
          ++full;
        } else {
          ++errors;
        }
      });
    }
  };

  /** A listener whose accept() waits for its one connection. */
  struct OneAccept {
    TcpListener listener;
    TcpStream accepted;
    int calls = 0;

    explicit OneAccept(Loop& loop) : listener(loop) {
      EXPECT_TRUE(listener.listen("127.0.0.1:0"));
      listener.accept([this](Result<TcpStream> stream) {
        ++calls;
        ASSERT_TRUE(stream);
        accepted = std::move(stream).value();
      });
    }
  };

  /** Connects as the kernel's queue lets them, accepted or not. */
  void connect(Loop& on, const TcpListener& listener, int count) {
    for (int i = 0; i < count; ++i) {
      clients_.push_back(std::make_unique<TcpStream>(on));
      clients_.back()->connect(*listener.local_address(), [this](const Result<void>& result) {
        EXPECT_TRUE(result.has_value());
        ++connected;
      });
    }
    const int wanted = connected_before_ += count;
    ASSERT_TRUE(until(on, [&] { return connected == wanted; }));
    settle(on);
  }

  int connected = 0;

 private:
  int connected_before_ = 0;
  std::vector<std::unique_ptr<TcpStream>> clients_;
};
EVIX_OVER_BACKENDS(TcpLimit);

TEST_P(TcpLimit, AtTheLimitTheOthersWaitAndItIsToldOnce) {
  Loop own(limited(16));
  Door door(own);
  connect(own, door.listener, 15);
  EXPECT_EQ(door.accepted, 15U);
  EXPECT_EQ(door.full, 0);
  connect(own, door.listener, 10);
  EXPECT_EQ(door.accepted, 16U);
  EXPECT_EQ(own.counters().connections, 16U);
  EXPECT_EQ(door.full, 1);
  EXPECT_TRUE(door.listener.active());
  EXPECT_TRUE(rests(own));
  // One goes, one comes; the limit is reached again by the one and is not told again.
  door.streams.front()->close();
  ASSERT_TRUE(until(own, [&] { return door.accepted == 17; }));
  settle(own);
  EXPECT_EQ(door.accepted, 17U);
  EXPECT_EQ(own.counters().connections, 16U);
  EXPECT_EQ(door.full, 1);
  // An eighth goes at once: another time.
  door.streams[1]->close();
  door.streams[2].reset();
  ASSERT_TRUE(until(own, [&] { return door.full == 2; }));
  EXPECT_EQ(door.accepted, 19U);
  EXPECT_EQ(own.counters().connections, 16U);
  EXPECT_EQ(door.errors, 0);
}

TEST_P(TcpLimit, EveryoneIsServedInTheEnd) {
  Loop own(limited(2));
  Door door(own);
  connect(own, door.listener, 30);
  while (door.accepted < 30) {
    const std::size_t before = door.accepted;
    ASSERT_LE(own.counters().connections, 2U);
    ASSERT_FALSE(door.streams.empty());
    door.streams.front()->abort();
    door.streams.erase(door.streams.begin());
    ASSERT_TRUE(until(own, [&] { return door.accepted > before; }));
  }
  EXPECT_EQ(door.accepted, 30U);
  door.streams.clear();
  EXPECT_EQ(own.counters().connections, 0U);
  EXPECT_EQ(door.errors, 0);
}

TEST_P(TcpLimit, ListenersOfALoopShareIt) {
  Loop own(limited(8));
  Door first(own);
  Door second(own);
  connect(own, first.listener, 6);
  connect(own, second.listener, 6);
  EXPECT_EQ(first.accepted, 6U);
  EXPECT_EQ(second.accepted, 2U);
  EXPECT_EQ(first.full, 1);
  EXPECT_EQ(second.full, 1);
  connect(own, first.listener, 1);
  first.streams.clear();
  ASSERT_TRUE(until(own, [&] { return first.accepted + second.accepted == 13; }));
  EXPECT_EQ(own.counters().connections, 7U);
}

TEST_P(TcpLimit, OtherStreamsDoNotCount) {
  Loop own(limited(1));
  Pair pair = make_pair(own);  // by accept(): this is the one
  EXPECT_EQ(own.counters().connections, 1U);
  pair.client.close();
  EXPECT_EQ(own.counters().connections, 1U);
  pair.server.close();
  EXPECT_EQ(own.counters().connections, 0U);
}

TEST_P(TcpLimit, AcceptOfOneWaitsWithoutAWord) {
  Loop own(limited(1));
  Pair pair = make_pair(own);
  OneAccept one(own);
  connect(own, one.listener, 1);
  EXPECT_EQ(one.calls, 0);
  EXPECT_TRUE(one.listener.active());
  pair.server.close();
  ASSERT_TRUE(until(own, [&] { return one.calls == 1; }));
  settle(own);
  EXPECT_EQ(one.calls, 1);
  EXPECT_FALSE(one.listener.active());
}

TEST_P(TcpLimit, AcceptOfOneIsWokenAlsoAfterOthersWereClosed) {
  Loop own(limited(1));
  Pair pair = make_pair(own);
  OneAccept one(own);
  connect(own, one.listener, 1);
  pair.client.close();  // does not count
  settle(own);
  EXPECT_EQ(one.calls, 0);
  pair.server.close();
  ASSERT_TRUE(until(own, [&] { return one.calls == 1; }));
}

TEST_P(TcpLimit, AcceptOfOneInTheCallbackAtTheLimitIsCalledOnce) {
  Loop own(limited(1));
  TcpListener listener(own);
  ASSERT_TRUE(listener.listen("127.0.0.1:0"));
  std::vector<TcpStream> streams;
  int calls = 0;
  listener.accept_start([&](Result<TcpStream> first) {
    ASSERT_TRUE(first);
    streams.push_back(std::move(first).value());
    listener.accept([&](Result<TcpStream> second) {
      ++calls;
      ASSERT_TRUE(second) << second.error().message();
      streams.push_back(std::move(second).value());
    });
  });
  connect(own, listener, 3);
  EXPECT_EQ(streams.size(), 1U);
  EXPECT_EQ(calls, 0);
  streams.front().close();
  ASSERT_TRUE(until(own, [&] { return calls == 1; }));
  streams.back().close();
  settle(own);
  EXPECT_EQ(calls, 1);
}

TEST_P(TcpLimit, NotToldWhenThereIsRoomAgain) {
  Loop own(limited(1));
  TcpListener listener(own);
  int accepted = 0;
  ASSERT_TRUE(listener.listen("127.0.0.1:0", [&](const Result<TcpStream>& stream) {
    EXPECT_TRUE(stream.has_value());  // and is closed with its handle
    ++accepted;
  }));
  connect(own, listener, 20);
  ASSERT_TRUE(until(own, [&] { return accepted == 20; }));
  EXPECT_EQ(own.counters().connections, 0U);
}

TEST_P(TcpLimit, RestartedOnTheWordItIsNotToldAgain) {
  Loop own(limited(1));
  Door door(own);
  connect(own, door.listener, 2);
  EXPECT_EQ(door.full, 1);
  for (int times = 0; times < 3; ++times) {
    door.start();
    settle(own);
  }
  EXPECT_EQ(door.full, 1);
  EXPECT_TRUE(rests(own));
  door.streams.clear();
  ASSERT_TRUE(until(own, [&] { return door.accepted == 2; }));
  ASSERT_TRUE(until(own, [&] { return door.full == 2; }));
}

TEST_P(TcpLimit, ClosesInEachTurnDoNotPutItOff) {
  EVIX_SKIP_ON(BackendKind::sim, "needs real descriptors");
  Loop own(limited(16));
  Door door(own);
  connect(own, door.listener, 20);
  EXPECT_EQ(door.accepted, 16U);
  // Something that does not count is closed in each turn, while its events are dispatched.
  const Pipe pipe;
  pipe.put();
  int turns = 0;
  Watcher watcher(own);
  ASSERT_TRUE(watcher.start(pipe.read_end(), Ready::readable, [&](Ready) {
    ++turns;
    TcpListener other(own);
    ASSERT_TRUE(other.listen("127.0.0.1:0"));
  }));
  door.streams.front()->close();
  while (door.accepted == 16 && turns < 1000) own.run_once();
  EXPECT_EQ(door.accepted, 17U);
  EXPECT_LT(turns, 1000);
}

TEST_P(TcpLimit, ListenersGetFreePlacesInTurn) {
  Loop own(limited(1));
  Door doors[] = {Door(own), Door(own), Door(own)};
  for (Door& door : doors) connect(own, door.listener, 8);
  const auto all = [&] { return doors[0].accepted + doors[1].accepted + doors[2].accepted; };
  ASSERT_TRUE(until(own, [&] { return all() == 1; }));
  for (std::size_t round = 2; round <= 24; ++round) {
    for (Door& door : doors) door.streams.clear();
    ASSERT_TRUE(until(own, [&] { return all() == round; }));
    const auto [least, most] =
        std::minmax({doors[0].accepted, doors[1].accepted, doors[2].accepted});
    EXPECT_LE(most - least, 1U) << round;
  }
}

TEST_P(TcpLimit, OneThatStopsGivesItsTurnToTheNext) {
  Loop own(limited(1));
  Door doors[] = {Door(own), Door(own), Door(own)};
  connect(own, doors[0].listener, 1);
  connect(own, doors[2].listener, 1);
  doors[0].streams.clear();  // the second one is to look first
  doors[1].listener.accept_stop();
  ASSERT_TRUE(until(own, [&] { return doors[2].accepted == 1; }));
}

TEST_P(TcpLimit, WhatWaitsTakesNoDescriptors) {
  EVIX_SKIP_ON(BackendKind::sim, "its sockets are no descriptors");
  Loop own(limited(2));
  Door door(own);
  connect(own, door.listener, 2);
  settle(own);
  const std::size_t before = open_descriptors();
  std::vector<RawSocket> clients;
  for (int count = 0; count < 30; ++count) {
    clients.push_back(RawSocket::connected_to(*door.listener.local_address()));
  }
  settle(own);
  EXPECT_EQ(open_descriptors(), before + clients.size());
  EXPECT_EQ(door.accepted, 2U);
}

TEST_P(TcpLimit, StopAndCloseWhileFull) {
  Loop own(limited(1));
  Door door(own);
  connect(own, door.listener, 2);
  EXPECT_EQ(door.full, 1);
  door.listener.accept_stop();
  EXPECT_FALSE(door.listener.active());
  door.streams.clear();
  settle(own);
  EXPECT_EQ(door.accepted, 1U);
  door.start();  // and there is room
  ASSERT_TRUE(until(own, [&] { return door.accepted == 2; }));
  ASSERT_TRUE(until(own, [&] { return door.full == 2; }));
  door.listener.accept_stop();
  door.start();  // full from the start
  settle(own);
  EXPECT_EQ(door.full, 2);
  door.listener.close();
  door.streams.clear();
  settle(own);
  EXPECT_EQ(door.accepted, 2U);
  EXPECT_EQ(door.errors, 0);
}

TEST_P(TcpLimit, ListenerDiesBeforeItIsTold) {
  Loop own(limited(1));
  Door door(own);
  connect(own, door.listener, 1);
  auto late = std::make_unique<Door>(own);  // full from the start: its word is queued
  late.reset();
  settle(own);
  auto dying = std::make_unique<TcpListener>(own);
  ASSERT_TRUE(dying->listen("127.0.0.1:0", [&](const Result<TcpStream>& stream) {
    EXPECT_FALSE(stream.has_value());
    dying.reset();  // inside the word
  }));
  ASSERT_TRUE(until(own, [&] { return dying == nullptr; }));
  EXPECT_EQ(own.counters().connections, 1U);
}

TEST_P(TcpLimit, ZeroIsNoLimit) {
  Loop own(limited(0));
  Door door(own);
  connect(own, door.listener, 3);
  EXPECT_EQ(door.accepted, 3U);
  EXPECT_EQ(door.full, 0);
}

}  // namespace
}  // namespace evix::test
