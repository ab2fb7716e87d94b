#include <stdexcept>

#include "backend/conformance.hpp"
#include "backend/stimulus.hpp"

// Two close_gracefully() callbacks of one stream: when the first threw, the second never ran.
namespace evix::test {
namespace {

class GracefulCloseThrowDropsSecond : public Conformance {};
EVIX_OVER_BACKENDS(GracefulCloseThrowDropsSecond);

TEST_P(GracefulCloseThrowDropsSecond, RunsInTheNextRun) {
  TcpPair pair;
  ASSERT_TRUE(pair.open(loop));
  int first = 0;
  int second = 0;
  pair.client.close_gracefully({}, [&] {
    ++first;
    throw std::runtime_error("first");
  });
  pair.client.close_gracefully({}, [&] { ++second; });
  pair.server.close();
  EXPECT_THROW(loop.run(), std::runtime_error);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 0);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
  EXPECT_TRUE(pair.client.closed());
}

}  // namespace
}  // namespace evix::test
