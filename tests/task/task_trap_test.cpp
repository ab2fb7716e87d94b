#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <utility>

#include "backend/conformance.hpp"
#include "task_support.hpp"

// Traps of coroutines, by their numbers in docs/traps.md. All on a stack of 256 KiB.
namespace evix::test {
namespace {

class TaskTraps : public Conformance {};
EVIX_OVER_BACKENDS(TaskTraps);

// ---- T150: what waits is not touched once somebody may resume it
// ---------------------------------

/** Goes on when another loop's thread has posted back, which it does at once. */
class Bounce : public detail::TaskAwaitable {
 public:
  Bounce(LoopThread& other, Poster home, std::uint64_t pauses)
      : other_(other), home_(std::move(home)), pauses_(pauses) {}

  bool await_ready() const noexcept { return false; }
  template <std::derived_from<detail::TaskPromiseBase> Promise>
  void await_suspend(std::coroutine_handle<Promise> task) {
    detail::TaskChain& chain = task.promise().chain();
    const std::uint64_t pauses = pauses_;
    const auto posted = other_.post([&chain, home = std::move(home_)](Loop&) {
      EXPECT_TRUE(home.post([&chain] { detail::resume_chain(chain); }));
    });
    EXPECT_TRUE(posted);
    // The other thread gets time to answer before this has returned.
    for (std::uint64_t i = 0; i < pauses; ++i) std::this_thread::yield();
  }
  void await_resume() const noexcept {}

 private:
  LoopThread& other_;
  Poster home_;
  std::uint64_t pauses_;
};

Task<> bounces_once(LoopThread& other, std::uint64_t round) {
  Loop& here = co_await this_loop();
  co_await Bounce(other, here.poster(), round % 4);
}
Task<std::uint64_t> bounces(LoopThread& other, std::uint64_t rounds) {
  Loop& here = co_await this_loop();
  std::uint64_t done = 0;
  for (; done < rounds; ++done) {
    // Its frame goes in its own body's last step, directly after it was resumed.
    if (done % 2 == 0) co_await bounces_once(other, done);
    if (done % 2 == 1) co_await Bounce(other, here.poster(), done % 8 / 2);
  }
  co_return done;
}

TEST_P(TaskTraps, TrapT150ResumedByAnotherThreadAtOnce) {
  LoopThread other({}, options());
  const std::uint64_t rounds = scaled(1'000'000, 5'000);
  on_small_stack([&] { EXPECT_EQ(run(bounces(other, rounds), options()), rounds); });
}

// ---- T152: what is done already costs no stack --------------------------------------------------

Task<std::uint64_t> awaits_ready(std::uint64_t rounds) {
  std::uint64_t same = 0;
  Loop& here = co_await this_loop();
  for (std::uint64_t i = 0; i < rounds; ++i) same += &co_await this_loop() == &here ? 1U : 0U;
  co_return same;
}

TEST_P(TaskTraps, TrapT152TenMillionReadyAwaits) {
  constexpr std::uint64_t rounds = 10'000'000;
  on_small_stack([&] { EXPECT_EQ(run(awaits_ready(rounds), options()), rounds); });
}

Task<std::uint64_t> one() { co_return 1; }
Task<std::uint64_t> awaits_tasks(std::uint64_t rounds) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < rounds; ++i) sum += co_await one();
  co_return sum;
}

TEST_P(TaskTraps, TrapT152TasksThatEndAtOnce) {
  const std::uint64_t rounds = scaled(10'000'000, 1'000'000);
  on_small_stack([&] { EXPECT_EQ(run(awaits_tasks(rounds), options()), rounds); });
}

enum class End { result, exception, after_a_turn, never };

Task<std::uint64_t> nests(std::uint64_t depth, End end, std::uint64_t& deepest) {
  if (depth > 0) co_return 1 + co_await nests(depth - 1, end, deepest);
  ++deepest;
  if (end == End::exception) throw std::runtime_error("from the bottom");
  if (end == End::after_a_turn) co_await yield();
  if (end == End::never) co_await sleep_for(forever);
  co_return 1;
}
constexpr std::uint64_t depth = 1'000'000;

TEST_P(TaskTraps, TrapT152AChainOfAMillionTasks) {
  for (const End end : {End::result, End::after_a_turn}) {
    std::uint64_t deepest = 0;
    on_small_stack([&] { EXPECT_EQ(run(nests(depth - 1, end, deepest), options()), depth); });
    EXPECT_EQ(deepest, 1U);
  }
}

TEST_P(TaskTraps, TrapT152AnExceptionThroughADeepChain) {
  const std::uint64_t exception_depth = scaled(depth, 50'000);
  std::uint64_t deepest = 0;
  on_small_stack([&] {
    EXPECT_THROW(run(nests(exception_depth, End::exception, deepest), options()),
                 std::runtime_error);
  });
  EXPECT_EQ(deepest, 1U);
}

Task<> nests_below(std::uint64_t levels, std::uint64_t& deepest) {
  co_await nests(levels, End::never, deepest);
}

TEST_P(TaskTraps, TrapT152ASuspendedChainOfAMillionIsDestroyed) {
  std::uint64_t deepest = 0;
  on_small_stack([&] {
    Loop other(options());
    other.spawn(nests_below(depth, deepest));
    other.run_ready();
    EXPECT_EQ(deepest, 1U);
  });
}

// ---- T155: a cancel between the result and the task's turn is seen by the next await
// -------------

Task<> never_ends(Event& event, std::uint64_t& results) {
  for (;;) {
    co_await event.wait();
    event.reset();
    ++results;
  }
}

TEST_P(TaskTraps, TrapT155CancelledBetweenTheResultAndItsTurn) {
  const std::uint64_t rounds = scaled(100'000, 2'000);
  std::uint64_t results = 0;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    Event event;
    Scope scope(loop);
    scope.spawn(never_ends(event, results));
    loop.run_ready();
    event.set();
    scope.cancel();
    loop.run_for(1s);
    ASSERT_TRUE(scope.empty()) << "round " << round;
    // What had come was given.
    ASSERT_EQ(results, round);
  }
}

// ---- T156: what has come is given, also when it was to be stopped
// ---------------------------------

Task<> pops_with_a_deadline(Channel<std::uint64_t>& channel, std::uint64_t& sum,
                            std::uint64_t& late) {
  for (;;) {
    const auto popped = co_await with_timeout(1us, channel.pop());
    if (!popped) {
      ++late;
    } else if (!*popped) {
      co_return;
    } else {
      sum += **popped;
    }
  }
}

Task<> pushes_in_time_and_late(Channel<std::uint64_t>& channel, std::uint64_t count) {
  for (std::uint64_t number = 1; number <= count; ++number) {
    // Before, at, and after the deadline of the other one.
    co_await sleep_for(Duration(number % 5 * 500));
    EXPECT_TRUE(co_await channel.push(number));
  }
  channel.close();
}

TEST_P(TaskTraps, TrapT156NothingIsLostAtTheDeadline) {
  const std::uint64_t rounds = scaled(100'000, 2'000);
  Channel<std::uint64_t> channel(1);
  std::uint64_t sum = 0;
  std::uint64_t late = 0;
  loop.spawn(pops_with_a_deadline(channel, sum, late));
  loop.spawn(pushes_in_time_and_late(channel, rounds));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(sum, rounds * (rounds + 1) / 2);
  EXPECT_GT(late, 0U);
}

TEST_P(TaskTraps, TrapT156ResultAndCancelInOneTurn) {
  std::uint64_t given = 0;
  for (int round = 0; round < 100; ++round) {
    Channel<std::uint64_t> channel(1);
    Scope scope(loop);
    scope.spawn([](Channel<std::uint64_t>& own, std::uint64_t& count) -> Task<> {
      count += (co_await own.pop()).value_or(0);
    }(channel, given));
    loop.run_ready();
    std::uint64_t one = 1;
    EXPECT_TRUE(channel.try_push(one));
    scope.cancel();
    EXPECT_EQ(loop.run(), 0);
  }
  EXPECT_EQ(given, 100U);
}

}  // namespace
}  // namespace evix::test
