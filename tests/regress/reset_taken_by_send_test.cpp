#include "backend/tcp_support.hpp"

// The kernel tells a reset once. A send that met it left the receive that followed with an "end",
// and the reader took the bytes that the reset had cut off for all there were.
namespace evix::test {
namespace {

class ResetTakenBySend : public TcpConformance {
 protected:
  void SetUp() override {
    TcpConformance::SetUp();
    pair = make_pair();
    ASSERT_TRUE(pair.client.send_copy("12345").has_value());
    ASSERT_TRUE(until([this] { return taken(); }));
    pair.client.abort();
  }
  /** The bytes have arrived: the reset does not overtake them. */
  bool taken() {
    Outcome first;
    std::array<std::byte, 1> byte{};
    pair.server.receive_into(byte, first.count_callback());
    return static_cast<bool>(until([&] { return first.done(); })) && first.count == 1;
  }
  Pair pair;
};
EVIX_OVER_BACKENDS(ResetTakenBySend);

TEST_P(ResetTakenBySend, IsToldToTheReader) {
  const auto sent = pair.server.send_copy("x");
  ASSERT_FALSE(sent.has_value());
  ASSERT_EQ(sent.error(), std::errc::connection_reset);
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return inbox.over(); }));
  settle();
  EXPECT_EQ(inbox.text, "2345");
  EXPECT_EQ(inbox.ends, 0);
  EXPECT_EQ(inbox.errors, 1);
  EXPECT_EQ(inbox.code, std::errc::connection_reset);
}

TEST_P(ResetTakenBySend, IsToldToAReceiveInto) {
  ASSERT_FALSE(pair.server.try_send(bytes_of("x")).has_value());
  std::array<std::byte, 10> bytes{};
  Outcome rest;
  pair.server.receive_into(bytes, rest.count_callback());
  ASSERT_TRUE(until([&] { return rest.done(); }));
  EXPECT_EQ(rest.count, 4U);
  Outcome end;
  pair.server.receive_into(bytes, end.count_callback());
  ASSERT_TRUE(until([&] { return end.done(); }));
  EXPECT_EQ(end.code, std::errc::connection_reset);
}

// The peer's end came before its reset: all bytes are here, and the end is one.
TEST_P(ResetTakenBySend, AnEndFromBeforeTheResetIsTheEnd) {
  Pair other = make_pair();
  Outcome shut;
  ASSERT_TRUE(other.client.send_copy("12345").has_value());
  other.client.shutdown_send(shut.callback());
  ASSERT_TRUE(until([&] { return shut.ok(); }));
  other.client.abort();
  ASSERT_TRUE(until([&] { return !other.server.send_copy("x").has_value(); }));
  Inbox inbox;
  other.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return inbox.over(); }));
  EXPECT_EQ(inbox.text, "12345");
  EXPECT_EQ(inbox.ends, 1);
  EXPECT_EQ(inbox.errors, 0);
}

}  // namespace
}  // namespace evix::test
