#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "backend/conformance.hpp"
#include "task_support.hpp"

// Trees of tasks drawn at random, which cancel, time out, fail and wait for each other: whatever
// happens, each ends once, and nothing is left.
namespace evix::test {
namespace {

class RandomTasks : public Conformance {};
EVIX_OVER_BACKENDS(RandomTasks);

struct Oops : std::runtime_error {
  Oops() : std::runtime_error("oops") {}
};

/** What all tasks of one tree use. */
struct World {
  World(Loop& loop, std::uint64_t seed) : random(seed) {
    for (int i = 0; i < 3; ++i) sources.emplace_back(loop);
  }
  std::uint64_t below(std::uint64_t bound) { return random() % bound; }
  CancelToken token() { return sources[below(sources.size())].token(); }

  std::mt19937_64 random;
  int live = 0;
  std::uint64_t pushed = 0;
  std::uint64_t popped = 0;
  Event event;
  Mutex mutex;
  Semaphore semaphore{2};
  Channel<std::uint64_t> channel{2};
  std::vector<CancelSource> sources;
};

Task<int> node(World& world, int depth);

Task<> leaf(World& world) {
  const Counted counted(world.live);
  switch (world.below(9)) {
    case 0:
      co_await yield();
      break;
    case 1:
      co_await sleep_for(Duration(world.below(3'000)));
      break;
    case 2: {
      const Permit lock = co_await world.mutex.lock();
      co_await yield();
      break;
    }
    case 3: {
      const Permit permit = co_await world.semaphore.acquire();
      co_await sleep_for(1us);
      break;
    }
    case 4:
      if (co_await world.channel.push(1)) ++world.pushed;
      break;
    case 5:
      if (const auto value = co_await world.channel.pop()) world.popped += *value;
      break;
    case 6:
      world.event.set();
      world.event.reset();
      break;
    case 7:
      co_await world.event.wait();
      break;
    default:
      if (world.below(4) == 0) throw Oops();
      if (world.below(8) == 0) world.sources[world.below(3)].cancel();
  }
}

Task<> forgets(World& world, int depth) { (void)co_await node(world, depth); }

Task<> scoped(World& world, int depth) {
  const Counted counted(world.live);
  Scope scope;
  const std::uint64_t children = world.below(4);
  for (std::uint64_t i = 0; i < children; ++i) scope.spawn(forgets(world, depth - 1));
  co_await leaf(world);
  if (world.below(4) == 0) scope.cancel();
  if (world.below(3) != 0) co_await scope.join();
}

Task<int> node(World& world, int depth) {
  const Counted counted(world.live);
  const Duration limit(world.below(4'000));
  if (depth == 0) {
    co_await leaf(world);
    co_return 1;
  }
  switch (world.below(6)) {
    case 0:
      co_await scoped(world, depth);
      break;
    case 1:
      co_return (co_await with_timeout(limit, node(world, depth - 1))).value_or(0);
    case 2:
      co_return (co_await with_cancel(world.token(), node(world, depth - 1))).value_or(0);
    case 3: {
      const auto [one, two] = co_await when_all(node(world, depth - 1), node(world, depth - 1));
      co_return one + two;
    }
    case 4: {
      auto race_result = co_await race(node(world, depth - 1), node(world, depth - 1));
      co_return race_result.get<0>().value_or(0) + race_result.get<1>().value_or(0);
    }
    default:
      co_await leaf(world);
      co_return co_await node(world, depth - 1);
  }
  co_return 1;
}

Task<> root(World& world) {
  for (int i = 0; i < 4; ++i) {
    try {
      (void)co_await with_timeout(100us, node(world, 4));
    } catch (const Oops&) {
      continue;
    }
  }
}

TEST_P(RandomTasks, EndOnceAndLeaveNothing) {
  const bool simulated = loop.backend() == BackendKind::sim;
  const std::uint64_t seeds = simulated ? scaled(1'000'000, 10'000) : scaled(100'000, 1'000);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(seed);
    World world(loop, seed);
    {
      // Not all trees come to their end: some are destroyed where they wait.
      Scope scope(loop);
      for (int i = 0; i < 3; ++i) scope.spawn(root(world));
      if (seed % 4 == 0) {
        for (std::uint64_t turn = 0; turn < seed % 64; ++turn) loop.run_ready();
      } else {
        ASSERT_EQ(loop.run(), 0);
        ASSERT_TRUE(scope.empty());
      }
    }
    world.channel.close();
    ASSERT_EQ(loop.run(), 0);
    ASSERT_EQ(world.live, 0);
    ASSERT_FALSE(world.mutex.is_locked());
    ASSERT_EQ(world.semaphore.available(), 2U);
    // A task that was destroyed may not have counted what it had pushed.
    ASSERT_LE(world.pushed, world.popped + world.channel.size());
    ASSERT_EQ(loop.counters().timers_armed, 0U);
    ASSERT_EQ(loop.counters().handles, 0U);
  }
}

}  // namespace
}  // namespace evix::test
