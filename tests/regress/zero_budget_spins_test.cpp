#include <vector>

#include "backend/conformance.hpp"
#include "backend/stimulus.hpp"

// With a completion budget of 0 no finished operation was ever dispatched, and since they lay ready
// no wait slept: the loop spun.
namespace evix::test {
namespace {

class ZeroBudgetSpins : public Conformance {};
EVIX_OVER_BACKENDS(ZeroBudgetSpins);

TEST_P(ZeroBudgetSpins, CompletionsComeOneATurn) {
  LoopOptions none = options();
  none.completion_budget = 0;
  Loop budgeted(none);
  std::vector<TcpPair> pairs(3);
  int received = 0;
  for (TcpPair& pair : pairs) ASSERT_TRUE(pair.open(budgeted));
  for (TcpPair& pair : pairs) {
    pair.server.receive([&](const Result<Buffer>& bytes) {
      ASSERT_TRUE(bytes);
      EXPECT_EQ(bytes->text(), "x");
      ++received;
    });
    ASSERT_TRUE(pair.client.send_copy("x"));
  }
  ASSERT_TRUE(run_until(budgeted, [&] { return received >= 1; }));
  EXPECT_EQ(received, 1);
  ASSERT_TRUE(run_until(budgeted, [&] { return received >= 2; }));
  EXPECT_EQ(received, 2);
  ASSERT_TRUE(run_until(budgeted, [&] { return received >= 3; }));
  EXPECT_EQ(budgeted.run(), 0);
  EXPECT_EQ(received, 3);
  EXPECT_TRUE(rests(budgeted));
}

TEST_P(ZeroBudgetSpins, ImmediatesComeOneATurnBeyondTheQueuedOnes) {
  LoopOptions none = options();
  none.immediate_budget = 0;
  Loop budgeted(none);
  std::vector<int> order;
  budgeted.post([&] {
    order.push_back(1);
    budgeted.post([&] { order.push_back(2); });
    budgeted.post([&] { order.push_back(3); });
  });
  EXPECT_EQ(budgeted.run_ready(), 0);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_EQ(budgeted.run(), 0);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

}  // namespace
}  // namespace evix::test
