#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/fork_support.hpp"
#include "backend/io_uring_support.hpp"
#include "backend/random_choices.hpp"
#include "backend/thread_end_support.hpp"

/** @file
 * Traps that only a ring has: docs/traps.md, T132 to T148. What every backend can fall into is in
 * in_flight_trap_test.cpp.
 */
namespace evix::test {
namespace {

class IoUringTraps : public ThreadEnd {
 protected:
  /** Waits in the kernel until there is something to read at the stream. */
  static void await_readable(const TcpStream& stream) {
    pollfd asked{stream.native(), POLLIN, 0};
    ASSERT_EQ(::poll(&asked, 1, 5000), 1);
  }
};
EVIX_OVER_IO_URING(IoUringTraps);

// ---- T132: more completions than the queue holds ----------------------------------------------

// Only looked at, never waited for: a wait would bring what was put aside by itself. 300 streams,
// 5000 with EVIX_TEST_FULL=1.
TEST_P(IoUringTraps, TrapT132CompletionsThatFoundNoRoomAllCome) {
  WatchedRing calls;
  calls.entries_most = calls.completions_most = 8;
  Loop own(over(calls));
  const std::size_t count = scaled(5000, 300);
  std::vector<Pair> pairs;
  std::vector<std::string> got(count);
  std::vector<int> sent(count);
  for (std::size_t i = 0; i < count; ++i) {
    pairs.push_back(make_pair(own));
    ASSERT_TRUE(pairs[i].client.send_copy(std::to_string(i)));
    await_readable(pairs[i].server);
  }
  for (std::size_t i = 0; i < count; ++i) {
    pairs[i].server.receive_start([&, i](Result<Buffer> bytes) { got[i] += bytes->text(); });
    pairs[i].server.send(bytes_of("x"), [&, i](Result<void> done) { sent[i] += done ? 1 : 100; });
  }
  Timer timer(own);
  std::size_t ticks = 0;
  std::size_t turns = 0;
  const auto all_done = [&] {
    return std::ranges::all_of(sent, [](int done) { return done > 0; }) &&
           std::ranges::none_of(got, &std::string::empty);
  };
  for (; turns < 10 * count && !all_done(); ++turns) {
    timer.after(1ns, [&] { ++ticks; });
    ASSERT_EQ(own.run_ready(), 0);
    EXPECT_EQ(ticks, turns + 1) << "timers wait for the queue";
  }
  EXPECT_LT(turns, 10 * count);
  settle(own);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(got[i], std::to_string(i));
    EXPECT_EQ(sent[i], 1);
  }
  EXPECT_GT(calls.overflows, 0U) << "the queue was large enough";
  EXPECT_EQ(calls.lost(), 0U);
}

// ---- T133: no buffer ---------------------------------------------------------------------------

struct CountsEmptyRings : WatchedRing {
  void on_completion(io_uring_cqe& completion) noexcept override {
    empty_rings += completion.res == -ENOBUFS ? 1 : 0;
  }
  int empty_rings = 0;
};

// 16 buffers, which is the least; what the user holds is not one of them.
TEST_P(IoUringTraps, TrapT133ReceivesThatFoundNoBufferAreParkedAndFed) {
  constexpr std::size_t count = 100;
  constexpr int rounds = 5;
  CountsEmptyRings calls;
  LoopOptions large = over(calls);
  large.buffer_size = std::size_t{1} << 20;
  Loop own(large);
  std::vector<Pair> pairs;
  std::vector<std::string> got(count);
  std::vector<Buffer> held;
  for (std::size_t i = 0; i < count; ++i) {
    pairs.push_back(make_pair(own));
    pairs[i].server.receive_start([&, i](Result<Buffer> bytes) {
      ASSERT_TRUE(bytes);
      got[i] += bytes->text();
      held.push_back(std::move(*bytes));
    });
  }
  settle(own, 2);
  for (int round = 1; round <= rounds; ++round) {
    calls.empty_rings = 0;
    for (Pair& pair : pairs) ASSERT_TRUE(pair.client.send_copy("abc"));
    for (Pair& pair : pairs) await_readable(pair.server);
    // 16 a turn, in the order in which they were parked.
    for (int turn = 0; turn < 10; ++turn) ASSERT_EQ(own.run_ready(), 0);
    for (const std::string& text : got) EXPECT_EQ(text.size(), 3U * static_cast<unsigned>(round));
    EXPECT_GT(calls.empty_rings, 0) << "there were buffers enough";
    EXPECT_LE(calls.empty_rings, static_cast<int>(count)) << "each is told once";
    if (round == 1) {
      EXPECT_TRUE(rests(own)) << "while the user holds " << held.size();
    }
    held.clear();
  }
}

// ---- T134: the kernel ends a multishot whenever it likes ---------------------------------------

/**
 * Ends a multishot after one of ten of its completions, on average: the operation is cancelled
 * inside the kernel, and its last result loses the flag, as if it had ended with that one.
 */
struct EndsMultishots : WatchedRing {
  explicit EndsMultishots(std::uint64_t seed) : choices(seed) {}

  void on_entry(io_uring_sqe& entry) noexcept override {
    if (entry.user_data != 0) opcodes[entry.user_data] = entry.opcode;
  }
  void on_completion(io_uring_cqe& completion) noexcept override {
    if ((completion.flags & IORING_CQE_F_MORE) == 0) return;
    int& left = completions_left[opcodes[completion.user_data]];
    if (left-- > 0) return;
    left = static_cast<int>(choices.below(19));
    chosen.push_back(completion.user_data);
  }
  int ring_enter(int fd, unsigned submit_count, unsigned wait_count, unsigned flags,
                 const void* argument, std::size_t argument_size) noexcept override {
    const int taken =
        WatchedRing::ring_enter(fd, submit_count, wait_count, flags, argument, argument_size);
    const std::vector<std::uint64_t> tokens = std::exchange(chosen, {});
    for (const std::uint64_t token : tokens) end(token);
    return taken;
  }

  void end(std::uint64_t token) noexcept {
    io_uring_sync_cancel_reg asked{};
    asked.addr = token;
    asked.timeout = {-1, -1};
    if (ring_register(ring, IORING_REGISTER_SYNC_CANCEL, &asked, 1) < 0) return;  // has ended
    io_uring_cqe* last = nullptr;                                                 // with a result
    for (unsigned position = word(layout.cq_off.head);; ++position) {
      while (position == completions_end()) {
        if (CountingCalls::ring_enter(ring, 0, 0, IORING_ENTER_GETEVENTS, nullptr, _NSIG / 8) < 0) {
          return;
        }
      }
      io_uring_cqe& each = completion(position);
      if (each.user_data != token) continue;
      if ((each.flags & IORING_CQE_F_MORE) != 0) {
        last = &each;
        continue;
      }
      if (each.res != -ECANCELED || last == nullptr) return;
      each = {};
      last->flags &= ~IORING_CQE_F_MORE;
      ++ended[opcodes[token]];
      return;
    }
  }

  RandomChoices choices;
  std::map<std::uint64_t, int> opcodes;  // by token
  std::map<int, int> completions_left;
  std::map<int, int> ended;
  std::vector<std::uint64_t> chosen;
};

// Accepts, receives and the poll of the wake-ups; there are no timeouts in the ring.
TEST_P(IoUringTraps, TrapT134MultishotsThatEndAtAnyTimeLoseNothing) {
  constexpr int clients = 60;
  constexpr int pieces = 20;
  constexpr int wakes = 100;
  for (std::uint64_t seed = 1; seed <= scaled(100, 3); ++seed) {
    SCOPED_TRACE(seed);
    EndsMultishots calls(seed);
    Loop own(over(calls));
    TcpListener listener(own);
    std::deque<TcpStream> servers;
    std::deque<Inbox> inboxes;
    ASSERT_TRUE(listener.listen("127.0.0.1:0", [&](Result<TcpStream> accepted) {
      ASSERT_TRUE(accepted);
      servers.push_back(std::move(*accepted));
      servers.back().receive_start(inboxes.emplace_back().callback());
    }));
    std::deque<TcpStream> senders;
    std::vector<std::string> expected(clients);
    for (int i = 0; i < clients; ++i) {
      senders.emplace_back(own).connect(*listener.local_address(), [](Result<void>) {});
      ASSERT_TRUE(
          until(own, [&] { return senders.back().connected() && servers.size() == i + 1U; }));
    }
    // One after the other, so that each wakes the loop.
    std::atomic<int> posts = 0;
    const std::jthread waker([&, poster = own.poster()] {
      for (int i = 0; i < wakes && posts >= 0; ++i) {
        EXPECT_TRUE(poster.post([&] {
          ++posts;
          posts.notify_one();
        }));
        posts.wait(i);
      }
    });
    struct LetGo {
      ~LetGo() {
        posts = -1;
        posts.notify_one();
      }
      std::atomic<int>& posts;
    } const at_the_end{posts};
    RandomChoices choices(seed + 1000);
    std::size_t bytes_expected = 0;
    for (int piece = 0; piece < pieces; ++piece) {
      for (int i = 0; i < clients; ++i) {
        const std::string text =
            pattern(1 + choices.below(3000), static_cast<std::uint32_t>(i * pieces + piece));
        EXPECT_TRUE(senders[static_cast<std::size_t>(i)].send_copy(text));
        expected[static_cast<std::size_t>(i)] += text;
        bytes_expected += text.size();
      }
      EXPECT_EQ(own.run_ready(), 0);
    }
    EXPECT_TRUE(until(own, [&] {
      std::size_t sum = 0;
      for (const Inbox& inbox : inboxes) sum += inbox.text.size();
      return sum == bytes_expected && posts == wakes;
    }));
    settle(own);
    EXPECT_EQ(servers.size(), static_cast<std::size_t>(clients));
    for (std::size_t i = 0; i < inboxes.size(); ++i) {
      EXPECT_TRUE(same_bytes(inboxes[i].text, expected[i]));
      EXPECT_FALSE(inboxes[i].over());
    }
    for (const int opcode : {IORING_OP_ACCEPT, IORING_OP_RECV, IORING_OP_POLL_ADD}) {
      EXPECT_GT(calls.ended[opcode], 0) << opcode;
    }
  }
}

// ---- T136: what the kernel may still write to --------------------------------------------------

/** Which memory of the caller the kernel may read or write: entries without their last word. */
struct MemoryInFlight : WatchedRing {
  struct Range {
    std::uint64_t address;
    std::uint64_t size;
  };
  void on_entry(io_uring_sqe& entry) noexcept override {
    const bool transfer = entry.opcode == IORING_OP_RECV || entry.opcode == IORING_OP_SEND;
    const bool silent = (entry.flags & IOSQE_CQE_SKIP_SUCCESS) != 0;
    if (!transfer || silent || (entry.flags & IOSQE_BUFFER_SELECT) != 0) return;
    ranges[entry.user_data] = {entry.addr, entry.len};
    ++seen;
  }
  void on_completion(io_uring_cqe& completion) noexcept override {
    if ((completion.flags & IORING_CQE_F_MORE) == 0) ranges.erase(completion.user_data);
  }
  bool has(const void* memory, std::size_t size) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    return std::ranges::any_of(ranges, [&](const auto& each) {
      return each.second.address < begin + size && begin < each.second.address + each.second.size;
    });
  }
  std::map<std::uint64_t, Range> ranges;  // by token
  int seen = 0;
};

// A ring of 8 entries for 20 streams: what asks for an entry often finds none. Each stream reads
// until its time is over, or it is closed; when a callback runs the kernel has that memory no more.
// 10^6 reads with EVIX_TEST_FULL=1, 10^4 by default.
TEST_P(IoUringTraps, TrapT136KernelHasNoMemoryAfterItsCallback) {
  constexpr std::size_t count = 20;
  constexpr int reads = 50;
  constexpr std::size_t input_size = 4096;
  MemoryInFlight calls;
  calls.entries_most = 8;
  Loop own(over(calls));
  RandomChoices choices(1);
  const std::string output = pattern(count * 300'000);
  std::vector<std::array<std::byte, input_size>> inputs(count);
  for (std::uint64_t round = 0; round < scaled(1000, 10); ++round) {
    std::vector<Pair> pairs;
    std::vector<int> left(count, reads);
    int ended = 0;
    std::function<void(std::size_t)> read = [&](std::size_t i) {
      TcpStream& server = pairs[i].server;
      server.set_receive_timeout(std::chrono::microseconds(1 + choices.below(200)));
      server.receive_into(inputs[i], [&, i](Result<std::size_t> result) {
        EXPECT_FALSE(calls.has(inputs[i].data(), input_size));
        if (--left[i] > 0 && (result || result.error().code() == std::errc::timed_out)) {
          if (choices.below(8) == 0) {
            EXPECT_TRUE(pairs[i].client.send_copy("x"));
          }
          return read(i);
        }
        ++ended;
        pairs[i].server.close();
      });
    };
    for (std::size_t i = 0; i < count; ++i) pairs.push_back(make_pair(own));
    for (std::size_t i = 0; i < count; ++i) {
      const std::string_view own_part = std::string_view(output).substr(i * 300'000, 300'000);
      pairs[i].server.send(bytes_of(own_part), [&, own_part](Result<void>) {
        ++ended;
        EXPECT_FALSE(calls.has(own_part.data(), own_part.size()));
      });
      read(i);
    }
    Timer closer(own);
    closer.every(500us, [&] { pairs[choices.below(count)].server.close(); });
    ASSERT_TRUE(until(own, [&] { return ended == 2 * count; }));
  }
  EXPECT_GT(calls.seen, 2000);
}

// ---- T143: the thread that submitted has ended -------------------------------------------------

// What it left is cancelled by the kernel when data comes, unless the ring collects its work. The
// next thread has, as a rule, the identity of the first, and then finds that ring.
TEST_P(IoUringTraps, TrapT143CancelledByTheEndOfItsThreadGoesOn) {
  constexpr unsigned newest = IORING_SETUP_DEFER_TASKRUN;
  for (const unsigned unknown : {0U, newest, newest | IORING_SETUP_SINGLE_ISSUER}) {
    SCOPED_TRACE(unknown);
    OldKernel calls(unknown);
    Loop own(over(calls));
    Receivers receivers;
    ASSERT_TRUE(start_in_a_thread(own, receivers, [&] { EXPECT_EQ(own.run_ready(), 0); }));
    receivers.send();
    std::thread([&] { go_on(own, receivers); }).join();
  }
}

// ---- T144: a ring belongs to a thread ----------------------------------------------------------

// As daemon(3) does it, with a loop that was made before, and had run or not.
TEST_P(IoUringTraps, TrapT144RunByTheChildOfAChild) {
  for (const bool has_run : {false, true}) {
    Loop own(options());
    if (has_run) echo_once(own);
    const int ended = run_child([&] {
      return run_child([&] {
        if (own.run_ready() != static_cast<int>(Errc::forked)) return 1;
        if (!own.after_fork() || own.run_ready() != 0) return 2;
        echo_once(own);
        return HasFailure() ? 3 : 0;
      });
    });
    EXPECT_EQ(ended, 0) << has_run;
    echo_once(own);
  }
}

// ---- T148: a bad entry among good ones ---------------------------------------------------------

struct BadEntry : WatchedRing {
  using WatchedRing::WatchedRing;
  void on_entry(io_uring_sqe& entry) noexcept override {
    if (entry.opcode == IORING_OP_RECV && receives++ == bad) entry.ioprio = 0x8000;
  }
  int receives = 0;
  int bad = -1;
};

// 64 entries, the bad one at each place; also on a kernel that stops there.
TEST_P(IoUringTraps, TrapT148BadEntryStopsNoOther) {
  constexpr int count = 64;
  for (const unsigned unknown : {0U, unsigned{IORING_SETUP_SUBMIT_ALL}}) {
    BadEntry calls(unknown);
    Loop own(over(calls));
    std::vector<Pair> pairs;
    for (int i = 0; i < count; ++i) pairs.push_back(make_pair(own));
    for (int bad = 0; bad < count; ++bad) {
      SCOPED_TRACE(bad);
      std::vector<Outcome> outcomes(count);
      std::array<std::byte, count> bytes{};
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(pairs[i].client.send_copy("x"));
        await_readable(pairs[i].server);
        pairs[i].server.receive_into({&bytes[i], 1}, outcomes[i].count_callback());
      }
      calls.receives = 0;
      calls.bad = bad;
      ASSERT_EQ(own.run_ready(), 0);
      calls.bad = -1;
      for (int i = 0; i < count; ++i) {
        const Outcome& outcome = outcomes[static_cast<std::size_t>(i)];
        EXPECT_EQ(outcome.calls, 1) << i;
        EXPECT_EQ(outcome.count, i == bad ? 0U : 1U) << i;
        EXPECT_EQ(outcome.code == std::errc::invalid_argument, i == bad) << i;
      }
      // The one that failed has left its byte in the socket.
      Outcome rest;
      pairs[static_cast<std::size_t>(bad)].server.receive(rest.receive_callback());
      ASSERT_TRUE(until(own, [&] { return rest.done(); }));
      EXPECT_EQ(rest.text, "x");
    }
  }
}

}  // namespace
}  // namespace evix::test
