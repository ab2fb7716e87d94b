#include "backend/tcp_support.hpp"

// Water marks that were due together were told as "full, drained" in any case, and those from
// before set_water_marks() stayed due: a producer was told that its queue had drained while that
// was full, and went on until the hard cap.
namespace evix::test {
namespace {

class StaleWaterMark : public TcpConformance {
 protected:
  void SetUp() override {
    TcpConformance::SetUp();
    pair = make_pair();
  }
  /** Queues 200,000 bytes behind a full kernel. */
  void fill() {
    stuff(pair.client);
    ASSERT_TRUE(pair.client.send_copy(block).has_value());
    ASSERT_EQ(pair.client.send_queue_bytes(), block.size());
  }
  void empty() {
    pair.server.receive_start([](const Result<Buffer>&) {});
    ASSERT_TRUE(until([&] { return pair.client.send_queue_bytes() == 0; }));
    pair.server.receive_stop();
    settle();
  }
  TcpStream::WaterMarkCallback note() {
    return [this](WaterMark mark) { told.push_back(mark); };
  }
  Pair pair;
  std::vector<WaterMark> told;
  const std::string block = pattern(200'000);
};
EVIX_OVER_BACKENDS(StaleWaterMark);

TEST_P(StaleWaterMark, FromBeforeTheCallbackWasSetIsNotTold) {
  fill();
  empty();
  pair.client.set_water_marks({}, note());
  fill();
  settle();
  EXPECT_EQ(told, std::vector{WaterMark::full});
}

TEST_P(StaleWaterMark, DrainedAndFullAgainInOneTurnEndsWithFull) {
  pair.client.set_water_marks({}, note());
  stuff(pair.client);
  bool again = false;
  pair.client.send(bytes_of(block), [&](const Result<void>& sent) {
    ASSERT_TRUE(sent.has_value());
    pair.server.receive_stop();
    fill();
    again = true;
  });
  settle();
  ASSERT_EQ(told, std::vector{WaterMark::full});
  pair.server.receive_start([](const Result<Buffer>&) {});
  ASSERT_TRUE(until([&] { return again; }));
  settle();
  EXPECT_EQ(pair.client.send_queue_bytes(), block.size());
  EXPECT_EQ(told, (std::vector{WaterMark::full, WaterMark::drained, WaterMark::full}));
  empty();
  EXPECT_EQ(told.size(), 4U);
  EXPECT_EQ(told.back(), WaterMark::drained);
}

}  // namespace
}  // namespace evix::test
