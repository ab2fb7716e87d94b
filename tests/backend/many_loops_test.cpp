#include <atomic>
#include <list>
#include <vector>

#include "backend/conformance.hpp"

/** @file
 * Many loops alive at once.
 */
namespace evix::test {
namespace {

class ManyLoops : public Conformance {};
EVIX_OVER_BACKENDS(ManyLoops);

TEST_P(ManyLoops, ThousandAliveAtOnce) {
  constexpr int count = 1000;
  std::list<Loop> loops;
  int ran = 0;
  for (int i = 0; i < count; ++i) {
    loops.emplace_back(options());
    loops.back().post([&] { ++ran; });
  }
  for (Loop& each : loops) EXPECT_EQ(each.run(), 0);
  EXPECT_EQ(ran, count);
}

// 200 loops in 200 threads with nothing to do, for a second.
TEST_P(ManyLoops, TwoHundredIdleOnesDoNotSpin) {
  constexpr int count = 200;
  std::list<LoopThread> idle;
  std::vector<Loop*> loops;
  for (int i = 0; i < count; ++i) {
    LoopThread& thread = idle.emplace_back(Callback<void(Loop&)>(), options());
    std::atomic<Loop*> inside = nullptr;
    ASSERT_TRUE(thread.post([&](Loop& its_loop) {
      inside = &its_loop;
      inside.notify_one();
    }));
    inside.wait(nullptr);
    loops.push_back(inside);
  }
  std::vector<std::uint64_t> turns_before;
  for (const Loop* each : loops) turns_before.push_back(each->counters().turns);
  Loop clock;  // real time, whatever the backend
  const KeepAlive alive = clock.keep_alive();
  ASSERT_EQ(clock.run_for(1s), 0);
  for (std::size_t i = 0; i < loops.size(); ++i) {
    EXPECT_LE(loops[i]->counters().turns - turns_before[i], idle_turns_max);
  }
  for (LoopThread& thread : idle) EXPECT_EQ(thread.join(), 0);
}

}  // namespace
}  // namespace evix::test
