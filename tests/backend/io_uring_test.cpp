#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/contract.hpp"
#include "backend/fork_support.hpp"
#include "backend/io_uring_support.hpp"
#include "support/descriptors.hpp"

/** @file
 * What only io_uring has: its set-up on kernels that refuse parts of it, its calls, its budget.
 */
namespace evix::test {
namespace {

class IoUringHere : public NeedsIoUring {};
class IoUringSetUp : public NeedsIoUring {};
class IoUringCalls : public NeedsIoUring {};

// Skipped with the reason where the whole suite is made without io_uring.
TEST_F(IoUringHere, IsTested) {
  EXPECT_EQ(offered({BackendKind::io_uring}), std::vector{BackendKind::io_uring});
  EXPECT_EQ(Loop(LoopOptions{.backend = BackendKind::io_uring}).backend(), BackendKind::io_uring);
}

class IoUring : public TcpConformance {};
EVIX_OVER_IO_URING(IoUring);

// ---- Set-up ----------------------------------------------------------------------------------

// T139: a sandbox forbids all of it, or only what is called later.
TEST_F(IoUringSetUp, TrapT139RefusedIsAnErrorByNameAndAutomaticGoesOn) {
  for (const CallId call : {CallId::ring_setup, CallId::ring_enter, CallId::ring_register}) {
    for (const int error : {EPERM, ENOSYS, EINVAL, ENOMEM, EMFILE, ENFILE, EACCES}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(call)) + " " + std::strerror(error));
      CountingCalls calls;
      calls.refuse(call, error);
      const std::size_t descriptors = open_descriptors();
      const auto named = Loop::create(over(calls));
      ASSERT_FALSE(named);
      EXPECT_EQ(named.error(), Errc::backend_unavailable);
      EXPECT_EQ(named.error().subject().to_string(), "io_uring");
      EXPECT_EQ(open_descriptors(), descriptors);
      auto automatic = Loop::create({.system_calls = &calls});
      ASSERT_TRUE(automatic);
      EXPECT_NE(automatic->backend(), BackendKind::io_uring);
      echo_once(*automatic);
    }
  }
}

TEST_F(IoUringSetUp, TrapT140EachStepThatFailsLeavesNothingOpen) {
  for (const CallId call : {CallId::ring_register, CallId::memory_map}) {
    for (std::uint64_t nth = 1; nth <= 3; ++nth) {
      CountingCalls calls;
      calls.fail(call, nth, ENOMEM);
      const bool made = Loop::create(over(calls)).has_value();
      // PROBE, PBUF_RING; two maps for the queues and one for the buffers.
      EXPECT_EQ(made, call == CallId::ring_register && nth == 3) << nth;
      EXPECT_EQ(calls.count(CallId::memory_unmap) + (made ? 0 : calls.injected(call)),
                calls.count(CallId::memory_map) + (call == CallId::ring_register && !made ? 1 : 0));
      // The ring, and epoll's descriptor that only shows that it could be had.
      EXPECT_EQ(calls.count(CallId::close), made ? 3U : 2U);
    }
  }
}

TEST_F(IoUringSetUp, FlagsOfNewerKernelsAreLeftOutOneByOne) {
  struct Case {
    unsigned unknown;
    unsigned taken;
    std::size_t fallbacks;
  };
  constexpr unsigned best = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                            IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL |
                            IORING_SETUP_R_DISABLED;
  constexpr unsigned coop = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
                            IORING_SETUP_SUBMIT_ALL | IORING_SETUP_R_DISABLED;
  constexpr unsigned everywhere = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
  constexpr std::array cases{
      Case{0, best, 0},
      Case{IORING_SETUP_TASKRUN_FLAG, best & ~IORING_SETUP_TASKRUN_FLAG, 1},
      Case{IORING_SETUP_DEFER_TASKRUN, coop | IORING_SETUP_SINGLE_ISSUER, 1},
      Case{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, coop, 2},
      Case{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN |
               IORING_SETUP_TASKRUN_FLAG,
           IORING_SETUP_SUBMIT_ALL | IORING_SETUP_R_DISABLED, 3},
      Case{IORING_SETUP_SUBMIT_ALL, best & ~IORING_SETUP_SUBMIT_ALL, 1},
      Case{IORING_SETUP_R_DISABLED, best & ~IORING_SETUP_R_DISABLED, 1},
      Case{best | coop, 0, 5},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.unknown);
    OldKernel calls(each.unknown);
    auto loop = Loop::create(over(calls));
    ASSERT_TRUE(loop);
    EXPECT_EQ(calls.flags_taken, each.taken | everywhere);
    EXPECT_EQ(loop->backend_report().fallbacks.size(), each.fallbacks);
    echo_once(*loop);
  }
}

TEST_F(IoUringSetUp, TrapT140SmallerRingWithoutMemory) {
  for (const unsigned most : {255U, 63U, 15U, 4U}) {
    OldKernel calls(0);
    calls.entries_max = most;
    auto loop = Loop::create(over(calls));
    ASSERT_EQ(loop.has_value(), most >= 16) << most;
    if (!loop) continue;
    EXPECT_EQ(loop->backend_report().fallbacks.size(), 1U);
    echo_once(*loop);
    // More operations than entries.
    std::vector<TcpPair> pairs(20);
    std::size_t received = 0;
    for (TcpPair& pair : pairs) {
      ASSERT_TRUE(pair.open(*loop));
      pair.server.receive_start([&](Result<Buffer> bytes) { received += bytes->size(); });
    }
    for (TcpPair& pair : pairs) ASSERT_TRUE(pair.client.send_copy("x"));
    for (int turn = 0; turn < 50; ++turn) ASSERT_EQ(loop->run_ready(), 0);
    EXPECT_EQ(received, 20U);
  }
}

TEST_F(IoUringSetUp, EachOpcodeAndFeatureThatLacksIsTheReason) {
  detail::BufferPool* pool = detail::BufferPool::make(1024);
  for (const int opcode : {IORING_OP_NOP, IORING_OP_POLL_ADD, IORING_OP_ACCEPT,
                           IORING_OP_ASYNC_CANCEL, IORING_OP_SEND, IORING_OP_RECV}) {
    OldKernel calls(0);
    calls.opcode_lacking = opcode;
    int error = 0;
    std::string why;
    EXPECT_EQ(detail::make_io_uring_backend(calls, *pool, error, why), nullptr);
    EXPECT_EQ(error, -EOPNOTSUPP);
    EXPECT_TRUE(why.starts_with("the kernel refuses IORING_OP_")) << why;
    EXPECT_EQ(calls.count(CallId::close), 1U);
  }
  for (const unsigned feature : {IORING_FEAT_NODROP, IORING_FEAT_EXT_ARG, IORING_FEAT_FAST_POLL}) {
    OldKernel calls(0);
    calls.features_lacking = feature;
    int error = 0;
    std::string why;
    EXPECT_EQ(detail::make_io_uring_backend(calls, *pool, error, why), nullptr);
    EXPECT_EQ(why, "this kernel's io_uring is older than Linux 5.11");
  }
  OldKernel calls(0);
  calls.operation_lacking = IORING_REGISTER_PBUF_RING;
  int error = 0;
  std::string why;
  EXPECT_EQ(detail::make_io_uring_backend(calls, *pool, error, why), nullptr);
  EXPECT_EQ(error, -EINVAL);
  EXPECT_EQ(why, "the kernel refuses IORING_REGISTER_PBUF_RING (Linux 5.19)");
  pool->abandon();
}

/** Multishot flags are unknown: the entry fails, as on a kernel that does not have them. */
struct OneShotKernel : WatchedRing {
  void on_entry(io_uring_sqe& entry) noexcept override {
    const bool may_be = entry.opcode == IORING_OP_RECV || entry.opcode == IORING_OP_ACCEPT;
    if (!may_be || entry.ioprio == 0) return;
    entry.ioprio = 0x8000;  // no kernel knows it: EINVAL
    ++refused;
  }
  int refused = 0;
};

// T048: the kernel knows no multishot.
TEST_F(IoUringSetUp, TrapT048WithoutMultishotOneShotServes) {
  OneShotKernel calls;
  auto loop = Loop::create(over(calls));
  ASSERT_TRUE(loop);
  echo_once(*loop);
  echo_once(*loop);
  EXPECT_EQ(calls.refused, 3) << "one accept, and the two receives of one call";
}

// ---- Calls -----------------------------------------------------------------------------------

TEST_F(IoUringCalls, OneEnterATurnAndNoOtherCallForAnEcho) {
  CountingCalls calls;
  Loop loop(over(calls));
  constexpr std::size_t count = 50;
  std::vector<TcpPair> pairs(count);
  std::uint64_t echoes = 0;
  constexpr std::uint64_t wanted = 20 * count;
  for (TcpPair& pair : pairs) {
    ASSERT_TRUE(pair.open(loop));
    pair.server.receive_start([&](Result<Buffer> bytes) {
      ASSERT_TRUE(bytes);
      EXPECT_EQ(pair.server.try_send(*bytes).value_or(0), bytes->size());
    });
    pair.client.receive_start([&](Result<Buffer> bytes) {
      ASSERT_TRUE(bytes);
      if (++echoes == wanted) return loop.stop();
      EXPECT_EQ(pair.client.try_send(*bytes).value_or(0), bytes->size());
    });
  }
  for (TcpPair& pair : pairs) ASSERT_TRUE(pair.client.send_copy("0123456789"));
  ASSERT_EQ(loop.run_ready(), 0);
  calls.reset_counts();
  const std::uint64_t turns = loop.counters().turns;
  ASSERT_EQ(loop.run(), 0);
  EXPECT_EQ(echoes, wanted);
  const std::uint64_t turns_of_run = loop.counters().turns - turns;
  EXPECT_LE(calls.count(CallId::ring_enter), turns_of_run + 1);  // and one at the end of the run
  for (const CallId call : {CallId::receive, CallId::send, CallId::poll, CallId::epoll_wait_ns,
                            CallId::epoll_control, CallId::event_read, CallId::memory_map}) {
    EXPECT_EQ(calls.count(call), 0U) << static_cast<int>(call);
  }
  EXPECT_LE(calls.count(CallId::ring_register), 2U);  // the descriptor, there and back
}

// One call for so many, not one for each: a turn has places for 256 copies and for 64 KiB of them.
TEST_F(IoUringCalls, CopiesOfManyStreamsInATurnAreHandedOverTogether) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{4096}}) {
    CountingCalls calls;
    Loop loop(over(calls));
    constexpr std::size_t count = 300;
    std::vector<TcpPair> pairs(count);
    std::uint64_t received = 0;
    for (TcpPair& pair : pairs) {
      ASSERT_TRUE(pair.open(loop));
      pair.server.receive_start([&](Result<Buffer> bytes) {
        ASSERT_TRUE(bytes);
        received += bytes->size();
        if (received == count * size) loop.stop();
      });
    }
    ASSERT_EQ(loop.run_ready(), 0);
    const std::string message(size, 'x');
    Timer timer(loop);
    timer.after(1ns, [&] {
      calls.reset_counts();
      for (TcpPair& pair : pairs)
        EXPECT_EQ(pair.client.try_send(std::as_bytes(std::span(message))).value_or(0), size);
      EXPECT_EQ(calls.count(CallId::ring_enter), size == 1 ? 1U : (count - 1) * size / 65'536);
      EXPECT_EQ(calls.count(CallId::send), 0U);
    });
    ASSERT_EQ(loop.run(), 0);
    EXPECT_EQ(received, count * size);
  }
}

TEST_F(IoUringCalls, StartedAndStoppedInATurnNeverReachesTheKernel) {
  CountingCalls calls;
  Loop loop(over(calls));
  TcpPair pair;
  ASSERT_TRUE(pair.open(loop));
  calls.reset_counts();
  for (int round = 0; round < 100; ++round) {
    pair.server.receive_start([](Result<Buffer>) { FAIL(); });
    pair.server.receive_stop();
  }
  EXPECT_EQ(calls.total(), 0U);
}

// ---- Bytes that try_send() copies --------------------------------------------------------------

TEST_P(IoUring, CopiesGoOutAtTheEndOfTheRun) {
  Pair pair = make_pair();
  in_callback(loop, [&] { ASSERT_TRUE(pair.client.send_copy("bye")); });
  std::array<char, 8> bytes{};
  EXPECT_EQ(::recv(pair.server.native(), bytes.data(), bytes.size(), MSG_DONTWAIT), 3);
}

// The kernel is silent about what it took whole: nothing else may be waiting for that.
TEST_P(IoUring, LoopEndsAfterItsLastCopy) {
  Pair pair = make_pair();
  Timer timer(loop);
  timer.after(1ns, [&] { ASSERT_TRUE(pair.client.send_copy("bye")); });
  ASSERT_EQ(loop.run(), 0);
  std::array<char, 8> bytes{};
  EXPECT_EQ(::recv(pair.server.native(), bytes.data(), bytes.size(), MSG_DONTWAIT), 3);
}

TEST_P(IoUring, SendBehindACopyNeedsNoOtherEvent) {
  Pair pair = make_pair();
  Timer timer(loop);
  int sent = 0;
  timer.after(1ns, [&] {
    EXPECT_EQ(pair.client.try_send(bytes_of("abc")).value_or(0), 3U);
    pair.client.send(bytes_of("def"), [&](Result<void> result) { sent += result ? 1 : 0; });
  });
  ASSERT_EQ(loop.run(), 0);
  EXPECT_EQ(sent, 1);
  std::array<char, 8> bytes{};
  ASSERT_EQ(::recv(pair.server.native(), bytes.data(), bytes.size(), MSG_DONTWAIT), 6);
  EXPECT_EQ(std::string_view(bytes.data(), 6), "abcdef");
}

TEST_P(IoUring, CopiesOfOneTurnJoinAndKeepTheirOrder) {
  Pair first = make_pair();
  Pair second = make_pair();
  std::string expected;
  in_callback(loop, [&] {
    for (int i = 0; i < 400; ++i) {
      const std::string piece = std::to_string(i) + ";";
      expected += piece;
      EXPECT_EQ(first.client.try_send(bytes_of(piece)).value_or(0), piece.size());
      EXPECT_EQ(second.client.try_send(bytes_of(piece)).value_or(0), piece.size());
    }
    const std::string large = pattern(20'000);
    expected += large;
    EXPECT_EQ(first.client.try_send(bytes_of(large)).value_or(0), large.size());
    EXPECT_EQ(second.client.try_send(bytes_of(large)).value_or(0), large.size());
  });
  for (Pair* pair : {&first, &second}) {
    Inbox inbox;
    pair->server.receive_start(inbox.callback());
    ASSERT_TRUE(until([&] { return inbox.text.size() >= expected.size(); }));
    EXPECT_TRUE(same_bytes(inbox.text, expected));
    pair->server.receive_stop();
  }
}

TEST_P(IoUring, ShutdownCloseAndGracefulCloseComeBehindTheCopies) {
  for (int way = 0; way < 4; ++way) {
    Pair pair = make_pair();
    Outcome shut;
    in_callback(loop, [&] {
      ASSERT_TRUE(pair.client.send_copy("last words"));
      switch (way) {
        case 0:
          pair.client.shutdown_send(shut.callback());
          break;
        case 1:
          pair.client.close();
          break;
        case 2:
          pair.client.close_gracefully();
          break;
        default:
          pair.client = TcpStream();
          break;
      }
    });
    Inbox inbox;
    pair.server.receive_start(inbox.callback());
    ASSERT_TRUE(until([&] { return inbox.over(); }));
    EXPECT_EQ(inbox.text, "last words") << way;
    EXPECT_EQ(inbox.ends, 1) << way;
  }
}

TEST_P(IoUring, FailureOfACopyIsToldByTheNextSendAndInPlaceOfACleanEnd) {
  for (const bool sends : {true, false}) {
    FaultyLoop faulty(GetParam());
    Pair pair = make_pair(*faulty.loop);
    faulty.calls->fail(CallId::send, 1, ECONNRESET);
    in_callback(*faulty.loop, [&] { ASSERT_TRUE(pair.client.send_copy("lost")); });
    ASSERT_EQ(faulty.loop->run_ready(), 0);
    if (sends) {
      EXPECT_EQ(pair.client.send_copy("next").error().code(), std::errc::connection_reset);
      EXPECT_EQ(pair.client.try_send(bytes_of("x")).error().code(), std::errc::connection_reset);
    }
    pair.server.close();
    Inbox inbox;
    pair.client.receive_start(inbox.callback());
    ASSERT_TRUE(until(*faulty.loop, [&] { return inbox.over(); }));
    EXPECT_EQ(inbox.ends, 0);
    EXPECT_EQ(inbox.code, std::errc::connection_reset);
  }
}

// ---- Buffers ---------------------------------------------------------------------------------

// A sender that fills every buffer of the ring, beside one that sends a byte now and then.
TEST_P(IoUring, OneBusySourceDoesNotDrainTheRing) {
  LoopOptions small = options();
  small.buffer_size = 64;
  Loop own(small);
  Pair busy = make_pair(own);
  Pair calm = make_pair(own);
  std::string got;
  std::uint64_t turn = 0;
  int in_turn = 0;
  busy.server.receive_start([&](Result<Buffer> bytes) {
    got += bytes->text();
    in_turn = own.counters().turns == turn ? in_turn + 1 : 1;
    turn = own.counters().turns;
    EXPECT_LE(in_turn, 4);
  });
  int pings = 0;
  calm.server.receive_start([&](Result<Buffer>) { ++pings; });
  const std::string sent = pattern(200'000);
  Outcome done;
  busy.client.send(bytes_of(sent), done.callback());
  ASSERT_EQ(own.run_once(1s), 0);
  int rounds = 0;
  while (got.size() < sent.size()) {
    const int before = pings;
    ASSERT_TRUE(calm.client.send_copy("x"));
    for (int turns = 0; turns < 4 && pings == before; ++turns) ASSERT_EQ(own.run_once(1s), 0);
    ASSERT_GT(pings, before) << "round " << rounds;
    ++rounds;
  }
  EXPECT_GT(rounds, 10);
  EXPECT_TRUE(same_bytes(got, sent));
}

TEST_P(IoUring, MoreSourcesThanBuffersAllGetTheirBytes) {
  constexpr std::size_t count = 400;  // the ring has 256 at most
  std::vector<Pair> pairs;
  std::vector<std::string> got(count);
  for (std::size_t i = 0; i < count; ++i) {
    pairs.push_back(make_pair());
    pairs[i].server.receive_start([&, i](Result<Buffer> bytes) { got[i] += bytes->text(); });
  }
  settle(2);
  for (int round = 0; round < 5; ++round) {
    for (Pair& pair : pairs) ASSERT_TRUE(pair.client.send_copy("abc"));
    ASSERT_TRUE(until([&] {
      return std::ranges::all_of(got, [&](const std::string& text) {
        return text.size() == 3U * static_cast<unsigned>(round + 1);
      });
    }));
  }
  EXPECT_TRUE(rests());
}

// What had arrived when a reader was paused is the next reader's, whichever kind it is.
TEST_P(IoUring, KeptBytesGoToTheNextReceive) {
  LoopOptions small = options();
  small.buffer_size = 10;
  Loop own(small);
  Pair pair = make_pair(own);
  const std::string sent = pattern(100);
  std::string got;
  pair.server.receive_start([&](Result<Buffer> bytes) {
    got += bytes->text();
    pair.server.receive_stop();
  });
  ASSERT_TRUE(pair.client.send_copy(sent));
  pair.client.shutdown_send({});
  ASSERT_TRUE(until(own, [&] { return !got.empty(); }));
  EXPECT_TRUE(rests(own));
  std::array<char, 7> bytes{};
  for (int i = 0; i < 3; ++i) {
    Outcome part;
    starting([&] {
      pair.server.receive_into(std::as_writable_bytes(std::span(bytes)), part.count_callback());
    });
    ASSERT_TRUE(until(own, [&] { return part.done(); }));
    ASSERT_TRUE(part.ok());
    got.append(bytes.data(), part.count);
  }
  Outcome one;
  pair.server.receive(one.receive_callback());
  ASSERT_TRUE(until(own, [&] { return one.done(); }));
  got += one.text;
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until(own, [&] { return inbox.over(); }));
  EXPECT_TRUE(same_bytes(got + inbox.text, sent));
  EXPECT_EQ(inbox.ends, 1);
}

// The kernel tells a reset once. A send in flight was given it, and behind it, while the receiver
// had its share of the turn in small buffers, came what the kernel then says to receives: the end.
TEST_P(IoUring, ResetGivenToASendIsNoCleanEndForTheReceiver) {
  LoopOptions small = options();
  small.buffer_size = 64;
  Loop own(small);
  Pair pair = make_pair(own);
  stuff(pair.client);
  Outcome sent;
  pair.client.send(bytes_of("queued"), sent.callback());
  settle(own, 2);
  const std::string bytes = pattern(1000);
  ASSERT_TRUE(pair.server.send_copy(bytes));
  pair.server.abort();
  Inbox inbox;
  pair.client.receive_start(inbox.callback());
  ASSERT_TRUE(until(own, [&] { return inbox.over() && sent.done(); }));
  EXPECT_TRUE(same_bytes(inbox.text, bytes));
  EXPECT_EQ(inbox.ends, 0);
  EXPECT_EQ(inbox.code, std::errc::connection_reset);
}

// ---- Threads ---------------------------------------------------------------------------------

TEST_P(IoUring, TrapT144MadeHereRunThereAndThereAgain) {
  Loop own(options());
  TcpPair pair;
  int calls = 0;
  for (int round = 0; round < 3; ++round) {
    std::thread([&] {
      ASSERT_TRUE(pair.open(own));
      pair.server.receive([&](Result<Buffer> bytes) {
        EXPECT_EQ(bytes->text(), "x");
        ++calls;
      });
      ASSERT_TRUE(pair.client.send_copy("x"));
      EXPECT_EQ(own.run(), 0);
    }).join();
    EXPECT_EQ(calls, round + 1);
  }
}

// The thread that ran it lives, and has left a receive in the ring: closing from here ends it.
TEST_P(IoUring, ClosedByAThreadThatDidNotRunIt) {
  Loop own(options());
  TcpPair pair;
  std::atomic<int> step = 0;
  int ended = 0;
  std::thread runner([&] {
    ASSERT_TRUE(pair.open(own));
    pair.server.receive_start([&](Result<Buffer> bytes) {
      ended += !bytes && bytes.error().code() == std::errc::operation_canceled ? 1 : 0;
    });
    EXPECT_EQ(own.run_ready(), 0);
    step = 1;
    step.notify_all();
    step.wait(1);
  });
  step.wait(0);
  pair.server.close();
  pair.client.close();
  EXPECT_EQ(own.run_ready(), 0);
  EXPECT_EQ(ended, 1);
  TcpPair next;
  ASSERT_TRUE(next.open(own)) << "this thread's ring works";
  step = 2;
  step.notify_all();
  runner.join();
}

// A child that submits into the ring of its parent would have its completions there.
TEST_P(IoUring, TrapT035ChildLeavesTheRingOfItsParentAlone) {
  for (const bool after_fork : {false, true}) {
    std::optional<Loop> own(options());
    Pair pair = make_pair(*own);
    std::string parents;
    pair.server.receive_start([&](Result<Buffer> bytes) {
      if (bytes) parents += bytes->text();
    });
    ASSERT_EQ(own->run_ready(), 0);
    EXPECT_EQ(run_child([&] {
                if (after_fork) {
                  if (!own->after_fork() || own->run_ready() != 0) return 1;
                  pair.server.receive_stop();
                } else if (own->run_ready() != static_cast<int>(Errc::forked)) {
                  return 2;
                }
                pair = Pair();  // closes, and cancels what is the parent's
                own.reset();
                return parents.empty() ? 0 : 3;
              }),
              0);
    settle(*own);
    EXPECT_EQ(parents, "");
    ASSERT_TRUE(pair.client.send_copy("still mine"));
    ASSERT_TRUE(until(*own, [&] { return parents == "still mine"; }));
  }
}

}  // namespace
}  // namespace evix::test
