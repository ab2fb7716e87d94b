#include <algorithm>
#include <array>

#include "backend/tcp_support.hpp"

namespace evix::test {
namespace {

class TcpClose : public TcpConformance {};
EVIX_OVER_BACKENDS(TcpClose);

TEST_P(TcpClose, EndsEveryOperationThenCompletesLast) {
  Pair pair = make_pair();
  stuff(pair.client);
  std::vector<std::string> order;
  std::vector<std::error_code> codes;
  const auto note = [&](const char* what, const auto& result) {
    EXPECT_EQ(starts_on_stack, 0);
    order.emplace_back(what);
    codes.push_back(result ? std::error_code() : result.error().code());
  };
  int closed = 0;
  starting([&] {
    pair.client.receive_start([&](const Result<Buffer>& result) { note("receive", result); });
    pair.client.send(bytes_of("a"), [&](const Result<void>& result) { note("send a", result); });
    pair.client.send(bytes_of("b"), [&](const Result<void>& result) { note("send b", result); });
    pair.client.shutdown_send([&](const Result<void>& result) { note("shutdown", result); });
    pair.client.close([&] {
      ++closed;
      EXPECT_EQ(order.size(), 4U);
    });
  });
  EXPECT_TRUE(pair.client.closed());
  EXPECT_FALSE(pair.client.connected());
  EXPECT_FALSE(pair.client.active());
  EXPECT_EQ(pair.client.native(), no_handle);  // released before close() returned
  EXPECT_EQ(pair.client.send_queue_bytes(), 0U);
  ASSERT_TRUE(until([&] { return closed > 0; }));
  settle();
  EXPECT_EQ(closed, 1);
  std::ranges::sort(order);
  EXPECT_EQ(order, (std::vector<std::string>{"receive", "send a", "send b", "shutdown"}));
  for (const std::error_code& code : codes) EXPECT_EQ(code, std::errc::operation_canceled);
}

TEST_P(TcpClose, CancelsReceiveInto) {
  Pair pair = make_pair();
  std::array<std::byte, 8> bytes{};
  Outcome received;
  starting([&] {
    pair.server.receive_into(bytes, received.count_callback());
    pair.server.close();
  });
  settle();
  EXPECT_EQ(received.calls, 1);
  EXPECT_EQ(received.code, std::errc::operation_canceled);
}

TEST_P(TcpClose, InsideTheReceiveCallbackEndsTheSeriesOnce) {
  Pair pair = make_pair();
  int buffers = 0;
  int canceled = 0;
  pair.server.receive_start([&](const Result<Buffer>& result) {
    if (result) {
      ++buffers;
      pair.server.close();
    } else {
      ++canceled;
      EXPECT_EQ(result.error().code(), std::errc::operation_canceled);
    }
  });
  ASSERT_TRUE(pair.client.send_copy("x").has_value());
  ASSERT_TRUE(until([&] { return buffers > 0; }));
  settle();
  EXPECT_EQ(buffers, 1);
  EXPECT_EQ(canceled, 1);
}

TEST_P(TcpClose, InsideOtherCallbacks) {
  enum class In { receive_once, send, shutdown, close, mark };
  for (const In in : {In::receive_once, In::send, In::shutdown, In::close, In::mark}) {
    Pair pair = make_pair();
    TcpStream& stream = pair.client;
    int calls = 0;
    Outcome closed;
    const auto close = [&] {
      ++calls;
      stream.close(closed.closed_callback());
      EXPECT_TRUE(stream.closed());
    };
    switch (in) {
      case In::receive_once:
        stream.receive([&](const Result<Buffer>&) { close(); });
        ASSERT_TRUE(pair.server.send_copy("x").has_value());
        break;
      case In::send:
        stream.send(bytes_of("x"), [&](const Result<void>&) { close(); });
        break;
      case In::shutdown:
        stream.shutdown_send([&](const Result<void>&) { close(); });
        break;
      case In::close:
        stream.close([&] { close(); });
        break;
      case In::mark: {
        stuff(stream);
        WaterMarks marks;
        marks.high_bytes = 1;
        stream.set_water_marks(marks, [&](WaterMark) {
          if (calls == 0) close();
        });
        ASSERT_TRUE(stream.send_copy("x").has_value());
        break;
      }
    }
    ASSERT_TRUE(until([&] { return closed.done(); }));
    settle();
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(closed.calls, 1);
  }
}

TEST_P(TcpClose, TwiceDoesNothingButTellsEachCaller) {
  Pair pair = make_pair();
  Outcome first;
  Outcome second;
  starting([&] {
    pair.client.close(first.closed_callback());
    pair.client.close();
    pair.client.close(second.closed_callback());
    pair.client.close_gracefully();
    pair.client.abort();
  });
  settle();
  EXPECT_EQ(first.calls, 1);
  EXPECT_EQ(second.calls, 1);
  EXPECT_EQ(loop.run(), 0);
}

TEST_P(TcpClose, OperationsAfterwardsAreClosed) {
  Pair pair = make_pair();
  pair.client.close();
  std::array<std::byte, 4> bytes{};
  Outcome outcomes[7];
  starting([&] {
    pair.client.receive(outcomes[0].receive_callback());
    pair.client.receive_start(outcomes[1].receive_callback());
    pair.client.receive_into(bytes, outcomes[2].count_callback());
    pair.client.send(bytes_of("x"), outcomes[3].callback());
    pair.client.send(Buffer(), outcomes[4].callback());
    pair.client.shutdown_send(outcomes[5].callback());
    pair.client.connect("127.0.0.1:1", outcomes[6].callback());
  });
  const std::error_code closed = make_error_code(Errc::closed);
  EXPECT_EQ(pair.client.send_copy("x").error().code(), closed);
  EXPECT_EQ(pair.client.try_send(bytes_of("x")).error().code(), closed);
  EXPECT_EQ(pair.client.set_no_delay(true).error().code(), closed);
  EXPECT_EQ(pair.client.set_keep_alive(10s).error().code(), closed);
  EXPECT_EQ(pair.client.local_address().error().code(), closed);
  EXPECT_EQ(pair.client.peer_address().error().code(), closed);
  pair.client.receive_stop();
  pair.client.set_receive_timeout(1s);
  pair.client.set_send_timeout(1s);
  pair.client.set_water_marks({});
  EXPECT_EQ(loop.counters().timers_armed, 0U);
  settle();
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.calls, 1);
    EXPECT_EQ(outcome.code, closed) << outcome.message;
  }
  EXPECT_EQ(outcomes[3].message, "send: the handle or its loop is closed");
}

TEST_P(TcpClose, HandlesOutliveTheirLoop) {
  Pair pair;
  Outcome outcomes[4];
  std::array<std::byte, 4> bytes{};
  {
    Loop own(options());
    pair = make_pair(own);
    stuff(pair.client);
    pair.client.receive_start(outcomes[0].receive_callback());
    pair.client.send(bytes_of("x"), outcomes[1].callback());
    pair.client.shutdown_send(outcomes[2].callback());
    pair.server.receive_into(bytes, outcomes[3].count_callback());
    pair.client.set_receive_timeout(1s);
    pair.client.set_send_timeout(1s);
  }
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.calls, 0);
  for (TcpStream* stream : {&pair.client, &pair.server}) {
    EXPECT_TRUE(stream->closed());
    EXPECT_FALSE(stream->active());
    EXPECT_EQ(stream->send_copy("x").error().code(), make_error_code(Errc::closed));
    EXPECT_EQ(stream->try_send(bytes_of("x")).error().code(), make_error_code(Errc::closed));
    EXPECT_EQ(stream->peer_address().error().code(), make_error_code(Errc::closed));
    stream->receive(outcomes[0].receive_callback());
    stream->receive_stop();
    stream->close();
    stream->close([] { ADD_FAILURE(); });
    stream->close_gracefully();
    stream->abort();
  }
}

TEST_P(TcpClose, DestroyingTheHandleClosesSilently) {
  Pair pair = make_pair();
  stuff(pair.client);
  const auto witness = std::make_shared<int>(0);
  int calls = 0;
  pair.client.receive_start([&, witness](const Result<Buffer>&) { ++calls; });
  pair.client.send(bytes_of("x"), [&, witness](const Result<void>&) { ++calls; });
  pair.client.shutdown_send([&, witness](const Result<void>&) { ++calls; });
  const std::uint64_t handles = loop.counters().handles;
  pair.client = TcpStream();
  EXPECT_EQ(witness.use_count(), 1);  // every callback is destroyed at once
  EXPECT_EQ(loop.counters().handles, handles - 1);
  settle();
  EXPECT_EQ(calls, 0);
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return inbox.over(); }));
}

TEST_P(TcpClose, DestroyedWhileItsNoticesAreQueued) {
  Pair pair = make_pair();
  Outcome sent;
  Outcome closed;
  Outcome received;
  pair.client.send(bytes_of("x"), sent.callback());  // done at once: its callback is due
  pair.client.receive(received.receive_callback());
  pair.client.close(closed.closed_callback());
  pair.client = TcpStream();
  settle();
  EXPECT_EQ(sent.calls, 0);
  EXPECT_EQ(received.calls, 0);
  EXPECT_EQ(closed.calls, 0);
}

TEST_P(TcpClose, AbortResetsThePeer) {
  Pair pair = make_pair();
  stuff(pair.client);
  Outcome sent;
  pair.client.send(bytes_of("thrown away"), sent.callback());
  starting([&] { pair.client.abort(); });
  EXPECT_TRUE(pair.client.closed());
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return inbox.over() && sent.done(); }));
  EXPECT_EQ(sent.code, std::errc::operation_canceled);
  EXPECT_EQ(inbox.ends, 0);
  EXPECT_EQ(inbox.code, std::errc::connection_reset);
}

TEST_P(TcpClose, TrapT007OldOperationNeverReadsTheNewConnection) {
  Pair old_pair = make_pair();
  Outcome old_read;
  std::array<char, 16> bytes{};
  old_pair.server.receive_into(std::as_writable_bytes(std::span(bytes)), old_read.count_callback());
  settle(2);
  const int number = old_pair.server.native();
  old_pair.server.close();
  // The next descriptor has the lowest free number: the same one.
  Pair new_pair;
  for (int i = 0; i < 8 && new_pair.client.record() == nullptr; ++i) {
    new_pair = make_pair();
    if (new_pair.client.native() == number) std::swap(new_pair.client, new_pair.server);
  }
  EXPECT_EQ(new_pair.server.native(), number);
  Inbox inbox;
  new_pair.server.receive_start(inbox.callback());
  (void)old_pair.client.send_copy("old");
  ASSERT_TRUE(new_pair.client.send_copy("new").has_value());
  ASSERT_TRUE(until([&] { return inbox.text.size() >= 3; }));
  settle();
  EXPECT_EQ(inbox.text, "new");
  EXPECT_EQ(old_read.calls, 1);
  EXPECT_EQ(old_read.code, std::errc::operation_canceled);
  EXPECT_EQ(std::string(bytes.data(), 3), std::string(3, '\0'));
}

// ---- Graceful close --------------------------------------------------------------------------

TEST_P(TcpClose, TrapT015EveryOrderOfClosingOnce) {
  std::array<int, 3> order{0, 1, 2};  // graceful, forced, half
  do {
    for (const bool queued : {false, true}) {
      Pair pair = make_pair();
      if (queued) {
        stuff(pair.client);
        pair.client.send(bytes_of("queued"), {});
      }
      Outcome graceful;
      Outcome forced;
      Outcome half;
      starting([&] {
        for (const int step : order) {
          if (step == 0) pair.client.close_gracefully({}, graceful.closed_callback());
          if (step == 1) pair.client.close(forced.closed_callback());
          if (step == 2) pair.client.shutdown_send(half.callback());
        }
      });
      ASSERT_TRUE(until([&] { return graceful.done() && forced.done() && half.done(); }));
      settle();
      EXPECT_EQ(graceful.calls, 1);
      EXPECT_EQ(forced.calls, 1);
      EXPECT_EQ(half.calls, 1);
      EXPECT_TRUE(pair.client.closed());
      EXPECT_FALSE(pair.client.active());
      pair.server.close();
      EXPECT_EQ(loop.counters().handles_active, 0U);
      EXPECT_EQ(loop.counters().timers_armed, 0U);
      EXPECT_EQ(loop.run(), 0);  // nothing keeps it alive
    }
  } while (std::ranges::next_permutation(order).found);
  EXPECT_TRUE(rests());
}

// Turn after turn 4 KiB, until about where the kernel takes no more; then closed in the same
// callback.
TEST_P(TcpClose, WhatTrySendTookArrivesAlsoWhenItIsClosedAtOnce) {
  const std::string piece = pattern(4096);
  const auto send_and_close = [&](std::size_t pieces, std::size_t& taken) {
    Pair pair = make_pair(loop, 8192);
    std::size_t full_after = 0;
    for (std::size_t i = 0; i < pieces; ++i) {
      in_callback(loop, [&] {
        const std::size_t count = pair.client.try_send(bytes_of(piece)).value_or(0);
        taken += count;
        if (count < piece.size() && full_after == 0) full_after = i + 1;
        if (i + 1 == pieces) pair.client.close();
      });
    }
    Inbox inbox;
    pair.server.receive_start(inbox.callback());
    EXPECT_TRUE(until([&] { return inbox.over(); }));
    EXPECT_EQ(inbox.ends, 1);
    EXPECT_EQ(inbox.text.size(), taken);
    return full_after;
  };
  std::size_t taken = 0;
  const std::size_t full_after = send_and_close(4000, taken);
  ASSERT_GT(full_after, 3U) << "the kernel takes more than 16 MB";
  for (std::size_t pieces = full_after - 3; pieces <= full_after + 1; ++pieces) {
    taken = 0;
    send_and_close(pieces, taken);
    EXPECT_GT(taken, (full_after - 4) * piece.size());
  }
}

TEST_P(TcpClose, TrapT061PeerGetsTheReplyNotAReset) {
  const std::string request = pattern(1024 * 1024);
  const std::uint64_t rounds = scaled(500, 25);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    Pair pair = make_pair();
    Outcome request_sent;
    pair.client.send(bytes_of(request), request_sent.callback());
    std::size_t received = 0;
    bool replied = false;
    Outcome closed;
    pair.server.receive_start([&](const Result<Buffer>& result) {
      ASSERT_TRUE(result.has_value());
      received += result->size();
      if (received < 1024 || replied) return;
      replied = true;
      ASSERT_TRUE(pair.server.send_copy("0123456789").has_value());
      pair.server.close_gracefully({}, closed.closed_callback());
    });
    // The client reads only after its whole request is out; then a while more goes by.
    ASSERT_TRUE(until([&] { return request_sent.done() && replied; }));
    ASSERT_TRUE(request_sent.ok()) << request_sent.message;
    if (is_sim() || round == 0) {
      const KeepAlive waiting = loop.keep_alive();
      ASSERT_EQ(loop.run_for(200ms), 0);
    } else {
      settle(3);
    }
    Inbox inbox;
    pair.client.receive_start(inbox.callback());
    ASSERT_TRUE(until([&] { return inbox.over(); }));
    ASSERT_EQ(inbox.text, "0123456789") << "round " << round;
    ASSERT_EQ(inbox.ends, 1);
    ASSERT_EQ(inbox.errors, 0);
    pair.client.close();
    ASSERT_TRUE(until([&] { return closed.done(); }));
    ASSERT_EQ(closed.calls, 1);
  }
}

TEST_P(TcpClose, GracefulSendsWhatIsQueued) {
  Pair pair = make_pair();
  const std::string sent = pattern(6'000'000);
  Outcome done;
  Outcome closed;
  starting([&] {
    pair.client.send(bytes_of(sent), done.callback());
    pair.client.close_gracefully({}, closed.closed_callback());
  });
  EXPECT_FALSE(pair.client.closed());
  EXPECT_EQ(pair.client.send_copy("x").error().code(), std::errc::broken_pipe);
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return inbox.over(); }));
  EXPECT_TRUE(same_bytes(inbox.text, sent));
  EXPECT_EQ(inbox.ends, 1);
  EXPECT_EQ(closed.calls, 0);  // it waits for the peer's end
  pair.server.close();
  ASSERT_TRUE(until([&] { return closed.done(); }));
  EXPECT_TRUE(done.ok());
  EXPECT_TRUE(pair.client.closed());
}

TEST_P(TcpClose, GracefulGivesUpAfterItsTime) {
  Pair pair = make_pair();  // the peer never closes
  Outcome closed;
  GracefulClose limits;
  if (!is_sim()) limits.timeout = 80ms;
  const Duration took = elapsed(loop, [&] {
    starting([&] { pair.client.close_gracefully(limits, closed.closed_callback()); });
    const KeepAlive waiting = loop.keep_alive();
    ASSERT_EQ(loop.run_for(limits.timeout + 1s), 0);
  });
  EXPECT_GE(took, limits.timeout);
  EXPECT_EQ(closed.calls, 1);
  EXPECT_TRUE(pair.client.closed());
  EXPECT_EQ(loop.counters().timers_armed, 0U);
}

TEST_P(TcpClose, GracefulTimesOutExactly) {
  Pair pair = make_pair();
  Outcome closed;
  GracefulClose limits;
  limits.timeout = 70ms;
  const Duration took = elapsed(loop, [&] {
    pair.client.close_gracefully(limits, closed.closed_callback());
    ASSERT_TRUE(until([&] { return closed.done(); }));
  });
  expect_time(took, limits.timeout);
}

TEST_P(TcpClose, GracefulReadsNoMoreThanItsLimit) {
  Pair pair = make_pair();
  Outcome closed;
  GracefulClose limits;
  limits.drain_bytes_max = 100'000;
  limits.timeout = forever;
  pair.client.close_gracefully(limits, closed.closed_callback());
  std::size_t sent = 0;
  const std::string block = pattern(10'000);
  ASSERT_TRUE(until([&] {
    // A peer that never stops.
    if (pair.server.send_copy(block).has_value()) sent += block.size();
    return closed.done();
  }));
  EXPECT_GE(sent, limits.drain_bytes_max);
  EXPECT_EQ(closed.calls, 1);
}

TEST_P(TcpClose, GracefulOnAFailedStreamClosesAtOnce) {
  Pair pair = make_pair();
  pair.server.abort();
  Inbox inbox;
  pair.client.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return inbox.over(); }));
  Outcome closed;
  starting([&] { pair.client.close_gracefully({}, closed.closed_callback()); });
  ASSERT_TRUE(until([&] { return closed.done(); }));
  EXPECT_EQ(closed.calls, 1);
  EXPECT_TRUE(pair.client.closed());
  EXPECT_EQ(loop.counters().timers_armed, 0U);
}

TEST_P(TcpClose, HandleDestroyedWhileClosingGracefully) {
  Pair pair = make_pair();
  Outcome closed;
  pair.client.close_gracefully({}, closed.closed_callback());
  settle(2);
  pair.client = TcpStream();
  settle();
  EXPECT_EQ(closed.calls, 0);
  EXPECT_EQ(loop.counters().timers_armed, 0U);
  EXPECT_EQ(loop.counters().handles_active, 0U);
}

TEST_P(TcpClose, HandleDestroyedInTheCloseCallback) {
  for (const bool graceful : {false, true}) {
    Pair pair = make_pair();
    auto client = std::make_unique<TcpStream>(std::move(pair.client));
    const auto witness = std::make_shared<int>(0);
    const auto callback = [&client, witness] {
      client.reset();
      ++*witness;
    };
    if (graceful) {
      client->close_gracefully({}, callback);
      pair.server.close();
    } else {
      client->close(callback);
    }
    ASSERT_TRUE(until([&] { return *witness > 0; }));
    settle();
    EXPECT_EQ(*witness, 1);
  }
}

}  // namespace
}  // namespace evix::test
