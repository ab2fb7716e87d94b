#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/random_choices.hpp"
#include "backend/tcp_support.hpp"
#include "backend/thread_end_support.hpp"
#include "support/descriptors.hpp"

/** @file
 * Traps of operations in flight that every backend can fall into: docs/traps.md, T135 to T143.
 */
namespace evix::test {
namespace {

class InFlightTraps : public ThreadEnd {};
EVIX_OVER_BACKENDS(InFlightTraps);

// ---- T135: a close that does not end what is in flight -----------------------------------------

// Clients go on connecting; the port is listened on again at once, after close() and in the
// callback of the accept that it ended. 100 clients and 1,000 rounds with EVIX_TEST_FULL=1, else 20
// and 40.
TEST_P(InFlightTraps, TrapT135ClosedListenerLetsGoOfItsPort) {
  const std::size_t clients_count = scaled(100, 20);
  RandomChoices choices(1);
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen(own_address()));
  const Address address = *listener.local_address();
  std::size_t descriptors = 0;
  for (std::uint64_t round = 0; round < scaled(1000, 40); ++round) {
    const bool inside = round % 2 == 1;
    int cancelled = 0;
    const auto listen_again = [&] {
      listener = TcpListener(loop);
      const auto listening = listener.listen(address);
      ASSERT_TRUE(listening.has_value()) << listening.error().message();
    };
    std::vector<TcpStream> accepted;
    const auto keep = [&](Result<TcpStream> stream) {
      if (stream) accepted.push_back(std::move(*stream));
    };
    std::vector<TcpStream> clients;
    std::vector<Outcome> connected(clients_count);
    if (!inside) listener.accept_start(keep);
    settle(2);
    for (std::size_t i = 0; i < clients_count; ++i) {
      clients.emplace_back(loop).connect(address, connected[i].callback());
      if (choices.below(8) == 0) {
        ASSERT_EQ(loop.run_ready(), 0);
      }
    }
    if (inside) {
      // Takes all that wait; the last one waits itself.
      std::function<void()> take = [&] {
        listener.accept([&](Result<TcpStream> stream) {
          if (stream) {
            accepted.push_back(std::move(*stream));
            return take();
          }
          EXPECT_EQ(stream.error().code(), std::errc::operation_canceled);
          ++cancelled;
          listen_again();
        });
      };
      take();
      settle(static_cast<int>(clients_count) + 2);
      clients.emplace_back(loop).connect(address, [](Result<void>) {});
      listener.close();
      ASSERT_TRUE(until([&] { return cancelled == 1; }));
    } else {
      listener.close();
      listen_again();
    }
    ASSERT_TRUE(until([&] { return std::ranges::all_of(connected, &Outcome::done); }));
    for (TcpStream& client : clients) client.abort();
    accepted.clear();
    clients.clear();
    settle(2);
    EXPECT_EQ(loop.counters().connections, 0U);
    if (round == 0) descriptors = open_descriptors();
    EXPECT_EQ(open_descriptors(), descriptors);
  }
}

// ---- T136: memory that ends before the operation -----------------------------------------------

/** Memory that nobody touches between its operations: what does is seen, or ends the process. */
class GuardedMemory {
 public:
  static constexpr std::size_t size = 4096;

  GuardedMemory()
      : memory_(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    close(false);
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() {
    (void)open();
    ::munmap(memory_, size);
  }

  /** For one operation. */
  std::span<std::byte> open() {
    ::mprotect(memory_, size, PROT_READ | PROT_WRITE);
    const std::span<std::byte> bytes(static_cast<std::byte*>(memory_), size);
    EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte each) { return each == untouched; }))
        << "written to after the callback";
    return bytes;
  }
  /** After its callback. A write of the kernel to forbidden memory fails and leaves no trace. */
  void close(bool forbid) {
    std::memset(memory_, static_cast<int>(untouched), size);
    if (forbid) ::mprotect(memory_, size, PROT_NONE);
  }

 private:
  static constexpr std::byte untouched{0xa5};
  void* memory_;
};

struct Reader {
  Pair pair;
  GuardedMemory memory;
  std::string sent;
  std::string got;
  bool reading = false;
};

// Each receive_into() ends by bytes, by its time or by a close. Its bytes stay in order, too. 10^6
// reads with EVIX_TEST_FULL=1, 5,000 by default.
TEST_P(InFlightTraps, TrapT136MemoryIsTheCallersAfterTheCallback) {
  constexpr std::size_t count = 10;
  RandomChoices choices(1);
  const std::uint64_t wanted = scaled(1'000'000, 5000);
  std::uint64_t reads = 0;
  while (reads < wanted) {
    std::vector<Reader> readers(count);
    std::function<void(Reader&)> read = [&](Reader& reader) {
      reader.pair.server.set_receive_timeout(std::chrono::microseconds(1 + choices.below(200)));
      reader.reading = true;
      std::byte* const bytes = reader.memory.open().data();
      reader.pair.server.receive_into(
          {bytes, GuardedMemory::size}, [&, bytes](Result<std::size_t> result) {
            ++reads;
            reader.reading = false;
            if (result) reader.got.append(reinterpret_cast<const char*>(bytes), *result);
            reader.memory.close(choices.below(2) == 0);
            if (result || result.error().code() == std::errc::timed_out) read(reader);
          });
    };
    for (Reader& reader : readers) {
      reader.pair = make_pair();
      read(reader);
    }
    Timer timer(loop);
    std::uint32_t piece = 0;
    const auto send = [&] {
      Reader& reader = readers[choices.below(count)];
      const std::string text = pattern(1 + choices.below(500), ++piece);
      reader.sent += text;
      (void)reader.pair.client.send_copy(text);
    };
    timer.every(50us, send);
    const std::uint64_t end = reads + 1000;
    ASSERT_TRUE(until([&] { return reads >= end; }));
    for (Reader& reader : readers) {
      reader.pair.server.close();
      if (choices.below(2) == 0) {
        ASSERT_EQ(loop.run_ready(), 0);
      }
      (void)reader.pair.client.send_copy("after the close");
    }
    ASSERT_TRUE(until([&] { return std::ranges::none_of(readers, &Reader::reading); }));
    for (int i = 0; i < 20; ++i) send();
    settle(3);
    for (const Reader& reader : readers) {
      EXPECT_TRUE(
          same_bytes(reader.got, std::string_view(reader.sent).substr(0, reader.got.size())));
    }
  }
}

// ---- T141: bytes against the deadline ----------------------------------------------------------

// Each piece comes 200 us before to 200 us after the time of a receive is over. 10^5 with
// EVIX_TEST_FULL=1, 1,000 by default. The gaps are the load, nobody waits for them.
TEST_P(InFlightTraps, TrapT141BytesThatComeAtTheDeadlineCount) {
  const std::uint64_t rounds = scaled(100'000, 1000);
  Pair pair = make_pair();
  std::string expected;
  std::vector<Duration> gaps;
  std::vector<std::size_t> ends;
  RandomChoices choices(1);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    expected += pattern(1 + choices.below(100), static_cast<std::uint32_t>(round));
    ends.push_back(expected.size());
    gaps.push_back(std::chrono::microseconds(100 + choices.below(400)));
  }
  const auto piece = [&](std::uint64_t round) {
    const std::size_t begin = round == 0 ? 0 : ends[round - 1];
    return std::string_view(expected).substr(begin, ends[round] - begin);
  };
  std::atomic<std::uint64_t> allowed = 0;
  std::jthread sender;
  if (!is_sim()) {
    sender = std::jthread([&, handle = pair.client.native()] {
      for (std::uint64_t round = 0; round < rounds; ++round) {
        allowed.wait(round);  // the loop is not ahead of it
        std::this_thread::sleep_for(gaps[round]);
        const std::string_view bytes = piece(round);
        EXPECT_EQ(::send(handle, bytes.data(), bytes.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(bytes.size()));
      }
    });
  }
  struct LetAllGo {
    ~LetAllGo() {
      allowed = rounds;
      allowed.notify_one();
    }
    std::atomic<std::uint64_t>& allowed;
    std::uint64_t rounds;
  } const at_the_end{allowed, rounds};
  std::string got;
  Timer timer(loop);
  std::array<std::byte, 128> memory{};
  std::uint64_t timed_out = 0;
  bool done = false;
  const auto note = [&](const Result<std::size_t>& count) {
    done = true;
    if (count) {
      got.append(reinterpret_cast<const char*>(memory.data()), *count);
    } else {
      EXPECT_EQ(count.error().code(), std::errc::timed_out);
      ++timed_out;
    }
  };
  const auto receive = [&](bool into) {
    done = false;
    if (into) return pair.server.receive_into(memory, note);
    pair.server.receive([&](Result<Buffer> bytes) {
      if (!bytes) return note(Failure(bytes.error()));
      std::ranges::copy(bytes->bytes(), memory.begin());
      note(bytes->size());
    });
  };
  for (std::uint64_t round = 0; round < rounds; ++round) {
    if (is_sim()) {
      timer.after(gaps[round], [&] { EXPECT_TRUE(pair.client.send_copy(piece(round))); });
    }
    pair.server.set_receive_timeout(300us);
    receive(round % 2 == 1);
    allowed = round + 1;
    allowed.notify_one();
    ASSERT_TRUE(until([&] { return done; }));
    pair.server.set_receive_timeout(forever);
    if (got.size() < ends[round]) {
      receive(round % 2 == 0);
      ASSERT_TRUE(until([&] { return done; })) << "bytes are lost";
    }
    ASSERT_EQ(got.size(), ends[round]);
  }
  EXPECT_TRUE(same_bytes(got, expected));
  EXPECT_GT(timed_out, 0U);
  EXPECT_LT(timed_out, rounds);
}

// A turn that may give one result gives that of another stream; then the time of the receive is
// over, and the ring has its bytes already.
TEST_P(InFlightTraps, TrapT141BytesThatComeBeforeTheCancelCount) {
  LoopOptions one_result = options();
  one_result.completion_budget = 1;
  Loop own(one_result);
  Pair pair = make_pair(own);
  Pair other = make_pair(own);
  Timer timer(own);
  std::array<std::byte, 8> memory{};
  std::size_t others = 0;
  other.server.receive_start([&](const Result<Buffer>& bytes) { others += bytes->size(); });
  for (std::size_t round = 1; round <= 50; ++round) {
    pair.server.set_receive_timeout(1ms);
    Outcome first;
    const TimePoint deadline = own.now() + 1ms;
    timer.after(500us, [&] {
      for (TcpStream* stream : {&other.client, &pair.client}) {
        if (is_sim()) {
          EXPECT_TRUE(stream->send_copy("x"));
        } else {
          EXPECT_EQ(::send(stream->native(), "x", 1, MSG_NOSIGNAL), 1);
        }
      }
      while (!is_sim() && own.now() <= deadline) own.update_now();
    });
    pair.server.receive_into(memory, first.count_callback());
    ASSERT_TRUE(until(own, [&] { return first.done() && others == round; }));
    pair.server.set_receive_timeout(forever);
    if (first.ok()) {
      EXPECT_EQ(first.count, 1U);
      continue;
    }
    EXPECT_EQ(first.code, std::errc::timed_out);
    Outcome second;
    pair.server.receive_into(memory, second.count_callback());
    ASSERT_TRUE(until(own, [&] { return second.done(); })) << "bytes are lost";
    EXPECT_EQ(second.count, 1U);
  }
}

// ---- T143: the thread that started them has ended ----------------------------------------------

// Refused with the documented error where the next thread is told from the first one (which may
// have had the same identity, and then it goes on); no receive fails, and what comes is not lost.
TEST_P(InFlightTraps, TrapT143ReceivesOutliveTheThreadThatRanTheLoop) {
  for (const bool another : {false, true}) {
    Loop own(options());
    Receivers receivers;
    ASSERT_TRUE(start_in_a_thread(own, receivers, [&] {
      const KeepAlive alive = own.keep_alive();
      EXPECT_EQ(own.run_for(10ms), 0);
    }));
    if (another) {
      std::thread([&] {
        receivers.send();
        go_on(own, receivers);
      }).join();
    } else {
      receivers.send();
      EXPECT_EQ(go_on(own, receivers), static_cast<int>(Errc::wrong_thread));
    }
  }
}

}  // namespace
}  // namespace evix::test
