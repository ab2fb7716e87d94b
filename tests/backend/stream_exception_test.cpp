#include <stdexcept>
#include <string>

#include "backend/conformance.hpp"
#include "backend/stimulus.hpp"

/** @file
 * Exceptions of the callbacks that only streams and listeners have; the others are in
 * kind_trap_test.cpp. Each leaves run() once, and what was due beside it still comes.
 */
namespace evix::test {
namespace {

class StreamException : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    ASSERT_TRUE(pair.open(loop));
  }
  /** What a callback does that throws; each test has one. */
  void thrown() {
    ++calls;
    throw std::runtime_error("from a callback");
  }
  /** run() throws once, then what was posted before comes, and the loop ends by itself. */
  void expect_thrown_once() {
    int beside = 0;
    loop.post([&] { loop.post([&] { ++beside; }); });
    EXPECT_THROW(loop.run(), std::runtime_error);
    EXPECT_EQ(calls, 1);
    EXPECT_FALSE(loop.running());
    pair.client.close();
    pair.server.close();
    EXPECT_EQ(loop.run(), 0);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(beside, 1);
    EXPECT_EQ(loop.counters().handles_active, 0U);
  }
  static std::span<const std::byte> bytes(const std::string& text) {
    return std::as_bytes(std::span(text));
  }
  TcpPair pair;
  int calls = 0;
  const std::string small = "x";
  const std::string much = std::string(8 * 1024 * 1024, 'm');
};
EVIX_OVER_BACKENDS(StreamException);

TEST_P(StreamException, Connect) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0"));
  TcpStream another(loop);
  another.connect(*listener.local_address(), [&](const Result<void>&) { thrown(); });
  expect_thrown_once();
  EXPECT_TRUE(another.connected());
}

TEST_P(StreamException, ConnectRefused) {
  // A port that is in use and on which nobody listens, so that no other program takes it.
  const Address nobody = *pair.client.local_address();
  TcpStream another(loop);
  another.connect(nobody, [&](const Result<void>& result) {
    EXPECT_EQ(result.error(), std::errc::connection_refused);
    thrown();
  });
  expect_thrown_once();
}

TEST_P(StreamException, Accept) {
  TcpListener listener(loop);
  ASSERT_TRUE(listener.listen("127.0.0.1:0"));
  TcpStream another(loop);
  another.connect(*listener.local_address(), [](const Result<void>&) {});
  listener.accept([&](const Result<TcpStream>&) { thrown(); });
  expect_thrown_once();
  EXPECT_FALSE(listener.active());
}

TEST_P(StreamException, Receive) {
  pair.server.receive([&](const Result<Buffer>&) { thrown(); });
  ASSERT_TRUE(pair.client.send_copy(small));
  expect_thrown_once();
}

TEST_P(StreamException, ReceiveInto) {
  std::array<std::byte, 16> place{};
  pair.server.receive_into(place, [&](const Result<std::size_t>& count) {
    EXPECT_EQ(*count, 1U);
    thrown();
  });
  ASSERT_TRUE(pair.client.send_copy(small));
  expect_thrown_once();
}

// The rest of the input comes to the same callback in the next run.
TEST_P(StreamException, ReceiveStartGoesOn) {
  std::string received;
  pair.server.receive_start([&](const Result<Buffer>& chunk) {
    ASSERT_TRUE(chunk);
    received += chunk->text();
    if (chunk->empty()) return;
    if (calls == 0) thrown();
  });
  ASSERT_TRUE(pair.client.send_copy(much));
  pair.client.shutdown_send([](Result<void>) {});
  EXPECT_THROW(loop.run(), std::runtime_error);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(received.size(), much.size());
}

TEST_P(StreamException, Send) {
  pair.client.send(bytes(small), [&](const Result<void>&) { thrown(); });
  expect_thrown_once();
}

// The sends behind it are told of their end in the next run.
TEST_P(StreamException, SendsBehind) {
  int others = 0;
  pair.client.send(bytes(much), [&](const Result<void>&) { thrown(); });
  for (int number = 0; number < 3; ++number) {
    pair.client.send(bytes(small), [&](const Result<void>& result) {
      EXPECT_FALSE(result);
      ++others;
    });
  }
  pair.server.abort();
  expect_thrown_once();
  EXPECT_EQ(others, 3);
}

TEST_P(StreamException, ShutdownSend) {
  pair.client.shutdown_send([&](const Result<void>&) { thrown(); });
  expect_thrown_once();
}

TEST_P(StreamException, WaterMarkFull) {
  pair.client.set_water_marks(WaterMarks{}, [&](WaterMark mark) {
    if (mark == WaterMark::full) thrown();
  });
  ASSERT_TRUE(pair.client.send_copy(much));
  expect_thrown_once();
}

TEST_P(StreamException, Close) {
  pair.client.close([&] { thrown(); });
  expect_thrown_once();
}

TEST_P(StreamException, CloseGracefully) {
  pair.client.close_gracefully({}, [&] { thrown(); });
  pair.server.receive_start([&](const Result<Buffer>& end) {
    EXPECT_TRUE(end->empty());
    pair.server.close();
  });
  expect_thrown_once();
}

}  // namespace
}  // namespace evix::test
