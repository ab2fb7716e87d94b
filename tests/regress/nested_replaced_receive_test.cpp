#include "backend/tcp_support.hpp"

// A receive callback that had taken the place of a running one, and was running itself in a nested
// run, could not be found in a run nested further: the bytes, the end or the error that came there
// were told to nobody.
namespace evix::test {
namespace {

class NestedReplacedReceive : public TcpConformance {
 protected:
  void SetUp() override {
    TcpConformance::SetUp();
    pair = make_pair();
  }
  void send(std::string_view text) { ASSERT_TRUE(pair.client.send_copy(text).has_value()); }
  /** Runs the loop inside a callback until `count` more calls of the reader have ended. */
  void run_until_told(std::size_t count) {
    const std::size_t wanted = told.size() + count;
    ASSERT_TRUE(until([&] { return told.size() >= wanted; }));
  }
  /** The first callback puts `second` in its place and waits in a nested run until that is told. */
  template <class Second>
  void receive_first_then(const Second& second) {
    pair.server.receive_start([this, &second](const Result<Buffer>& result) {
      note(result);
      pair.server.receive_start(second);
      send("two");
      run_until_told(1);
    });
  }
  void note(const Result<Buffer>& result) {
    told.emplace_back(!result ? "error" : result->empty() ? "end" : result->text());
  }
  Pair pair;
  std::vector<std::string> told;
};
EVIX_OVER_BACKENDS(NestedReplacedReceive);

TEST_P(NestedReplacedReceive, IsToldInARunNestedFurther) {
  int depth = 0;
  const auto second = [&](const Result<Buffer>& result) {
    note(result);
    if (++depth != 1) return;
    send("three");
    run_until_told(1);
    pair.client.close();
    run_until_told(1);
  };
  receive_first_then(second);
  send("one");
  ASSERT_TRUE(until([&] { return told.size() >= 4; }));
  settle();
  EXPECT_EQ(told, (std::vector<std::string>{"one", "two", "three", "end"}));
}

TEST_P(NestedReplacedReceive, MayBeReplacedThereAgain) {
  const auto witness = std::make_shared<int>(0);
  const auto third = [this, witness](const Result<Buffer>& result) { note(result); };
  int depth = 0;
  const auto second = [&, witness](const Result<Buffer>& result) {
    note(result);
    if (++depth == 1) {
      send("three");
      run_until_told(1);
      send("four");
      run_until_told(1);
    } else {
      pair.server.receive_start(third);
    }
  };
  receive_first_then(second);
  send("one");
  ASSERT_TRUE(until([&] { return told.size() >= 4; }));
  settle();
  send("five");
  ASSERT_TRUE(until([&] { return told.size() >= 5; }));
  EXPECT_EQ(told, (std::vector<std::string>{"one", "two", "three", "four", "five"}));
  pair.server.close();
  settle();
  EXPECT_EQ(told.size(), 6U);
  EXPECT_EQ(told.back(), "error");
}

}  // namespace
}  // namespace evix::test
