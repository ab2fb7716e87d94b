#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/conformance.hpp"
#include "support/allocations.hpp"
#include "task_support.hpp"

// What tasks wait for from each other: events, semaphores, mutexes, channels.
namespace evix::test {
namespace {

class TaskSync : public Conformance {};
EVIX_OVER_BACKENDS(TaskSync);

using Events = std::vector<std::string>;
using Numbers = std::vector<int>;

// ---- Event -------------------------------------------------------------------------------------

Task<> waits(Event& event, Events& events, std::string name) {
  co_await event.wait();
  events.push_back(std::move(name));
}

TEST_P(TaskSync, AnEventResumesAllThatWaitInTheirOrderAndNobodyAfterAReset) {
  Events events;
  Event event;
  loop.spawn(waits(event, events, "a"));
  loop.spawn(waits(event, events, "b"));
  loop.post([&] {
    event.set();
    event.reset();
    EXPECT_TRUE(events.empty());
    loop.spawn(waits(event, events, "late"));
  });
  loop.run_ready();
  loop.post([&] {
    event.set();
    event.reset();
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events.size(), 3U);
  EXPECT_FALSE(event.is_set());
  event.set();
  loop.spawn(waits(event, events, "at once"));
  loop.run_ready();
  EXPECT_EQ(events.back(), "at once");
}

TEST_P(TaskSync, AnEventWakesATaskInTheSameTurn) {
  Event event;
  std::uint64_t set_in_turn = 0;
  std::uint64_t woken_in_turn = 0;
  loop.spawn([](Loop& own, Event& waited, std::uint64_t& turn) -> Task<> {
    co_await waited.wait();
    turn = own.counters().turns;
  }(loop, event, woken_in_turn));
  for (int turns = 0; turns < 3; ++turns) loop.run_ready();
  loop.spawn([](Loop& own, Event& other, std::uint64_t& turn) -> Task<> {
    other.set();
    turn = own.counters().turns;
    co_return;
  }(loop, event, set_in_turn));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(set_in_turn, 4U);
  EXPECT_EQ(woken_in_turn, set_in_turn);
}

TEST_P(TaskSync, ACancelledWaitLeavesTheQueue) {
  Events events;
  Event event;
  Scope scope(loop);
  scope.spawn(waits(event, events, "cancelled"));
  loop.spawn(waits(event, events, "stays"));
  loop.run_ready();
  EXPECT_EQ(loop.handles().at(0).waits_for, "another task");
  scope.cancel();
  event.set();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"stays"}));
}

// ---- Semaphore, Mutex --------------------------------------------------------------------------

Task<> uses(Semaphore& semaphore, Events& events, std::string name, int turns) {
  const Permit permit = co_await semaphore.acquire();
  events.push_back(name + " in");
  for (int i = 0; i < turns; ++i) co_await yield();
  events.push_back(name + " out");
}

TEST_P(TaskSync, ASemaphoreLetsInAsManyAsItHasPermitsInTheirOrder) {
  Events events;
  Semaphore semaphore(2);
  for (const char* name : {"a", "b", "c", "d"}) loop.spawn(uses(semaphore, events, name, 1));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"a in", "b in", "a out", "b out", "c in", "d in", "c out", "d out"}));
  EXPECT_EQ(semaphore.available(), 2U);
  Permit first = semaphore.try_acquire();
  Permit second = semaphore.try_acquire();
  EXPECT_TRUE(second);
  EXPECT_FALSE(semaphore.try_acquire());
  first = std::move(second);
  EXPECT_EQ(semaphore.available(), 1U);
  first.release();
  first.release();
  EXPECT_EQ(semaphore.available(), 2U);
}

TEST_P(TaskSync, APermitIsNotLostWithATaskThatIsDestroyedOrCancelledOnItsWay) {
  for (const bool destroyed : {false, true}) {
    Events events;
    Semaphore semaphore(1);
    auto scope = std::make_unique<Scope>(loop);
    Permit held = semaphore.try_acquire();
    scope->spawn(uses(semaphore, events, "x", 5));
    loop.spawn(uses(semaphore, events, "y", 0));
    loop.run_ready();
    loop.run_ready();
    held.release();  // it is the first one's, which has not gone on yet
    EXPECT_EQ(semaphore.available(), 0U);
    if (destroyed) {
      scope.reset();
    } else {
      scope->cancel();
    }
    EXPECT_EQ(loop.run(), 0);
    EXPECT_EQ(semaphore.available(), 1U);
    EXPECT_EQ(events, destroyed ? (Events{"y in", "y out"}) : (Events{"x in", "y in", "y out"}));
  }
}

Task<> counts(Mutex& mutex, int& count, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    const Permit lock = co_await mutex.lock();
    EXPECT_TRUE(mutex.is_locked());
    EXPECT_FALSE(mutex.try_lock());
    const int before = count;
    co_await yield();
    count = before + 1;
  }
}

TEST_P(TaskSync, AMutexIsHeldOverAwaits) {
  Mutex mutex;
  int count = 0;
  for (int i = 0; i < 5; ++i) loop.spawn(counts(mutex, count, 20));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(count, 100);
  EXPECT_FALSE(mutex.is_locked());
}

// ---- Channel -----------------------------------------------------------------------------------

Task<> produces(Channel<int>& channel, int first, int count) {
  for (int i = 0; i < count; ++i) {
    const Result<void> pushed = co_await channel.push(first + i);
    EXPECT_TRUE(pushed);
  }
}
Task<> consumes(Channel<int>& channel, Numbers& numbers) {
  while (const auto number = co_await channel.pop()) numbers.push_back(*number);
}
Task<> produces_and_closes(Channel<int>& channel, int count) {
  co_await produces(channel, 0, count);
  channel.close();
}

TEST_P(TaskSync, AChannelKeepsTheOrderAtEveryCapacity) {
  for (const std::size_t capacity : {0U, 1U, 2U, 7U, 1000U}) {
    Channel<int> channel(capacity);
    Numbers numbers;
    loop.spawn(produces_and_closes(channel, 500));
    loop.spawn(consumes(channel, numbers));
    EXPECT_EQ(loop.run(), 0);
    ASSERT_EQ(numbers.size(), 500U);
    for (int i = 0; i < 500; ++i) EXPECT_EQ(numbers[i], i);
    EXPECT_EQ(channel.size(), 0U);
  }
}

TEST_P(TaskSync, ManyProducersAndConsumersLoseAndDoubleNothing) {
  Channel<int> channel(3);
  std::vector<Numbers> numbers(4);
  for (Numbers& each : numbers) loop.spawn(consumes(channel, each));
  loop.spawn([](Channel<int>& own) -> Task<> {
    Scope producers;
    for (int i = 0; i < 5; ++i) producers.spawn(produces(own, i * 100, 100));
    co_await producers.join();
    own.close();
  }(channel));
  EXPECT_EQ(loop.run(), 0);
  std::vector<int> seen(500);
  for (const Numbers& each : numbers) {
    for (const int number : each) ++seen[number];
  }
  EXPECT_EQ(seen, std::vector<int>(500, 1));
}

TEST_P(TaskSync, WhoWaitedFirstGetsTheFirstValue) {
  Channel<int> channel(4);
  Events events;
  loop.spawn([](Channel<int>& own, Events& log) -> Task<> {
    log.push_back("first " + std::to_string(*co_await own.pop()));
  }(channel, events));
  loop.run_ready();
  loop.run_ready();
  loop.spawn([](Channel<int>& own, Events& log) -> Task<> {
    for (int i = 1; i <= 3; ++i) EXPECT_TRUE(co_await own.push(i));
    log.push_back("second " + std::to_string(*co_await own.pop()));
    EXPECT_EQ(own.try_pop(), 3);
    EXPECT_EQ(own.try_pop(), std::nullopt);
  }(channel, events));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(events, (Events{"second 2", "first 1"}));
}

TEST_P(TaskSync, CloseEndsThoseThatWait) {
  Channel<std::string> channel(1);
  Events events;
  loop.spawn([](Channel<std::string>& own, Events& log) -> Task<> {
    EXPECT_TRUE(co_await own.push("kept"));
    const auto second = co_await own.push("refused");
    log.push_back(second.error().message());
    EXPECT_EQ(second.error(), Errc::closed);
  }(channel, events));
  loop.run_ready();
  loop.run_ready();
  channel.close();
  channel.close();
  EXPECT_EQ(loop.run(), 0);
  std::string value = "late";
  EXPECT_FALSE(channel.try_push(value));
  EXPECT_EQ(value, "late");
  EXPECT_EQ(channel.try_pop(), "kept");
  EXPECT_EQ(channel.try_pop(), std::nullopt);
  EXPECT_EQ(events.size(), 1U);
}

TEST_P(TaskSync, AValueIsNotLostWithAPopThatIsDestroyedOrCancelled) {
  for (const bool destroyed : {false, true}) {
    Channel<std::unique_ptr<int>> channel(2);
    auto scope = std::make_unique<Scope>(loop);
    int got = 0;
    scope->spawn([](Channel<std::unique_ptr<int>>& own, int& into) -> Task<> {
      const auto value = co_await own.pop();
      into = **value;
      co_await yield();
      into = -1;
    }(channel, got));
    loop.run_ready();
    auto value = std::make_unique<int>(7);
    EXPECT_TRUE(channel.try_push(value));
    EXPECT_EQ(value, nullptr);
    EXPECT_EQ(channel.try_pop(), std::nullopt);  // it is promised
    if (destroyed) {
      scope.reset();
    } else {
      scope->cancel();
    }
    EXPECT_EQ(loop.run(), 0);
    EXPECT_EQ(got, destroyed ? 0 : 7);
    EXPECT_EQ(channel.size(), destroyed ? 1U : 0U);
    EXPECT_EQ(channel.try_pop().has_value(), destroyed);
  }
}

TEST_P(TaskSync, ACancelledPushHasPushedNothing) {
  Channel<int> channel(1);
  Scope scope(loop);
  scope.spawn(produces(channel, 0, 3));
  loop.run_ready();
  EXPECT_EQ(channel.size(), 1U);
  scope.cancel();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(channel.try_pop(), 0);
  EXPECT_EQ(channel.try_pop(), std::nullopt);
}

Task<> pings(Channel<int>& there, Channel<int>& back, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    EXPECT_TRUE(co_await there.push(i));
    EXPECT_EQ(co_await back.pop(), i);
  }
  there.close();
}
Task<> pongs(Channel<int>& there, Channel<int>& back) {
  while (const auto number = co_await there.pop()) EXPECT_TRUE(co_await back.push(*number));
}

TEST_P(TaskSync, AHopBetweenTasksMakesNoCallAndAllocatesNothing) {
  EVIX_NEEDS_ALLOCATIONS();
  Channel<int> there(1);
  Channel<int> back(1);
  loop.spawn(pings(there, back, 1));
  loop.spawn(pongs(there, back));
  EXPECT_EQ(loop.run(), 0);
  Channel<int> more(1);
  loop.spawn(pings(more, back, 10'000));
  loop.spawn(pongs(more, back));
  const std::uint64_t waits_before = loop.counters().waits;
  const CountAllocations allocations;
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(allocations.count(), 0);
  // 1,024 steps a turn.
  EXPECT_LE(loop.counters().waits - waits_before, 50U);
}

TEST_P(TaskSync, AChannelCanBeRacedAndLosesNothing) {
  Channel<int> channel(1);
  Channel<int> other(1);
  Numbers numbers;
  loop.spawn([](Channel<int>& one, Channel<int>& two, Numbers& got) -> Task<> {
    for (int i = 0; i < 40; ++i) {
      auto first = co_await race(one.pop(), two.pop());
      if (first.get<0>()) got.push_back(**first.get<0>());
      if (first.get<1>()) got.push_back(**first.get<1>());
      if (got.size() == 40) break;
    }
    EXPECT_EQ(got.size(), 40U);
  }(channel, other, numbers));
  loop.spawn(produces(channel, 0, 20));
  loop.spawn(produces(other, 20, 20));
  EXPECT_EQ(loop.run(), 0);
  std::vector<int> seen(40);
  for (const int number : numbers) ++seen[number];
  EXPECT_EQ(seen, std::vector<int>(40, 1));
}

TEST(TaskSyncMisuse, DestroyedWhileATaskWaits) {
  EXPECT_DEATH(
      {
        Loop loop;
        auto event = std::make_unique<Event>();
        loop.spawn([](Event& own) -> Task<> { co_await own.wait(); }(*event));
        loop.run_ready();
        event.reset();
      },
      "^evix: what a task waits for was destroyed\n");
  EXPECT_DEATH(
      {
        auto semaphore = std::make_unique<Semaphore>(1);
        // Never given back: after the end that is expected here nothing would be left to give it
        // to.
        auto* const permit = new Permit(semaphore->try_acquire());
        EXPECT_TRUE(*permit);
        semaphore.reset();
      },
      "^evix: a semaphore was destroyed before its permits\n");
}

}  // namespace
}  // namespace evix::test
