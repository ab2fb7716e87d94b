#include <signal.h>

#include <algorithm>
#include <random>

#include "backend/tcp_support.hpp"

namespace evix::test {
namespace {

using detail::CallId;

class TcpSend : public TcpConformance {};
EVIX_OVER_BACKENDS(TcpSend);

TEST_P(TcpSend, EchoOfRandomSizesBothWays) {
  constexpr std::uint32_t seed = 20240611;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  Pair pair = make_pair();
  TcpStream& server = pair.server;
  std::uint64_t echoed_sends = 0;
  std::uint64_t echo_callbacks = 0;
  server.receive_start([&](Result<Buffer> result) {
    ASSERT_TRUE(result.has_value());
    if (result->empty()) {
      server.shutdown_send({});
      return;
    }
    ++echoed_sends;
    server.send(std::move(result).value(), [&](Result<void> sent) {
      EXPECT_TRUE(sent.has_value());
      ++echo_callbacks;
    });
  });
  Inbox inbox;
  pair.client.receive_start(inbox.callback());
  std::string sent;
  std::deque<std::string> messages;
  std::deque<Outcome> outcomes;
  for (int i = 0; i < 200; ++i) {
    const std::uint32_t scale = 1U << random() % 18;
    messages.push_back(pattern(1 + random() % scale, static_cast<std::uint32_t>(i)));
    sent += messages.back();
    outcomes.emplace_back();
    starting([&] { pair.client.send(bytes_of(messages.back()), outcomes.back().callback()); });
    if (random() % 4 == 0) settle(1);
  }
  Outcome shut;
  starting([&] { pair.client.shutdown_send(shut.callback()); });
  ASSERT_TRUE(until([&] { return inbox.over(); }));
  EXPECT_TRUE(same_bytes(inbox.text, sent));
  EXPECT_EQ(inbox.ends, 1);
  EXPECT_EQ(inbox.errors, 0);
  EXPECT_EQ(shut.calls, 1);
  for (const Outcome& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.message;
  EXPECT_EQ(echo_callbacks, echoed_sends);
}

TEST_P(TcpSend, OneByteAtATimeKeepsOrder) {
  FaultyLoop faulty(GetParam());
  Pair pair = make_pair(*faulty.loop);
  faulty.calls->limit(CallId::send, 1);
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  const std::string sent = pattern(3000);
  std::vector<int> order;
  Outcome outcomes[3];
  starting([&] {
    for (int i = 0; i < 3; ++i) {
      pair.client.send(bytes_of(sent).subspan(1000U * static_cast<unsigned>(i), 1000),
                       [&, i](Result<void> result) {
                         outcomes[i].note(result);
                         order.push_back(i);
                       });
    }
  });
  EXPECT_EQ(pair.client.send_queue_bytes(), 2999U);
  ASSERT_TRUE(until(*faulty.loop, [&] { return inbox.text.size() == sent.size(); }));
  settle(*faulty.loop);
  EXPECT_TRUE(same_bytes(inbox.text, sent));
  EXPECT_EQ(order, (std::vector{0, 1, 2}));
  for (const Outcome& outcome : outcomes) EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(pair.client.send_queue_bytes(), 0U);
  EXPECT_EQ(faulty.loop->counters().send_queue_bytes, 0U);
}

TEST_P(TcpSend, InterruptedCallsAreRepeated) {
  FaultyLoop faulty(GetParam());
  Pair pair = make_pair(*faulty.loop);
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  faulty.calls->fail(CallId::send, 1, EINTR, 1000);
  Outcome sent;
  starting([&] { pair.client.send(bytes_of("through"), sent.callback()); });
  ASSERT_TRUE(until(*faulty.loop, [&] { return inbox.text == "through"; }));
  EXPECT_TRUE(sent.ok());
  EXPECT_EQ(faulty.calls->injected(CallId::send), 1000U);
  // And in the middle of a queue.
  faulty.calls->fail(CallId::send, 1, EAGAIN);
  Outcome queued;
  pair.client.send(bytes_of("queue"), queued.callback());
  faulty.calls->fail(CallId::send, 1, EINTR, 5);
  ASSERT_TRUE(until(*faulty.loop, [&] { return queued.done(); }));
  EXPECT_TRUE(queued.ok());
}

TEST_P(TcpSend, CopiesAreQueuedInOrderWithTheRest) {
  Pair pair = make_pair();
  const std::size_t stuffed = stuff(pair.client);
  std::string expected = "[first]";
  Outcome first;
  Outcome last;
  pair.client.send(bytes_of("[first]"), first.callback());
  for (int i = 0; i < 2000; ++i) {
    const std::string piece = "copy" + std::to_string(i) + ";";
    ASSERT_TRUE(pair.client.send_copy(piece).has_value());
    expected += piece;
  }
  pair.client.send(bytes_of("[last]"), last.callback());
  expected += "[last]";
  EXPECT_EQ(*pair.client.try_send(bytes_of("x")), 0U);  // behind a queue it takes nothing
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return inbox.text.size() >= stuffed + expected.size(); }));
  EXPECT_TRUE(same_bytes(std::string_view(inbox.text).substr(stuffed), expected));
  EXPECT_TRUE(first.ok());
  EXPECT_TRUE(last.ok());
}

TEST_P(TcpSend, SendOfNothingSucceeds) {
  Pair pair = make_pair();
  Outcome empty_span;
  Outcome empty_buffer;
  starting([&] {
    pair.client.send(std::span<const std::byte>(), empty_span.callback());
    pair.client.send(Buffer(), empty_buffer.callback());
  });
  EXPECT_TRUE(pair.client.send_copy("").has_value());
  EXPECT_EQ(*pair.client.try_send({}), 0U);
  ASSERT_TRUE(until([&] { return empty_span.done() && empty_buffer.done(); }));
  EXPECT_TRUE(empty_span.ok());
  EXPECT_TRUE(empty_buffer.ok());
}

TEST_P(TcpSend, WithoutACallback) {
  Pair pair = make_pair();
  stuff(pair.client);
  pair.client.send(bytes_of("quiet"), {});
  pair.client.shutdown_send({});
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return inbox.over(); }));
  EXPECT_TRUE(inbox.text.ends_with("quiet"));
}

TEST(TcpSendSim, CompletionsKeepTheOrderOfTheSends) {
  // In one turn: a receive callback sends A, which is done at once, and B, of which 50 KB do not
  // fit; the peer reads 64 KiB; B goes out. The callback of A still comes first. Whether the peer
  // comes in between depends on the ready order, hence the seeds.
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Loop loop(LoopOptions{.backend = BackendKind::sim, .sim_seed = seed});
    Pair pair;
    TcpListener listener(loop);
    ASSERT_TRUE(listener.listen("127.0.0.1:0").has_value());
    listener.accept([&](Result<TcpStream> accepted) { pair.server = std::move(accepted).value(); });
    pair.client = TcpStream(loop);
    pair.client.connect(*listener.local_address(), {});
    ASSERT_EQ(loop.run(), 0);
    std::vector<char> order;
    const std::string big(detail::sim_capacity - 2 + 50'000, 'B');
    pair.client.receive_start([&](const Result<Buffer>& result) {
      ASSERT_TRUE(result.has_value());
      pair.client.send(bytes_of("A"), [&](const Result<void>&) { order.push_back('A'); });
      pair.client.send(bytes_of(big), [&](const Result<void>&) { order.push_back('B'); });
      pair.client.receive_stop();
    });
    std::size_t received = 0;
    pair.server.receive_start([&](const Result<Buffer>& result) { received += result->size(); });
    ASSERT_TRUE(pair.client.send_copy("x").has_value());
    ASSERT_TRUE(pair.server.send_copy(std::string(200'000, 's')).has_value());
    for (int turn = 0; turn < 200 && received < big.size() + 2; ++turn) {
      ASSERT_EQ(loop.run_ready(), 0);
    }
    EXPECT_EQ(received, big.size() + 2);
    EXPECT_EQ(order, (std::vector{'A', 'B'})) << "seed " << seed;
  }
}

TEST_P(TcpSend, HalfCloseEachWay) {
  Pair pair = make_pair();
  for (const bool forward : {true, false}) {
    TcpStream& from = forward ? pair.client : pair.server;
    TcpStream& to = forward ? pair.server : pair.client;
    Inbox inbox;
    to.receive_start(inbox.callback());
    const std::string sent = pattern(3'000'000);
    Outcome done;
    Outcome shut;
    std::vector<int> order;
    starting([&] {
      from.send(bytes_of(sent), [&](Result<void> result) {
        done.note(result);
        order.push_back(0);
      });
      from.shutdown_send([&](Result<void> result) {
        shut.note(result);
        order.push_back(1);
      });
    });
    ASSERT_TRUE(until([&] { return inbox.over() && shut.done(); }));
    EXPECT_TRUE(done.ok());
    EXPECT_TRUE(shut.ok()) << shut.message;
    EXPECT_EQ(order, (std::vector{0, 1}));
    EXPECT_TRUE(same_bytes(inbox.text, sent));
    EXPECT_EQ(inbox.ends, 1);
    // The other direction goes on, until it is shut as well.
    if (forward) {
      Inbox back;
      from.receive_start(back.callback());
      ASSERT_TRUE(to.send_copy("still here").has_value());
      ASSERT_TRUE(until([&] { return back.text == "still here"; }));
      from.receive_stop();
    }
  }
}

TEST_P(TcpSend, AfterTheHalfCloseIsAnError) {
  Pair pair = make_pair();
  Outcome shut;
  Outcome again;
  Outcome sent;
  starting([&] {
    pair.client.shutdown_send(shut.callback());
    pair.client.shutdown_send(again.callback());
    pair.client.send(bytes_of("x"), sent.callback());
  });
  EXPECT_EQ(pair.client.send_copy("x").error().code(), std::errc::broken_pipe);
  EXPECT_EQ(pair.client.try_send(bytes_of("x")).error().code(), std::errc::broken_pipe);
  ASSERT_TRUE(until([&] { return shut.done() && again.done() && sent.done(); }));
  EXPECT_TRUE(shut.ok());
  EXPECT_EQ(again.code, std::errc::broken_pipe);
  EXPECT_EQ(sent.code, std::errc::broken_pipe);
  EXPECT_EQ(sent.calls, 1);
}

// ---- Errors ----------------------------------------------------------------------------------

TEST_P(TcpSend, TrapT062EveryQueuedSendFailsInOrder) {
  Pair pair = make_pair();
  std::size_t received = 0;
  pair.server.receive_start([&](Result<Buffer> result) {
    if (!result) return;
    received += result->size();
    if (received >= 1024 * 1024) pair.server.abort();
  });
  const std::string block = pattern(64 * 1024);
  std::vector<int> order;
  std::vector<int> codes;
  bool closed = false;
  for (int i = 0; i < 1000; ++i) {
    starting([&] {
      pair.client.send(bytes_of(block), [&, i](const Result<void>& result) {
        EXPECT_EQ(starts_on_stack, 0);
        EXPECT_FALSE(closed);
        order.push_back(i);
        codes.push_back(result ? 0 : result.error().code().value());
      });
    });
  }
  // The hard cap of 16 MiB refuses the last ones: those come first, the others in order.
  ASSERT_TRUE(until([&] { return order.size() == 1000; }));
  pair.client.close([&] { closed = true; });
  ASSERT_TRUE(until([&] { return closed; }));
  settle();
  ASSERT_EQ(order.size(), 1000U);
  std::vector<int> accepted;
  std::vector<int> accepted_codes;
  const int full = static_cast<int>(Errc::queue_full);
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (codes[i] == full) continue;
    accepted.push_back(order[i]);
    accepted_codes.push_back(codes[i]);
  }
  EXPECT_TRUE(std::ranges::is_sorted(accepted));
  const auto first_failure =
      std::ranges::find_if(accepted_codes, [](int code) { return code != 0; });
  EXPECT_NE(first_failure, accepted_codes.end());
  EXPECT_NE(first_failure, accepted_codes.begin());
  EXPECT_TRUE(std::all_of(first_failure, accepted_codes.end(),
                          [](int code) { return code == ECONNRESET || code == EPIPE; }));
  EXPECT_EQ(pair.client.send_queue_bytes(), 0U);
  EXPECT_EQ(loop.counters().send_queue_bytes, 0U);
}

TEST_P(TcpSend, TrapT062WithoutACapAllAThousandInOrder) {
  Pair pair = make_pair();
  WaterMarks marks;
  marks.hard_bytes_max = 128 * 1024 * 1024;
  pair.client.set_water_marks(marks);
  std::size_t received = 0;
  pair.server.receive_start([&](Result<Buffer> result) {
    if (!result) return;
    received += result->size();
    if (received >= 1024 * 1024) pair.server.abort();
  });
  const std::string block = pattern(64 * 1024);
  std::vector<int> order;
  int successes = 0;
  bool failing = false;
  for (int i = 0; i < 1000; ++i) {
    starting([&] {
      pair.client.send(bytes_of(block), [&, i](const Result<void>& result) {
        EXPECT_EQ(starts_on_stack, 0);
        order.push_back(i);
        if (result) {
          EXPECT_FALSE(failing) << "a success after a failure";
          ++successes;
        } else {
          failing = true;
        }
      });
    });
  }
  bool closed = false;
  ASSERT_TRUE(until([&] { return failing; }));
  pair.client.close([&] {
    EXPECT_EQ(order.size(), 1000U);
    closed = true;
  });
  ASSERT_TRUE(until([&] { return closed; }));
  ASSERT_EQ(order.size(), 1000U);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_GT(successes, 0);
  EXPECT_LT(successes, 1000);
}

TEST_P(TcpSend, TrapT057ResetBehindQueuedWrites) {
  Pair pair = make_pair();
  Inbox inbox;
  pair.client.receive_start(inbox.callback());
  Outcome peer_shut;
  pair.server.shutdown_send(peer_shut.callback());
  ASSERT_TRUE(until([&] { return inbox.ends == 1; }));
  const std::string block = pattern(1024 * 1024);
  Outcome outcomes[8];
  for (Outcome& outcome : outcomes) {
    starting([&] { pair.client.send(bytes_of(block), outcome.callback()); });
  }
  settle();
  EXPECT_GT(pair.client.send_queue_bytes(), 0U);
  pair.server.abort();
  ASSERT_TRUE(until([&] { return outcomes[7].done(); }));
  EXPECT_TRUE(rests());
  bool failing = false;
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.calls, 1);
    failing = failing || outcome.code;
    if (failing) {
      EXPECT_TRUE(outcome.code == std::errc::connection_reset ||
                  outcome.code == std::errc::broken_pipe)
          << outcome.message;
    }
  }
  EXPECT_TRUE(failing);
  EXPECT_EQ(inbox.ends, 1);
  EXPECT_EQ(inbox.errors, 0);
  EXPECT_FALSE(pair.client.active());
  Outcome closed;
  pair.client.close(closed.closed_callback());
  pair.client.close();
  settle();
  EXPECT_EQ(closed.calls, 1);
  EXPECT_TRUE(rests());
}

TEST_P(TcpSend, FailedSendIsLatched) {
  FaultyLoop faulty(GetParam());
  Pair pair = make_pair(*faulty.loop);
  faulty.calls->fail(CallId::send, 1, ECONNRESET);
  Outcome first;
  Outcome second;
  Outcome shut;
  const int handle = pair.client.native();
  starting([&] {
    pair.client.send(bytes_of("x"), first.callback());
    pair.client.send(bytes_of("y"), second.callback());
    pair.client.shutdown_send(shut.callback());
  });
  EXPECT_EQ(pair.client.send_copy("z").error().code(), std::errc::connection_reset);
  EXPECT_EQ(pair.client.try_send(bytes_of("z")).error().code(), std::errc::connection_reset);
  ASSERT_TRUE(until(*faulty.loop, [&] { return first.done() && second.done() && shut.done(); }));
  for (const Outcome* outcome : {&first, &second, &shut}) {
    EXPECT_EQ(outcome->calls, 1);
    EXPECT_EQ(outcome->code, std::errc::connection_reset);
  }
  EXPECT_EQ(first.message,
            "send descriptor " + std::to_string(handle) + ": connection reset by peer");
  // Receiving goes on.
  Outcome received;
  pair.client.receive(received.receive_callback());
  ASSERT_TRUE(pair.server.send_copy("still").has_value());
  ASSERT_TRUE(until(*faulty.loop, [&] { return received.done(); }));
  EXPECT_EQ(received.text, "still");
}

TEST_P(TcpSend, FailureOfACopyIsToldByTheNextOperation) {
  FaultyLoop faulty(GetParam());
  Pair pair = make_pair(*faulty.loop);
  faulty.calls->fail(CallId::send, 1, EAGAIN);
  ASSERT_TRUE(pair.client.send_copy("queued").has_value());
  faulty.calls->fail(CallId::send, 1, EPIPE);
  ASSERT_TRUE(until(*faulty.loop, [&] { return pair.client.send_queue_bytes() == 0; }));
  EXPECT_EQ(pair.client.send_copy("next").error().code(), std::errc::broken_pipe);
}

TEST_P(TcpSend, TrapT071NoSigpipe) {
  struct sigaction before{};
  ASSERT_EQ(sigaction(SIGPIPE, nullptr, &before), 0);
  ASSERT_EQ(before.sa_handler, SIG_DFL);
  for (int way = 0; way < 4; ++way) {
    Pair pair = make_pair();
    pair.server.abort();
    std::error_code code;
    // The first send after a reset takes its error, the next ones are EPIPE.
    ASSERT_TRUE(until([&] {
      Outcome sent;
      Result<void> copied;
      Result<std::size_t> tried;
      switch (way) {
        case 0:
          pair.client.send(bytes_of("x"), sent.callback());
          settle(2);
          code = sent.code;
          break;
        case 1:
          copied = pair.client.send_copy("x");
          if (!copied) code = copied.error().code();
          break;
        case 2:
          tried = pair.client.try_send(bytes_of("x"));
          if (!tried) code = tried.error().code();
          break;
        default:
          pair.client.shutdown_send(sent.callback());
          settle(2);
          pair.client.send(bytes_of("x"), sent.callback());
          settle(2);
          code = sent.code;
          break;
      }
      return static_cast<bool>(code);
    }));
    EXPECT_TRUE(code == std::errc::connection_reset || code == std::errc::broken_pipe)
        << code.message();
  }
  // A plain EPIPE: the own sending side is shut behind the library's back.
  FaultyLoop faulty(GetParam());
  Pair pair = make_pair(*faulty.loop);
  ASSERT_EQ(faulty.calls->shutdown(pair.client.native(), SHUT_WR), 0);
  Outcome sent;
  pair.client.send(bytes_of("x"), sent.callback());
  ASSERT_TRUE(until(*faulty.loop, [&] { return sent.done(); }));
  EXPECT_EQ(sent.code, std::errc::broken_pipe);
  struct sigaction after{};
  ASSERT_EQ(sigaction(SIGPIPE, nullptr, &after), 0);
  EXPECT_EQ(after.sa_handler, SIG_DFL);
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

// ---- State is final before a callback runs ---------------------------------------------------

TEST_P(TcpSend, TrapT065AccountingComesBeforeTheCallback) {
  for (const bool queued : {false, true}) {
    Pair pair = make_pair();
    if (queued) stuff(pair.client);
    int calls = 0;
    pair.client.send(bytes_of("only"), [&](Result<void> result) {
      ++calls;
      EXPECT_TRUE(result.has_value());
      EXPECT_EQ(pair.client.send_queue_bytes(), 0U);
      EXPECT_EQ(loop.counters().send_queue_bytes, 0U);
      EXPECT_FALSE(pair.client.active());
      EXPECT_EQ(pair.client.try_send(bytes_of("x")).value_or(0), 1U);
      pair.client.close();
      EXPECT_TRUE(pair.client.closed());
      EXPECT_EQ(pair.client.native(), no_handle);
    });
    Inbox inbox;
    pair.server.receive_start(inbox.callback());
    ASSERT_TRUE(until([&] { return calls > 0 && inbox.over(); }));
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(inbox.text.ends_with("onlyx"));
  }
}

TEST_P(TcpSend, TrapT065ForEveryKindOfCallback) {
  Pair pair = make_pair();
  int calls = 0;
  pair.server.receive([&](const Result<Buffer>&) {
    ++calls;
    EXPECT_FALSE(pair.server.active());
    // The next receive is not busy.
    pair.server.receive([&](const Result<Buffer>& next) {
      ++calls;
      EXPECT_TRUE(next.has_value());
    });
  });
  ASSERT_TRUE(pair.client.send_copy("a").has_value());
  ASSERT_TRUE(until([&] { return calls == 1; }));
  ASSERT_TRUE(pair.client.send_copy("b").has_value());
  ASSERT_TRUE(until([&] { return calls == 2; }));
  pair.client.shutdown_send([&](Result<void> result) {
    ++calls;
    EXPECT_TRUE(result.has_value());
    EXPECT_FALSE(pair.client.active());
    EXPECT_EQ(pair.client.send_copy("x").error().code(), std::errc::broken_pipe);
  });
  ASSERT_TRUE(until([&] { return calls == 3; }));
  pair.client.close([&] {
    ++calls;
    EXPECT_TRUE(pair.client.closed());
    EXPECT_FALSE(pair.client.active());
    EXPECT_FALSE(pair.client.connected());
  });
  ASSERT_TRUE(until([&] { return calls == 4; }));
}

// ---- Deadline --------------------------------------------------------------------------------

TEST_P(TcpSend, TimeoutFailsEveryQueuedSend) {
  Pair pair = make_pair();
  stuff(pair.client);
  pair.client.set_send_timeout(60ms);
  EXPECT_EQ(loop.counters().timers_armed, 0U);
  Outcome outcomes[3];
  const Duration took = elapsed(loop, [&] {
    for (Outcome& outcome : outcomes) {
      starting([&] { pair.client.send(bytes_of("stuck"), outcome.callback()); });
    }
    ASSERT_TRUE(until([&] { return outcomes[2].done(); }));
  });
  expect_time(took, 60ms);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.calls, 1);
    EXPECT_EQ(outcome.code, std::errc::timed_out);
  }
  EXPECT_EQ(pair.client.send_copy("x").error().code(), std::errc::timed_out);
  EXPECT_FALSE(pair.client.active());
  EXPECT_EQ(loop.counters().timers_armed, 0U);
  // Receiving goes on.
  Outcome received;
  pair.client.receive(received.receive_callback());
  ASSERT_TRUE(pair.server.send_copy("x").has_value());
  ASSERT_TRUE(until([&] { return received.done(); }));
  EXPECT_EQ(received.text, "x");
}

TEST_P(TcpSend, TimeoutCountsFromTheLastProgress) {
  // One large send; the reader takes a part of it every 100 ms, so it never stands still for the
  // timeout, and in all it takes far longer.
  Pair pair = make_pair();
  stuff(pair.client);
  pair.client.set_send_timeout(1s);
  const std::string big = pattern(20'000'000);
  Outcome sent;
  pair.client.send(bytes_of(big), sent.callback());
  std::size_t received = 0;
  std::size_t allowance = 0;
  const auto read_on = [&](Result<Buffer> result) {
    ASSERT_TRUE(result.has_value());
    received += result->size();
    if (received >= allowance) pair.server.receive_stop();
  };
  Timer ticks(loop);
  ticks.every(100ms, [&] {
    allowance += 1'000'000;
    pair.server.receive_start(read_on);
  });
  const Duration took = elapsed(loop, [&] { ASSERT_TRUE(until([&] { return sent.done(); })); });
  EXPECT_TRUE(sent.ok()) << sent.message;
  EXPECT_GT(took, Duration(1s));
}

TEST_P(TcpSend, TimeoutThatIsTakenBack) {
  Pair pair = make_pair();
  stuff(pair.client);
  pair.client.set_send_timeout(20ms);
  Outcome sent;
  pair.client.send(bytes_of("x"), sent.callback());
  pair.client.set_send_timeout(forever);
  EXPECT_EQ(loop.counters().timers_armed, 0U);
  ASSERT_EQ(loop.run_for(60ms), 0);
  EXPECT_EQ(sent.calls, 0);
  pair.client.set_send_timeout(20ms);  // with sends queued: starts now
  ASSERT_TRUE(until([&] { return sent.done(); }));
  EXPECT_EQ(sent.code, std::errc::timed_out);
}

TEST_P(TcpSend, HandleDestroyedInACallback) {
  Pair pair = make_pair();
  auto client = std::make_unique<TcpStream>(std::move(pair.client));
  const auto witness = std::make_shared<int>(0);
  Outcome others[3];
  client->send(bytes_of("x"), [&client, witness](Result<void>) {
    client.reset();
    ++*witness;
  });
  for (Outcome& other : others) client->send(bytes_of("y"), other.callback());
  ASSERT_TRUE(until([&] { return *witness > 0; }));
  settle();
  EXPECT_EQ(*witness, 1);
  EXPECT_EQ(witness.use_count(), 1);
  for (const Outcome& other : others) EXPECT_EQ(other.calls, 0);
}

}  // namespace
}  // namespace evix::test
