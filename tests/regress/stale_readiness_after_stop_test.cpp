#include <unistd.h>

#include <array>
#include <memory>

#include "backend/conformance.hpp"
#include "backend/fork_support.hpp"
#include "backend/stimulus.hpp"

// stop() between two watchers of one descriptor kept the readiness of that turn for the second one:
// the next run told it of a byte that the first one had read.
namespace evix::test {
namespace {

class StaleReadinessAfterStop : public Conformance {};
EVIX_OVER_BACKENDS(StaleReadinessAfterStop);

TEST_P(StaleReadinessAfterStop, IsNotTold) {
  EVIX_SKIP_ON(BackendKind::sim, "real descriptors do not exist in the simulator");
  const Pipe pipe(O_NONBLOCK);
  std::array<Watcher, 3> watchers{Watcher(loop), Watcher(loop), Watcher(loop)};
  std::array<int, 3> calls{};
  int bytes = 0;
  for (std::size_t i = 0; i < watchers.size(); ++i) {
    ASSERT_TRUE(watchers[i].start(pipe.read_end(), Ready::readable, [&, i](Ready) {
      ++calls[i];
      char byte = 0;
      if (::read(pipe.read_end(), &byte, 1) == 1) ++bytes;
      loop.stop();
    }));
  }
  pipe.put();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls[0] + calls[1] + calls[2], 1);
  EXPECT_EQ(bytes, 1);
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls[0] + calls[1] + calls[2], 1) << "nothing was written since";
  EXPECT_TRUE(rests());
  // What comes now is told.
  pipe.put();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls[0] + calls[1] + calls[2], 2);
  EXPECT_EQ(bytes, 2);
}

// One that was not read is still there for the others.
TEST_P(StaleReadinessAfterStop, ButWhatStillHoldsIsTold) {
  EVIX_SKIP_ON(BackendKind::sim, "real descriptors do not exist in the simulator");
  const OwnDescriptor ready = readable_descriptor();
  std::array<Watcher, 2> watchers{Watcher(loop), Watcher(loop)};
  std::array<int, 2> calls{};
  for (std::size_t i = 0; i < watchers.size(); ++i) {
    ASSERT_TRUE(watchers[i].once(ready.get(), Ready::readable, [&, i](Ready) {
      ++calls[i];
      loop.stop();
    }));
  }
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls[0] + calls[1], 1);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, (std::array<int, 2>{1, 1}));
}

}  // namespace
}  // namespace evix::test
