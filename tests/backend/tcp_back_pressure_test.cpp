#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backend/tcp_support.hpp"
#include "support/resident_bytes.hpp"

// What a stream says of its send queue, and what bounds it: water marks and hard caps.
namespace evix::test {
namespace {

class TcpBackPressure : public TcpConformance {};
EVIX_OVER_BACKENDS(TcpBackPressure);

TEST_P(TcpBackPressure, MarksAreToldOnceEach) {
  Pair pair = make_pair();
  stuff(pair.client);
  std::vector<WaterMark> told;
  WaterMarks marks;
  marks.low_bytes = 10'000;
  marks.high_bytes = 20'000;
  std::vector<std::size_t> at;
  pair.client.set_water_marks(marks, [&](WaterMark mark) {
    EXPECT_EQ(starts_on_stack, 0);
    told.push_back(mark);
    at.push_back(pair.client.send_queue_bytes());
  });
  const std::string block = pattern(1000);
  std::deque<Outcome> outcomes;
  for (int i = 0; i < 60; ++i) {
    outcomes.emplace_back();
    starting([&] { pair.client.send(bytes_of(block), outcomes.back().callback()); });
    if (i == 18) {
      settle(2);
      EXPECT_TRUE(told.empty());  // 19,000 bytes
    }
  }
  settle();
  EXPECT_EQ(told, std::vector{WaterMark::full});
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return outcomes.back().done(); }));
  settle();
  EXPECT_EQ(told, (std::vector{WaterMark::full, WaterMark::drained}));
  EXPECT_LE(at[1], marks.low_bytes);
  pair.server.receive_stop();
  // The next round tells again.
  stuff(pair.client);
  outcomes.emplace_back();
  const std::string big = pattern(30'000);
  pair.client.send(bytes_of(big), outcomes.back().callback());
  settle();
  EXPECT_EQ(told.size(), 3U);
  EXPECT_EQ(told.back(), WaterMark::full);
}

TEST_P(TcpBackPressure, MarksSetAboveAFullQueueTellAtOnce) {
  Pair pair = make_pair();
  stuff(pair.client);
  Outcome sent;
  const std::string big = pattern(100'000);
  pair.client.send(bytes_of(big), sent.callback());
  std::vector<WaterMark> told;
  starting([&] {
    pair.client.set_water_marks(WaterMarks{}, [&](WaterMark mark) { told.push_back(mark); });
  });
  settle(2);
  EXPECT_EQ(told, std::vector{WaterMark::full});
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return sent.done(); }));
  settle();
  EXPECT_EQ(told, (std::vector{WaterMark::full, WaterMark::drained}));
}

TEST_P(TcpBackPressure, MarkCallbackMayReplaceItselfAndDestroyTheHandle) {
  for (const bool destroy : {false, true}) {
    Pair pair = make_pair();
    auto client = std::make_unique<TcpStream>(std::move(pair.client));
    stuff(*client);
    const auto witness = std::make_shared<int>(0);
    client->set_water_marks(WaterMarks{}, [&client, destroy, witness](WaterMark mark) {
      EXPECT_EQ(mark, WaterMark::full);
      if (destroy) {
        client.reset();
      } else {
        client->set_water_marks(WaterMarks{});
      }
      ++*witness;  // what this callback holds lives until it returns
    });
    Outcome sent;
    const std::string big = pattern(100'000);
    client->send(bytes_of(big), sent.callback());
    ASSERT_TRUE(until([&] { return *witness > 0; }));
    settle();
    EXPECT_EQ(*witness, 1);
    EXPECT_EQ(witness.use_count(), 1);
    EXPECT_EQ(sent.calls, 0);
  }
}

TEST_P(TcpBackPressure, HardCapOfTheStreamTakesNothing) {
  Pair pair = make_pair();
  const std::size_t stuffed = stuff(pair.client);
  WaterMarks marks;
  marks.hard_bytes_max = 100'000;
  pair.client.set_water_marks(marks);
  const std::string first = pattern(60'000, 1);
  const std::string second = pattern(60'000, 2);
  const std::string third = pattern(40'000, 3);
  Outcome outcomes[3];
  starting([&] { pair.client.send(bytes_of(first), outcomes[0].callback()); });
  starting([&] { pair.client.send(bytes_of(second), outcomes[1].callback()); });
  EXPECT_EQ(pair.client.send_queue_bytes(), 60'000U);
  EXPECT_EQ(pair.client.send_copy(second).error().code(), make_error_code(Errc::queue_full));
  starting([&] { pair.client.send(bytes_of(third), outcomes[2].callback()); });  // just fits
  EXPECT_EQ(pair.client.send_queue_bytes(), 100'000U);
  EXPECT_EQ(pair.client.send_copy("x").error().code(), make_error_code(Errc::queue_full));
  settle(2);
  EXPECT_EQ(outcomes[1].calls, 1);
  EXPECT_EQ(outcomes[1].code, make_error_code(Errc::queue_full));
  EXPECT_EQ(outcomes[1].code, std::errc::no_buffer_space);
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return outcomes[2].done(); }));
  Outcome after;
  pair.client.send(bytes_of("end"), after.callback());
  ASSERT_TRUE(until([&] { return inbox.text.size() == stuffed + 100'003; }));
  EXPECT_TRUE(same_bytes(std::string_view(inbox.text).substr(stuffed), first + third + "end"));
}

TEST_P(TcpBackPressure, OneSendOnAnEmptyQueueIsNeverRefused) {
  Pair pair = make_pair();
  WaterMarks marks;
  marks.hard_bytes_max = 1000;
  pair.client.set_water_marks(marks);
  const std::string big = pattern(8'000'000);
  Outcome sent;
  pair.client.send(bytes_of(big), sent.callback());
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return sent.done() && inbox.text.size() == big.size(); }));
  EXPECT_TRUE(sent.ok());
  EXPECT_TRUE(same_bytes(inbox.text, big));
}

TEST_P(TcpBackPressure, HardCapOfTheLoopTakesNothing) {
  LoopOptions capped = options();
  capped.send_queue_bytes_max = 100'000;
  Loop own(capped);
  Pair one = make_pair(own);
  Pair two = make_pair(own);
  stuff(one.client);
  stuff(two.client);
  const std::string block = pattern(50'000);
  Outcome outcomes[4];
  one.client.send(bytes_of(block), outcomes[0].callback());
  two.client.send(bytes_of(block), outcomes[1].callback());
  EXPECT_EQ(own.counters().send_queue_bytes, 100'000U);
  starting([&] { one.client.send(bytes_of("x"), outcomes[2].callback()); });
  EXPECT_EQ(two.client.send_copy("x").error().code(), make_error_code(Errc::queue_full));
  settle(own);
  EXPECT_EQ(outcomes[2].code, make_error_code(Errc::queue_full));
  // Destroying one stream makes room.
  one.client = TcpStream();
  EXPECT_EQ(own.counters().send_queue_bytes, 50'000U);
  EXPECT_TRUE(two.client.send_copy("x").has_value());
  EXPECT_EQ(own.counters().send_queue_bytes, 50'001U);
}

TEST_P(TcpBackPressure, TrapT066ProducerIsTold) {
  Pair pair = make_pair();
  stuff(pair.client);
  int full = 0;
  int drained = 0;
  bool produce = true;
  const WaterMarks marks;
  pair.client.set_water_marks(marks, [&](WaterMark mark) {
    mark == WaterMark::full ? ++full : ++drained;
    produce = mark == WaterMark::drained;
    if (mark == WaterMark::drained) {
      EXPECT_LE(pair.client.send_queue_bytes(), marks.low_bytes);
    }
  });
  const std::string block = pattern(1024);
  std::size_t most = 0;
  const std::int64_t before = resident_bytes();
  for (int i = 0; i < 10'000; ++i) {  // 10 s of one write a millisecond
    const bool sent = !produce || pair.client.send_copy(block).has_value();
    ASSERT_TRUE(sent);
    most = std::max(most, pair.client.send_queue_bytes());
    ASSERT_EQ(loop.run_ready(), 0);
  }
  EXPECT_LE(most, marks.high_bytes + block.size());
  EXPECT_EQ(full, 1);
  EXPECT_EQ(drained, 0);
  if (!keeps_freed_memory) {
    EXPECT_LE(resident_bytes(), before + static_cast<std::int64_t>(marks.high_bytes) + (1 << 20));
  }
  Inbox inbox;
  pair.server.receive_start(inbox.callback());
  ASSERT_TRUE(until([&] { return drained > 0; }));
  settle();
  EXPECT_EQ(drained, 1);
  EXPECT_EQ(full, 1);
}

TEST_P(TcpBackPressure, TrapT066AThousandPeersStayUnderTheLoopsCap) {
  LoopOptions capped = options();
  capped.send_queue_bytes_max = 2 * 1024 * 1024;
  Loop own(capped);
  constexpr std::size_t write_size = 1024;
  const std::size_t peers = scaled(1000, 50);
  // A thousand full buffers of the usual size are more than the kernel allows all sockets together
  // (tcp_mem, tcp(7)), and other programs' connections break.
  constexpr int buffer_bytes = 16 * 1024;
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < peers; ++i) {
    pairs.push_back(make_pair(own, buffer_bytes));
    if (!is_sim()) {
      const int handle = pairs.back().client.native();
      ASSERT_EQ(setsockopt(handle, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes), 0);
    }
    stuff(pairs.back().client);
  }
  const std::string block = pattern(write_size);
  std::size_t refused = 0;
  for (int round = 0; round < 100; ++round) {
    for (Pair& pair : pairs) {
      const Result<void> sent = pair.client.send_copy(block);
      if (!sent) {
        ASSERT_EQ(sent.error().code(), make_error_code(Errc::queue_full));
        ++refused;
      }
      // A send on an empty queue is never refused: one write for each peer may pass the cap.
      ASSERT_LE(own.counters().send_queue_bytes, capped.send_queue_bytes_max + peers * write_size);
    }
  }
  EXPECT_GT(refused, 0U);
  pairs.clear();
  EXPECT_EQ(own.counters().send_queue_bytes, 0U);
}

}  // namespace
}  // namespace evix::test
