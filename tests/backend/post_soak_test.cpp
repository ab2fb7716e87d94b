#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "backend/conformance.hpp"

/** @file
 * Posts of four threads, as many as EVIX_TEST_POSTS says (default 400,000; scripts/nightly has
 * 10^8, and 10^7 under TSan): none lost, none twice, those of a thread in their order.
 */
namespace evix::test {
namespace {

class PostSoak : public Conformance {};
EVIX_OVER_BACKENDS(PostSoak);

constexpr std::size_t producers = 4;

std::uint64_t posts_of_each_thread() {
  const char* value = std::getenv("EVIX_TEST_POSTS");
  return (value != nullptr ? std::strtoull(value, nullptr, 10) : 400'000) / producers;
}

/** What the loop has seen of one thread. The thread waits when it is too far ahead. */
struct alignas(64) Lane {
  // So many that the loop has batches to take, so few that it runs out of them and falls asleep.
  static constexpr std::uint64_t ahead_max = 2048;

  std::uint64_t next = 0;
  std::uint64_t out_of_order = 0;
  std::atomic<std::uint64_t> done = 0;

  void take(std::uint64_t sequence) {
    if (sequence != next) ++out_of_order;
    ++next;
    if (next % ahead_max != 0) return;
    done.store(next, std::memory_order_release);
    done.notify_one();
  }
  void wait_for_room(std::uint64_t posted) const {
    if (posted % ahead_max != 0) return;
    for (std::uint64_t seen = done; seen != posted; seen = done) done.wait(seen);
  }
};

TEST_P(PostSoak, FourThreadsLoseNothingAndRepeatNothing) {
  const std::uint64_t posts = posts_of_each_thread();
  ASSERT_GT(posts, 0U);
  std::array<Lane, producers> lanes;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  std::atomic<std::size_t> finished = 0;
  const KeepAlive until_stop = loop.keep_alive();
  for (Lane& lane : lanes) {
    threads.emplace_back([&, poster = loop.poster()] {
      for (std::uint64_t sequence = 0; sequence < posts; ++sequence) {
        lane.wait_for_room(sequence);
        ASSERT_TRUE(poster.post([&lane, sequence] { lane.take(sequence); }));
      }
      // Behind all of its own posts, and the last such behind everybody's.
      ASSERT_TRUE(poster.post([&] {
        if (++finished == producers) loop.stop();
      }));
    });
  }
  EXPECT_EQ(loop.run(), 0);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(loop.run_ready(), 0);  // what came twice would run now
  for (const Lane& lane : lanes) {
    EXPECT_EQ(lane.next, posts);
    EXPECT_EQ(lane.out_of_order, 0U);
  }
  const LoopCounters counters = loop.counters();
  EXPECT_EQ(counters.callbacks, producers * (posts + 1));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%llu posts in %.1f s, %llu turns\n",
              static_cast<unsigned long long>(producers * posts), took.count(),
              static_cast<unsigned long long>(counters.turns));
}

}  // namespace
}  // namespace evix::test
