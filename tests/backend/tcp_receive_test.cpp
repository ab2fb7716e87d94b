#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <thread>

#include "backend/tcp_support.hpp"

namespace evix::test {
namespace {

using detail::CallId;

class TcpReceive : public TcpConformance {
 protected:
  static void send_all(Loop& on, TcpStream& stream, std::string_view text) {
    Outcome sent;
    stream.send(bytes_of(text), sent.callback());
    const KeepAlive waiting = on.keep_alive();
    ASSERT_TRUE(run_until(on, [&] { return sent.done(); }));
    ASSERT_TRUE(sent.ok()) << sent.message;
  }
  void send_all(TcpStream& stream, std::string_view text) { send_all(loop, stream, text); }
};
EVIX_OVER_BACKENDS(TcpReceive);

TEST_P(TcpReceive, OneBufferThenTheEndOnce) {
  Pair pair = make_pair();
  Outcome first;
  Outcome second;
  starting([&] { pair.server.receive(first.receive_callback()); });
  EXPECT_TRUE(pair.server.active());
  ASSERT_TRUE(pair.client.send_copy("hello").has_value());
  ASSERT_TRUE(until([&] { return first.done(); }));
  EXPECT_EQ(first.text, "hello");
  EXPECT_FALSE(pair.server.active());
  pair.client.close();
  starting([&] { pair.server.receive(second.receive_callback()); });
  ASSERT_TRUE(until([&] { return second.done(); }));
  settle();
  EXPECT_TRUE(second.ok());
  EXPECT_EQ(second.count, 0U);
  EXPECT_EQ(first.calls, 1);
}

TEST_P(TcpReceive, StartDeliversUntilTheEndOnce) {
  Pair pair = make_pair();
  Inbox inbox;
  starting([&] { pair.server.receive_start(inbox.callback()); });
  const std::string sent = pattern(300'000);
  send_all(pair.client, sent);
  pair.client.close();
  ASSERT_TRUE(until([&] { return inbox.over(); }));
  EXPECT_TRUE(rests());
  EXPECT_TRUE(same_bytes(inbox.text, sent));
  EXPECT_EQ(inbox.ends, 1);
  EXPECT_EQ(inbox.errors, 0);
  EXPECT_FALSE(pair.server.active());
}

TEST_P(TcpReceive, OneAtATime) {
  Pair pair = make_pair();
  std::array<std::byte, 8> bytes{};
  Outcome first;
  Outcome busy[2];
  starting([&] {
    pair.server.receive(first.receive_callback());
    pair.server.receive(busy[0].receive_callback());
    pair.server.receive_into(bytes, busy[1].count_callback());
  });
  ASSERT_TRUE(until([&] { return busy[0].done() && busy[1].done(); }));
  for (const Outcome& outcome : busy) {
    EXPECT_EQ(outcome.calls, 1);
    EXPECT_EQ(outcome.code, make_error_code(Errc::busy));
    EXPECT_EQ(outcome.message, "receive: the same operation is already in flight");
  }
  EXPECT_EQ(first.calls, 0);
  ASSERT_TRUE(pair.client.send_copy("x").has_value());
  ASSERT_TRUE(until([&] { return first.done(); }));
  EXPECT_EQ(first.text, "x");
}

TEST_P(TcpReceive, StartReplacesAnEarlierStart) {
  Pair pair = make_pair();
  Inbox before;
  Inbox after;
  pair.server.receive_start(before.callback());
  pair.server.receive_start(after.callback());
  ASSERT_TRUE(pair.client.send_copy("x").has_value());
  ASSERT_TRUE(until([&] { return !after.text.empty(); }));
  EXPECT_EQ(before.text, "");
  EXPECT_EQ(before.ends + before.errors, 0);
}

TEST_P(TcpReceive, IntoTheCallersMemory) {
  Pair pair = make_pair();
  std::array<char, 4> bytes{};
  Outcome received;
  starting([&] {
    pair.server.receive_into(std::as_writable_bytes(std::span(bytes)), received.count_callback());
  });
  ASSERT_TRUE(pair.client.send_copy("abcdef").has_value());
  ASSERT_TRUE(until([&] { return received.done(); }));
  EXPECT_EQ(received.count, 4U);
  EXPECT_EQ(std::string(bytes.data(), 4), "abcd");
  Outcome rest;
  pair.server.receive_into(std::as_writable_bytes(std::span(bytes)), rest.count_callback());
  ASSERT_TRUE(until([&] { return rest.done(); }));
  EXPECT_EQ(rest.count, 2U);
  EXPECT_EQ(std::string(bytes.data(), 2), "ef");
  pair.client.close();
  Outcome end;
  pair.server.receive_into(std::as_writable_bytes(std::span(bytes)), end.count_callback());
  ASSERT_TRUE(until([&] { return end.done(); }));
  EXPECT_TRUE(end.ok());
  EXPECT_EQ(end.count, 0U);
}

TEST_P(TcpReceive, IntoNothingIsInvalid) {
  Pair pair = make_pair();
  Outcome received;
  starting([&] { pair.server.receive_into({}, received.count_callback()); });
  ASSERT_TRUE(until([&] { return received.done(); }));
  EXPECT_EQ(received.calls, 1);
  EXPECT_EQ(received.code, std::errc::invalid_argument);
}

TEST_P(TcpReceive, StopKeepsUnreadBytes) {
  Pair pair = make_pair();
  Inbox before;
  starting([&] { pair.server.receive_start(before.callback()); });
  pair.server.receive_stop();
  pair.server.receive_stop();
  EXPECT_FALSE(pair.server.active());
  ASSERT_TRUE(pair.client.send_copy("kept").has_value());
  EXPECT_TRUE(rests());  // nobody reads: nobody is woken
  EXPECT_EQ(before.text, "");
  EXPECT_EQ(before.ends + before.errors, 0);
  Inbox after;
  starting([&] { pair.server.receive_start(after.callback()); });
  ASSERT_TRUE(until([&] { return !after.text.empty(); }));
  EXPECT_EQ(after.text, "kept");
}

TEST_P(TcpReceive, StopInsideTheCallbackThenStartLater) {
  Pair pair = make_pair();
  std::string text;
  int calls = 0;
  const auto receive = [&](Result<Buffer> result) {
    ASSERT_TRUE(result.has_value());
    ++calls;
    text += result->text();
    pair.server.receive_stop();
  };
  const std::string sent = pattern(700'000);
  Outcome done;
  pair.client.send(bytes_of(sent), done.callback());
  while (text.size() < sent.size()) {
    const int before = calls;
    pair.server.receive_start(receive);
    ASSERT_TRUE(until([&] { return calls > before; }));
    settle(3);
    ASSERT_EQ(calls, before + 1);  // no call after the stop
  }
  EXPECT_TRUE(same_bytes(text, sent));
}

TEST_P(TcpReceive, StopAndStartInsideTheCallback) {
  Pair pair = make_pair();
  std::string text;
  int ends = 0;
  struct Receiver {
    TcpStream& stream;
    std::string& text;
    int& ends;
    void operator()(Result<Buffer> result) {
      ASSERT_TRUE(result.has_value());
      if (result->empty()) {
        ++ends;
        return;
      }
      text += result->text();
      Receiver again{stream, text, ends};
      stream.receive_stop();
      stream.receive_start(again);
    }
  };
  pair.server.receive_start(Receiver{pair.server, text, ends});
  const std::string sent = pattern(500'000);
  Outcome done;
  pair.client.send(bytes_of(sent), [&](Result<void> result) {
    done.note(result);
    pair.client.close();
  });
  ASSERT_TRUE(until([&] { return ends > 0; }));
  EXPECT_TRUE(done.ok());
  EXPECT_TRUE(same_bytes(text, sent));
  EXPECT_EQ(ends, 1);
}

TEST_P(TcpReceive, ReceiveAgainInsideTheCallback) {
  Pair pair = make_pair();
  std::string text;
  bool ended = false;
  struct Receiver {
    TcpStream& stream;
    std::string& text;
    bool& ended;
    void operator()(Result<Buffer> result) {
      ASSERT_TRUE(result.has_value());
      text += result->text();
      ended = result->empty();
      if (!ended) stream.receive(Receiver{stream, text, ended});
    }
  };
  pair.server.receive(Receiver{pair.server, text, ended});
  const std::string sent = pattern(400'000);
  send_all(pair.client, sent);
  pair.client.close();
  ASSERT_TRUE(until([&] { return ended; }));
  EXPECT_TRUE(same_bytes(text, sent));
}

TEST_P(TcpReceive, PausedReadersOfEveryEndRest) {
  // Paused on: unread data, the peer's end, a reset. Nobody is interested, so nobody is woken.
  Pair data = make_pair();
  Pair end = make_pair();
  Pair reset = make_pair();
  Inbox inboxes[3];
  Pair* pairs[] = {&data, &end, &reset};
  for (int i = 0; i < 3; ++i) {
    pairs[i]->server.receive_start(inboxes[i].callback());
    settle(2);
    ASSERT_TRUE(pairs[i]->client.send_copy("x").has_value());
    ASSERT_TRUE(until([&] { return !inboxes[i].text.empty(); }));
    pairs[i]->server.receive_stop();
    ASSERT_TRUE(pairs[i]->client.send_copy("y").has_value());
  }
  end.client.close();
  reset.client.abort();
  EXPECT_TRUE(rests());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(inboxes[i].text, "x");
    EXPECT_FALSE(inboxes[i].over());
    pairs[i]->server.receive_start(inboxes[i].callback());
  }
  ASSERT_TRUE(until([&] { return inboxes[1].over() && inboxes[2].over(); }));
  EXPECT_EQ(inboxes[0].text, "xy");
  EXPECT_EQ(inboxes[1].text, "xy");
  EXPECT_EQ(inboxes[1].ends, 1);
  EXPECT_EQ(inboxes[2].text, "xy");
  EXPECT_EQ(inboxes[2].code, std::errc::connection_reset);
}

// ---- Ends and errors -------------------------------------------------------------------------

TEST_P(TcpReceive, TrapT053EndComesAfterAllBytes) {
  const std::string sent = pattern(scaled(1024 * 1024, 128 * 1024));
  Pair pair = make_pair();
  send_all(pair.client, sent);
  pair.client.close();
  std::array<char, 16> bytes{};
  std::string text;
  int pauses = 0;
  for (;;) {
    const bool pause = pauses < 3 && text.size() >= sent.size() / 4 * (pauses + 1);
    if (pause) {
      ++pauses;
      settle(50);
    }
    Outcome received;
    pair.server.receive_into(std::as_writable_bytes(std::span(bytes)), received.count_callback());
    ASSERT_TRUE(until([&] { return received.done(); }));
    ASSERT_TRUE(received.ok()) << received.message;
    if (received.count == 0) break;
    text.append(bytes.data(), received.count);
  }
  EXPECT_EQ(pauses, 3);
  EXPECT_TRUE(same_bytes(text, sent));
}

TEST_P(TcpReceive, TrapT053SmallBuffersOneATurn) {
  LoopOptions small = options();
  small.buffer_size = 16;
  Loop own(small);
  const std::string sent = pattern(scaled(1024 * 1024, 128 * 1024));
  Pair pair = make_pair(own);
  send_all(own, pair.client, sent);
  pair.client.close();
  std::string text;
  int ends = 0;
  std::uint64_t last_turn = 0;
  int pauses = 0;
  const auto receive = [&](Result<Buffer> result) {
    ASSERT_TRUE(result.has_value());
    if (result->empty()) {
      ++ends;
      EXPECT_EQ(text.size(), sent.size());
      return;
    }
    EXPECT_LE(result->size(), 16U);
    text += result->text();
    EXPECT_NE(own.counters().turns, last_turn);
    last_turn = own.counters().turns;
    pair.server.receive_stop();
  };
  while (ends == 0) {
    if (pauses < 3 && text.size() >= sent.size() / 4 * (pauses + 1)) {
      ++pauses;
      settle(own, 20);
    }
    pair.server.receive_start(receive);
    const std::size_t before = text.size();
    ASSERT_TRUE(until(own, [&] { return text.size() > before || ends > 0; }));
  }
  EXPECT_EQ(pauses, 3);
  EXPECT_EQ(ends, 1);
  EXPECT_TRUE(same_bytes(text, sent));
}

TEST_P(TcpReceive, TrapT059ResetComesAfterTheData) {
  enum class Reader { before, after, in_two };
  for (const Reader reader : {Reader::before, Reader::after, Reader::in_two}) {
    Pair pair = make_pair();
    Inbox inbox;
    if (reader == Reader::before) {
      pair.server.receive_start(inbox.callback());
      settle(2);
    }
    ASSERT_TRUE(pair.client.send_copy("12345").has_value());
    pair.client.abort();
    if (reader == Reader::in_two) {
      std::array<char, 3> bytes{};
      for (const std::string expected : {"123", "45"}) {
        Outcome part;
        pair.server.receive_into(std::as_writable_bytes(std::span(bytes)), part.count_callback());
        ASSERT_TRUE(until([&] { return part.done(); }));
        ASSERT_TRUE(part.ok()) << part.message;
        EXPECT_EQ(std::string(bytes.data(), part.count), expected);
        inbox.text += expected;
      }
    }
    const int handle = pair.server.native();
    if (reader != Reader::before) pair.server.receive_start(inbox.callback());
    ASSERT_TRUE(until([&] { return inbox.over(); }));
    settle();
    EXPECT_EQ(inbox.text, "12345");
    EXPECT_EQ(inbox.ends, 0);
    EXPECT_EQ(inbox.errors, 1);
    EXPECT_EQ(inbox.code, std::errc::connection_reset);
    EXPECT_EQ(inbox.message,
              "receive descriptor " + std::to_string(handle) + ": connection reset by peer");
    EXPECT_FALSE(pair.server.active());
    if (reader == Reader::after) {
      EXPECT_TRUE(rests());
    }
  }
}

TEST_P(TcpReceive, TrapT058WriteErrorHidesNoData) {
  const std::string sent = pattern(256 * 1024);
  const std::uint64_t rounds = scaled(2000, 100);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    // All of it has to be at the reader before the close: what the closed end still had to send
    // would be lost with the reset that the next write brings.
    Pair pair = make_pair(loop, 1024 * 1024);
    send_all(pair.client, sent);
    while (!is_sim() && outstanding(pair.client, false) > 0) ::poll(nullptr, 0, 1);
    pair.client.close();
    // Writing until it fails; only then reading.
    bool failed = false;
    ASSERT_TRUE(until([&] {
      failed = failed || !pair.server.send_copy("ping").has_value();
      return failed;
    }));
    Inbox inbox;
    pair.server.receive_start(inbox.callback());
    ASSERT_TRUE(until([&] { return inbox.over(); }));
    ASSERT_TRUE(same_bytes(inbox.text, sent)) << "round " << round;
    ASSERT_EQ(inbox.ends + inbox.errors, 1);
    if (inbox.errors != 0) {
      ASSERT_EQ(inbox.code, std::errc::connection_reset);
    }
  }
}

TEST_P(TcpReceive, FailedReceiveIsToldOnceAndEndsReceiving) {
  FaultyLoop faulty(GetParam());
  Pair pair = make_pair(*faulty.loop);
  faulty.calls->fail(CallId::receive, 1, EIO);
  Inbox inbox;
  starting([&] { pair.server.receive_start(inbox.callback()); });
  ASSERT_TRUE(pair.client.send_copy("late").has_value());
  ASSERT_TRUE(until(*faulty.loop, [&] { return inbox.over(); }));
  settle(*faulty.loop);
  EXPECT_EQ(inbox.errors, 1);
  EXPECT_EQ(inbox.code, std::errc::io_error);
  EXPECT_EQ(inbox.text, "");
  EXPECT_FALSE(pair.server.active());
  EXPECT_TRUE(rests(*faulty.loop));
  // Nothing is lost: the bytes are still there.
  Outcome after;
  pair.server.receive(after.receive_callback());
  ASSERT_TRUE(until(*faulty.loop, [&] { return after.done(); }));
  EXPECT_EQ(after.text, "late");
}

TEST_P(TcpReceive, InterruptedAndSpuriousCallsAreRepeated) {
  FaultyLoop faulty(GetParam());
  Pair pair = make_pair(*faulty.loop);
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  const std::string sent = pattern(50'000);
  faulty.calls->fail(CallId::receive, 1, EINTR, 1000);
  ASSERT_TRUE(pair.client.send_copy(sent).has_value());
  ASSERT_TRUE(until(*faulty.loop, [&] { return inbox.text.size() == sent.size(); }));
  EXPECT_EQ(faulty.calls->injected(CallId::receive), 1000U);
  EXPECT_TRUE(same_bytes(inbox.text, sent));
}

TEST_P(TcpReceive, UrgentDataLosesNoEdge) {
  EVIX_SKIP_ON(BackendKind::sim, "urgent data needs a peer of the real kernel");
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
  TcpStream server;
  listener.accept([&](Result<TcpStream> accepted) { server = std::move(accepted).value(); });
  const RawSocket peer = RawSocket::connected_to(*listener.local_address());
  ASSERT_TRUE(until([&] { return static_cast<bool>(server); }));
  Inbox inbox;
  server.receive_start(inbox.callback());
  settle(2);
  std::string expected;
  for (int round = 0; round < 100; ++round) {
    const std::string before = "a" + std::to_string(round);
    const std::string after = "b" + std::to_string(round);
    ASSERT_EQ(::send(peer.get(), before.data(), before.size(), 0), ssize_t(before.size()));
    ASSERT_EQ(::send(peer.get(), "!", 1, MSG_OOB), 1);
    if (round % 2 == 0) settle(2);
    ASSERT_EQ(::send(peer.get(), after.data(), after.size(), 0), ssize_t(after.size()));
    expected += before + after;
    ASSERT_TRUE(until([&] { return inbox.text.size() >= expected.size(); })) << round;
  }
  EXPECT_EQ(inbox.text, expected);
  EXPECT_EQ(inbox.errors, 0);
}

// ---- Deadlines -------------------------------------------------------------------------------

TEST_P(TcpReceive, TimeoutOfOneReceive) {
  Pair pair = make_pair();
  pair.server.set_receive_timeout(50ms);
  EXPECT_EQ(loop.counters().timers_armed, 0U);  // no receive, no timer
  Outcome received;
  const Duration took = elapsed(loop, [&] {
    starting([&] { pair.server.receive(received.receive_callback()); });
    ASSERT_TRUE(until([&] { return received.done(); }));
  });
  expect_time(took, 50ms);
  EXPECT_EQ(received.calls, 1);
  EXPECT_EQ(received.code, std::errc::timed_out);
  EXPECT_FALSE(pair.server.active());
  // The stream itself is well.
  Outcome after;
  pair.server.receive(after.receive_callback());
  ASSERT_TRUE(pair.client.send_copy("x").has_value());
  ASSERT_TRUE(until([&] { return after.done(); }));
  EXPECT_EQ(after.text, "x");
  EXPECT_EQ(loop.counters().timers_armed, 0U);
}

TEST_P(TcpReceive, TimeoutOfReceiveInto) {
  Pair pair = make_pair();
  pair.server.set_receive_timeout(50ms);
  std::array<std::byte, 4> bytes{};
  Outcome received;
  const Duration took = elapsed(loop, [&] {
    starting([&] { pair.server.receive_into(bytes, received.count_callback()); });
    ASSERT_TRUE(until([&] { return received.done(); }));
  });
  expect_time(took, 50ms);
  EXPECT_EQ(received.calls, 1);
  EXPECT_EQ(received.code, std::errc::timed_out);
  EXPECT_EQ(loop.counters().timers_armed, 0U);
}

TEST_P(TcpReceive, TimeoutCountsFromEachBuffer) {
  Pair pair = make_pair();
  pair.server.set_receive_timeout(200ms);
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  Timer ticks(loop);
  int sent = 0;
  ticks.every(80ms, [&] {
    ASSERT_TRUE(pair.client.send_copy("x").has_value());
    if (++sent == 5) ticks.stop();
  });
  const Duration took = elapsed(loop, [&] { ASSERT_TRUE(until([&] { return inbox.over(); })); });
  if (is_sim()) {
    EXPECT_EQ(took, Duration(5 * 80ms + 200ms));
    EXPECT_EQ(inbox.text, "xxxxx");
  } else {
    EXPECT_GE(took, Duration(200ms));
  }
  EXPECT_EQ(inbox.errors, 1);
  EXPECT_EQ(inbox.code, std::errc::timed_out);
  EXPECT_FALSE(pair.server.active());
  ticks.stop();
  settle();
  EXPECT_EQ(inbox.errors, 1);
}

TEST_P(TcpReceive, TimeoutSetWhileReceivingAndTakenBack) {
  Pair pair = make_pair();
  Outcome received;
  pair.server.receive(received.receive_callback());
  pair.server.set_receive_timeout(30ms);
  pair.server.set_receive_timeout(forever);
  ASSERT_EQ(loop.run_for(60ms), 0);
  EXPECT_EQ(received.calls, 0);
  EXPECT_EQ(loop.counters().timers_armed, 0U);
  pair.server.set_receive_timeout(30ms);
  ASSERT_TRUE(until([&] { return received.done(); }));
  EXPECT_EQ(received.code, std::errc::timed_out);
}

TEST_P(TcpReceive, StopTakesTheTimeoutAlong) {
  Pair pair = make_pair();
  pair.server.set_receive_timeout(20ms);
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  settle(2);
  pair.server.receive_stop();
  EXPECT_EQ(loop.counters().timers_armed, 0U);
  const KeepAlive waiting = loop.keep_alive();
  ASSERT_EQ(loop.run_for(60ms), 0);
  EXPECT_FALSE(inbox.over());
}

TEST_P(TcpReceive, HandleDestroyedInTheTimeoutsCallback) {
  Pair pair = make_pair();
  auto server = std::make_unique<TcpStream>(std::move(pair.server));
  server->set_receive_timeout(10ms);
  const auto witness = std::make_shared<int>(0);
  server->receive_start([&server, witness](Result<Buffer> result) {
    EXPECT_FALSE(result.has_value());
    server.reset();
    ++*witness;
  });
  ASSERT_TRUE(until([&] { return *witness > 0; }));
  settle();
  EXPECT_EQ(*witness, 1);
  EXPECT_EQ(witness.use_count(), 1);
}

// ---- Buffers ---------------------------------------------------------------------------------

TEST_P(TcpReceive, LeasesOutliveTheirCallback) {
  Pair pair = make_pair();
  std::vector<Buffer> kept;
  pair.server.receive_start([&](Result<Buffer> result) {
    ASSERT_TRUE(result.has_value());
    if (!result->empty()) kept.push_back(std::move(result).value());
  });
  const std::string sent = pattern(1'000'000);
  Outcome done;
  pair.client.send(bytes_of(sent), done.callback());
  const auto size = [&] {
    std::size_t sum = 0;
    for (const Buffer& buffer : kept) sum += buffer.size();
    return sum;
  };
  ASSERT_TRUE(until([&] { return size() == sent.size(); }));
  std::string text;
  for (const Buffer& buffer : kept) text += buffer.text();
  EXPECT_TRUE(same_bytes(text, sent));
  EXPECT_GT(kept.size(), 1U);
}

TEST_P(TcpReceive, LeasesMayDieOnOtherThreads) {
  Pair pair = make_pair();
  const std::string sent = pattern(2'000'000);
  std::size_t received = 0;
  std::vector<std::thread> threads;
  pair.server.receive_start([&](Result<Buffer> result) {
    ASSERT_TRUE(result.has_value());
    const std::string_view expected = std::string_view(sent).substr(received, result->size());
    EXPECT_TRUE(same_bytes(result->text(), expected));
    received += result->size();
    threads.emplace_back([buffer = std::move(result).value()]() mutable { buffer.reset(); });
  });
  Outcome done;
  pair.client.send(bytes_of(sent), done.callback());
  const testing::AssertionResult arrived = until([&] { return received == sent.size(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(arrived);
}

TEST_P(TcpReceive, LeasesOutliveTheirLoop) {
  Buffer kept;
  {
    Loop own(options());
    Pair pair = make_pair(own);
    pair.server.receive([&](Result<Buffer> result) { kept = std::move(result).value(); });
    ASSERT_TRUE(pair.client.send_copy("after the end").has_value());
    ASSERT_TRUE(until(own, [&] { return !kept.empty(); }));
  }
  EXPECT_EQ(kept.text(), "after the end");
  std::thread([buffer = std::move(kept)] { EXPECT_EQ(buffer.text(), "after the end"); }).join();
}

TEST_P(TcpReceive, SizeOfALeaseIsTheLoops) {
  LoopOptions sized = options();
  sized.buffer_size = 1000;
  Loop own(sized);
  Pair pair = make_pair(own);
  std::size_t largest = 0;
  std::string text;
  pair.server.receive_start([&](Result<Buffer> result) {
    largest = std::max(largest, result->size());
    text += result->text();
  });
  const std::string sent = pattern(10'000);
  ASSERT_TRUE(pair.client.send_copy(sent).has_value());
  ASSERT_TRUE(until(own, [&] { return text.size() == sent.size(); }));
  EXPECT_EQ(largest, 1000U);
  EXPECT_TRUE(same_bytes(text, sent));
}

// ---- Handles inside their callbacks ----------------------------------------------------------

TEST_P(TcpReceive, DestroyedInItsOwnCallback) {
  Pair pair = make_pair();
  auto server = std::make_unique<TcpStream>(std::move(pair.server));
  const auto witness = std::make_shared<int>(0);
  server->receive_start([&server, witness](Result<Buffer> result) {
    EXPECT_EQ(result->text(), "x");
    server.reset();
    ++*witness;  // the callback's own storage lives until it returns
  });
  ASSERT_TRUE(pair.client.send_copy("x").has_value());
  Inbox end;
  pair.client.receive_start(end.callback());
  ASSERT_TRUE(until([&] { return *witness > 0 && end.over(); }));
  settle();
  EXPECT_EQ(*witness, 1);
  EXPECT_EQ(witness.use_count(), 1);
  EXPECT_EQ(end.ends, 1);
}

TEST_P(TcpReceive, MovedInItsOwnCallback) {
  Pair pair = make_pair();
  TcpStream moved;
  std::string text;
  pair.server.receive_start([&](Result<Buffer> result) {
    text += result->text();
    if (pair.server) moved = std::move(pair.server);
  });
  ASSERT_TRUE(pair.client.send_copy("a").has_value());
  ASSERT_TRUE(until([&] { return text == "a"; }));
  ASSERT_TRUE(pair.client.send_copy("b").has_value());
  ASSERT_TRUE(until([&] { return text == "ab"; }));
  EXPECT_FALSE(pair.server);
  EXPECT_TRUE(moved.active());
}

TEST_P(TcpReceive, OtherStreamDestroyedInTheSameBatch) {
  // 64 streams are ready in one wait; the first callback destroys all the others.
  std::vector<Pair> pairs;
  int calls = 0;
  for (int i = 0; i < 64; ++i) pairs.push_back(make_pair());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    pairs[i].server.receive_start([&, i](Result<Buffer> result) {
      EXPECT_TRUE(result.has_value());
      ++calls;
      for (std::size_t other = 0; other < pairs.size(); ++other) {
        if (other != i) pairs[other].server = TcpStream();
      }
    });
  }
  settle(2);
  for (Pair& pair : pairs) ASSERT_TRUE(pair.client.send_copy("x").has_value());
  settle();
  EXPECT_EQ(calls, 1);
}

// ---- Lengths above 2 GiB ---------------------------------------------------------------------

/** Receives and sends that succeed without touching the bytes. */
class HugeCalls final : public detail::FaultCalls {
 public:
  using FaultCalls::FaultCalls;
  std::int64_t receive(int fd, void* bytes, std::size_t size) noexcept override {
    if (size <= 1024 * 1024) return FaultCalls::receive(fd, bytes, size);
    largest = std::max(largest, size);
    return static_cast<std::int64_t>(size);
  }
  std::int64_t send(int fd, const void* bytes, std::size_t size) noexcept override {
    if (!pretend) return FaultCalls::send(fd, bytes, size);
    largest = std::max(largest, size);
    sent += size;
    return static_cast<std::int64_t>(size);
  }
  bool pretend = false;
  std::size_t largest = 0;
  std::size_t sent = 0;
};

constexpr std::size_t kernel_size_max = 0x7ffff000;  // read(2), "NOTES"
constexpr std::size_t huge_sizes[] = {(1ULL << 31) - 1, 1ULL << 31, (1ULL << 32) - 1, 1ULL << 32,
                                      (1ULL << 32) + 1};

class TcpHuge : public TcpConformance {
 protected:
  void SetUp() override {
    TcpConformance::SetUp();
    constexpr std::size_t size = 5ULL << 30;
    void* memory =
        mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    reserve_ = {static_cast<std::byte*>(memory), size};
  }
  void TearDown() override { munmap(reserve_.data(), reserve_.size()); }
  std::span<std::byte> reserve_;
};
EVIX_OVER_BACKENDS(TcpHuge);

TEST_P(TcpHuge, TrapT070LengthsAboveTwoGibibytes) {
  FaultyLoopOf<HugeCalls> faulty(GetParam());
  Loop& own = *faulty.loop;
  HugeCalls& calls = *faulty.calls;
  Pair pair = make_pair(own);
  for (const std::size_t size : huge_sizes) {
    Outcome received;
    calls.largest = 0;
    pair.server.receive_into(reserve_.first(size), received.count_callback());
    ASSERT_TRUE(pair.client.send_copy("x").has_value());
    ASSERT_TRUE(until(own, [&] { return received.done(); }));
    ASSERT_TRUE(received.ok()) << received.message;
    EXPECT_EQ(received.count, std::min(size, kernel_size_max));
    EXPECT_EQ(calls.largest, std::min(size, kernel_size_max));
    Outcome drained;
    pair.server.receive(drained.receive_callback());
    ASSERT_TRUE(until(own, [&] { return drained.done(); }));
  }
  calls.pretend = true;
  for (const std::size_t size : huge_sizes) {
    Outcome sent;
    calls.largest = calls.sent = 0;
    starting([&] { pair.client.send(reserve_.first(size), sent.callback()); });
    ASSERT_TRUE(until(own, [&] { return sent.done(); }));
    EXPECT_TRUE(sent.ok()) << sent.message;
    EXPECT_EQ(calls.sent, size);
    EXPECT_EQ(calls.largest, std::min(size, kernel_size_max));
    EXPECT_EQ(pair.client.send_queue_bytes(), 0U);
    calls.sent = 0;
    const Result<std::size_t> tried = pair.client.try_send(reserve_.first(size));
    ASSERT_TRUE(tried.has_value());
    EXPECT_EQ(*tried, std::min(size, kernel_size_max));
  }
}

}  // namespace
}  // namespace evix::test
