#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/fork_support.hpp"
#include "backend/io_uring_support.hpp"
#include "backend/tcp_support.hpp"

/** @file
 * What try_send() copied over io_uring when the socket turns out to be full.
 */
namespace evix::test {
namespace {

using detail::CallId;

/** Fills the kernel's buffers so that the backend does not know: what try_send() takes is a copy.
 */
class IoUringFull : public TcpConformance {
 protected:
  static std::size_t stuff_unseen(TcpStream& stream) {
    return stuff(stream, [&stream](auto bytes) -> Result<std::size_t> {
      const ssize_t count =
          ::send(stream.native(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count >= 0) return static_cast<std::size_t>(count);
      EXPECT_EQ(errno, EAGAIN);
      return std::size_t{0};
    });
  }
  /** What comes behind all that can be read: 0 for a clean end, or the error. */
  static int end_of(const RawSocket& peer) {
    std::vector<char> bytes(1 << 20);
    ssize_t count = 0;
    do {
      count = ::recv(peer.get(), bytes.data(), bytes.size(), 0);
    } while (count > 0);
    return count == 0 ? 0 : errno;
  }
  /** A stream that is closed with a copy that the kernel did not take. @return what it stuffed. */
  static std::size_t close_with_a_copy(Loop& on, Pair& pair) {
    const std::size_t stuffed = stuff_unseen(pair.client);
    in_callback(on, [&] {
      EXPECT_EQ(pair.client.try_send(bytes_of("waits")).value_or(0), 5U);
      pair.client.close();
    });
    return stuffed;
  }
};
EVIX_OVER_IO_URING(IoUringFull);

TEST_P(IoUringFull, KnownToBeFullItIsAskedEachTime) {
  Pair pair = make_pair();
  const std::size_t stuffed = stuff(pair.client);
  in_callback(loop, [&] { EXPECT_EQ(pair.client.try_send(bytes_of("no")).value_or(99), 0U); });
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return inbox.text.size() == stuffed; }));
  in_callback(loop, [&] {
    EXPECT_EQ(pair.client.try_send(bytes_of("yes")).value_or(0), 3U);
    // The first one went out with a call of its own; the next is collected again.
    EXPECT_EQ(pair.client.try_send(bytes_of("+more")).value_or(0), 5U);
  });
  ASSERT_TRUE(until([&] { return inbox.text.size() == stuffed + 8; }));
  EXPECT_EQ(std::string_view(inbox.text).substr(stuffed), "yes+more");
}

TEST_P(IoUringFull, CopiesForAPeerThatDoesNotReadWaitAndThenGoOut) {
  Pair pair = make_pair();
  const std::size_t stuffed = stuff_unseen(pair.client);
  in_callback(loop, [&] { EXPECT_EQ(pair.client.try_send(bytes_of("waits")).value_or(0), 5U); });
  Outcome shut;
  in_callback(loop, [&] {
    EXPECT_EQ(pair.client.try_send(bytes_of("x")).value_or(99), 0U) << "one at a time";
    ASSERT_TRUE(pair.client.send_copy("+queued"));
    pair.client.shutdown_send(shut.callback());
  });
  EXPECT_TRUE(rests());
  EXPECT_TRUE(loop.alive());
  EXPECT_FALSE(shut.done());
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return inbox.over(); }));
  EXPECT_TRUE(shut.ok()) << shut.message;
  EXPECT_EQ(std::string_view(inbox.text).substr(stuffed), "waits+queued");
}

TEST_P(IoUringFull, UnsentCopiesAloneKeepTheLoopAlive) {
  Pair pair = make_pair();
  const std::size_t stuffed = stuff_unseen(pair.client);
  in_callback(loop, [&] { EXPECT_EQ(pair.client.try_send(bytes_of("waits")).value_or(0), 5U); });
  ASSERT_EQ(loop.run_ready(), 0);
  EXPECT_TRUE(loop.alive());
  std::size_t received = 0;
  std::thread reader([&, handle = pair.server.native()] {
    std::vector<char> bytes(1 << 20);
    while (received < stuffed + 5) {
      const ssize_t count = ::recv(handle, bytes.data(), bytes.size(), 0);
      if (count > 0) received += static_cast<std::size_t>(count);
      if (count < 0) ::poll(nullptr, 0, 1);
    }
  });
  EXPECT_EQ(loop.run(), 0);
  reader.join();
  EXPECT_EQ(received, stuffed + 5);
  EXPECT_FALSE(loop.alive());
}

// As the kernel goes on with what it has of a closed socket.
TEST_P(IoUringFull, ClosedStreamSendsWhatWasTakenAndThenTheEnd) {
  FaultyLoop faulty(GetParam());
  faulty.calls->makes_ring_operations = false;
  Pair pair = make_pair(*faulty.loop);
  const std::size_t stuffed = close_with_a_copy(*faulty.loop, pair);
  EXPECT_EQ(pair.client.native(), no_handle);
  EXPECT_EQ(faulty.calls->count(CallId::duplicate), 1U);
  EXPECT_TRUE(rests(*faulty.loop));
  EXPECT_TRUE(faulty.loop->alive());
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until(*faulty.loop, [&] { return inbox.over(); }));
  EXPECT_EQ(inbox.ends, 1);
  EXPECT_EQ(std::string_view(inbox.text).substr(stuffed), "waits");
  EXPECT_EQ(faulty.loop->run(), 0);  // nothing keeps it any more
}

TEST_P(IoUringFull, AbortedStreamSendsNothingMore) {
  Pair pair = make_pair();
  stuff_unseen(pair.client);
  in_callback(loop, [&] {
    EXPECT_EQ(pair.client.try_send(bytes_of("waits")).value_or(0), 5U);
    pair.client.abort();
  });
  EXPECT_FALSE(loop.alive());
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return inbox.over(); }));
  EXPECT_EQ(inbox.ends, 0);
  EXPECT_EQ(inbox.code, std::errc::connection_reset);
}

TEST_P(IoUringFull, TooManyClosedStreamsAreReset) {
  constexpr std::size_t kept = 256;
  FaultyLoop faulty(GetParam());
  faulty.calls->makes_ring_operations = false;
  std::vector<Pair> pairs;
  const std::string block = pattern(64 * 1024);
  for (std::size_t i = 0; i <= kept; ++i) {
    pairs.push_back(make_pair(*faulty.loop, 8192));
    const int handle = pairs.back().client.native();
    constexpr int small = 4096;
    setsockopt(handle, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    // All at once, for the peers acknowledge with a delay.
    while (::send(handle, block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
  }
  for (Pair& pair : pairs) close_with_a_copy(*faulty.loop, pair);
  EXPECT_EQ(faulty.calls->count(CallId::duplicate), kept);
  Inbox last;
  pairs.back().server.receive_start(last.callback());
  ASSERT_TRUE(until(*faulty.loop, [&] { return last.over(); }));
  EXPECT_EQ(last.code, std::errc::connection_reset);
  Inbox first;
  pairs.front().server.receive_start(first.callback());
  ASSERT_TRUE(until(*faulty.loop, [&] { return first.over(); }));
  EXPECT_EQ(first.ends, 1);
}

// A thread that the kernel takes for the one that owned the ring, or another one.
TEST_P(IoUringFull, ClosedStreamIsSentByTheNextThreadToo) {
  auto other = std::make_unique<Loop>(options());
  Pair pair;
  std::size_t stuffed = 0;
  std::thread([&] {
    pair = make_pair(*other);
    stuffed = close_with_a_copy(*other, pair);
    ASSERT_EQ(other->run_ready(), 0);
  }).join();
  const RawSocket peer(::dup(pair.server.native()));
  pair.server.close();
  std::string text;
  std::thread([&] {
    ASSERT_EQ(other->run_ready(), 0);
    std::vector<char> bytes(1 << 20);
    while (text.size() < stuffed + 5) {
      const ssize_t count = ::recv(peer.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (count > 0) text.append(bytes.data(), static_cast<std::size_t>(count));
      ASSERT_NE(count, 0);
      ASSERT_EQ(other->run_once(1ms), 0);
    }
  }).join();
  EXPECT_EQ(std::string_view(text).substr(stuffed), "waits");
}

TEST_P(IoUringFull, ClosedStreamWithoutADescriptorForItResets) {
  FaultyLoop faulty(GetParam());
  faulty.calls->makes_ring_operations = false;
  Pair pair = make_pair(*faulty.loop);
  faulty.calls->fail(CallId::duplicate, 1, EMFILE);
  close_with_a_copy(*faulty.loop, pair);
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until(*faulty.loop, [&] { return inbox.over(); }));
  EXPECT_EQ(inbox.ends, 0);
  EXPECT_EQ(inbox.code, std::errc::connection_reset);
}

TEST_P(IoUringFull, ClosedStreamOfALoopThatIsDestroyedResets) {
  auto other = std::make_unique<Loop>(options());
  Pair pair = make_pair(*other);
  close_with_a_copy(*other, pair);
  ASSERT_EQ(other->run_ready(), 0);  // the kernel has the send
  const RawSocket peer(::dup(pair.server.native()));
  other.reset();
  EXPECT_EQ(end_of(peer), ECONNRESET);
}

/** The kernel's clock, forward by what a test says. */
struct JumpingCalls : detail::FaultCalls {
  using FaultCalls::FaultCalls;
  std::int64_t clock_now() noexcept override { return FaultCalls::clock_now() + ahead_ns; }
  void jump(Duration by) noexcept { ahead_ns += by.count(); }
  std::int64_t ahead_ns = 0;
};

TEST_P(IoUringFull, ClosedStreamIsResetWhenItsPeerDoesNotReadForAMinute) {
  FaultyLoopOf<JumpingCalls> jumping(GetParam());
  jumping.calls->makes_ring_operations = false;
  Loop& on = *jumping.loop;
  Pair pair = make_pair(on);
  close_with_a_copy(on, pair);
  jumping.calls->jump(30s);
  ASSERT_EQ(on.run_ready(), 0);
  EXPECT_TRUE(on.alive());
  Pair later = make_pair(on);
  close_with_a_copy(on, later);
  jumping.calls->jump(30s);
  ASSERT_EQ(on.run_ready(), 0);
  EXPECT_TRUE(on.alive());
  jumping.calls->jump(30s);
  ASSERT_EQ(on.run_ready(), 0);
  EXPECT_FALSE(on.alive());
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until(on, [&] { return inbox.over(); }));
  EXPECT_EQ(inbox.ends, 0);
  EXPECT_EQ(inbox.code, std::errc::connection_reset);
}

// What it cannot send the process that ends tells by a reset.
TEST_P(IoUringFull, ExitWithACopyThatIsNotTakenResets) {
  const RawSocket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  const Address address = Address::ipv4({127, 0, 0, 1}, listener.local_address().port());
  EXPECT_EQ(run_child([&] {
              Loop own(options());
              TcpStream stream(own);
              Outcome connected;
              stream.connect(address, connected.callback());
              if (!until(own, [&] { return connected.done(); }) || !connected.ok()) return 1;
              stuff_unseen(stream);
              in_callback(own, [&] {
                std::exit(stream.try_send(bytes_of("waits")).value_or(0) == 5 ? 0 : 2);
              });
              return 3;
            }),
            0);
  const RawSocket peer(::accept(listener.get(), nullptr, nullptr));
  EXPECT_EQ(end_of(peer), ECONNRESET);
}

// The child has a copy of the duplicate, whose bytes are the parent's to send.
TEST_P(IoUringFull, ClosedStreamIsTheParentsToSend) {
  Pair pair = make_pair();
  const std::size_t stuffed = close_with_a_copy(loop, pair);
  EXPECT_EQ(run_child([&] { return loop.after_fork() ? 0 : 1; }), 0);
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return inbox.over(); }));
  EXPECT_EQ(inbox.ends, 1);
  EXPECT_EQ(std::string_view(inbox.text).substr(stuffed), "waits");
}

}  // namespace
}  // namespace evix::test
