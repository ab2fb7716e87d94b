#include <evix/evix.hpp>

#include <unistd.h>
#include <csignal>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/stimulus.hpp"
#include "support/descriptors.hpp"
#include "support/resident_bytes.hpp"
#include "sys/calls.hpp"

// The traps of sections C and K: running, stopping, destroying, fairness.
namespace evix::test {
namespace {

std::size_t threads() { return entries_of("/proc/self/task"); }

/** Real time, for what another thread does; on sim too. */
Duration real_time() { return Duration(detail::Calls::kernel().clock_now()); }

// A busy machine may take the processor away for long; a lost wake-up lasts for ever.
constexpr Duration not_lost = 5s;

class LoopTraps : public Conformance {};
EVIX_OVER_BACKENDS(LoopTraps);

TEST_P(LoopTraps, TrapT020StopBeforeRun) {
  const KeepAlive alive = loop.keep_alive();
  loop.stop();
  const Duration before = real_time();
  EXPECT_EQ(loop.run_for(forever), 0);
  EXPECT_LT(real_time() - before, not_lost);
  EXPECT_EQ(loop.counters().turns, 0U);
}

// 10,000 rounds in the full run, 300 by default.
TEST_P(LoopTraps, TrapT020StopWhileTheRunBegins) {
  std::minstd_rand random(20);
  for (std::uint64_t round = 0; round < scaled(10'000, 300); ++round) {
    const KeepAlive alive = loop.keep_alive();
    std::thread runner([this] { EXPECT_EQ(loop.run(), 0); });
    const Duration until = real_time() + std::chrono::microseconds(random() % 50);
    while (real_time() < until) {
    }
    const Duration stopped = real_time();
    loop.stop();
    runner.join();
    ASSERT_LT(real_time() - stopped, not_lost);
  }
}

TEST_P(LoopTraps, TrapT023StopFromAnotherThreadEndsTheWait) {
  Timer far(loop);
  far.after(is_sim() ? forever : Duration(15s), [] { FAIL(); });
  std::promise<void> waiting;
  loop.set_wait_hooks(
      [&waiting, said = false]() mutable {
        if (!std::exchange(said, true)) waiting.set_value();
      },
      {});
  Duration stopped{};
  std::thread other([&] {
    waiting.get_future().wait();
    stopped = real_time();
    loop.stop();
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_LT(real_time() - stopped, not_lost);
  other.join();
  EXPECT_EQ(loop.counters().turns, 1U);
}

TEST_P(LoopTraps, TrapT023StopFromASignalWatcherEndsTheWait) {
  Timer far(loop);
  far.after(is_sim() ? forever : Duration(15s), [] { FAIL(); });
  SignalWatcher watcher(loop);
  ASSERT_TRUE(watcher.start(SIGUSR1, [this](int) { loop.stop(); }));
  std::promise<void> waiting;
  loop.set_wait_hooks(
      [&waiting, said = false]() mutable {
        if (!std::exchange(said, true)) waiting.set_value();
      },
      {});
  const pthread_t self = pthread_self();
  std::atomic<Duration> raised{};  // a signal is no synchronisation that a sanitizer knows
  std::thread other([&] {
    waiting.get_future().wait();
    raised = real_time();
    pthread_kill(self, SIGUSR1);
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_LT(real_time() - raised.load(), not_lost);
  other.join();
}

TEST_P(LoopTraps, TrapT024PostsToALoopThatDoesNotRun) {
  EXPECT_EQ(loop.run(), 0);
  int calls = 0;
  for (int number = 0; number < 5; ++number) loop.post([&] { ++calls; });
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(loop.alive());
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 5);
}

TEST_P(LoopTraps, TrapT024PostToAnIdleLoopThatIsKeptAlive) {
  std::optional<KeepAlive> alive = loop.keep_alive();
  std::thread runner([this] { EXPECT_EQ(loop.run(), 0); });
  std::this_thread::sleep_for(200ms);  // the idleness under test
  std::promise<void> called;
  const Duration posted = real_time();
  loop.post([&] {
    called.set_value();
    alive.reset();
  });
  ASSERT_EQ(called.get_future().wait_for(not_lost), std::future_status::ready);
  EXPECT_LT(real_time() - posted, not_lost);
  runner.join();
}

TEST_P(LoopTraps, TrapT026DestroyedWithEveryKindActive) {
  std::signal(SIGUSR1, SIG_IGN);
  const std::size_t before = open_descriptors();
  for (const Kind kind : handle_kinds(GetParam())) {
    for (const bool pending_close : {false, true}) {
      std::optional<Loop> own(options());
      const auto stimulus = make_stimulus(*own, kind);
      stimulus->prepare();
      auto guard = std::make_shared<int>(7);
      const std::weak_ptr<int> watch = guard;
      stimulus->start([guard = std::move(guard)] { FAIL(); });
      if (pending_close) stimulus->destroy();
      own.reset();
      EXPECT_TRUE(watch.expired()) << to_string(kind);
      raise(SIGUSR1);  // the earlier disposition, which ignores it, is back
    }
    EXPECT_EQ(open_descriptors(), before) << to_string(kind);
  }
  EXPECT_EQ(std::signal(SIGUSR1, SIG_DFL), SIG_IGN);
}

TEST_P(LoopTraps, TrapT026DestroyedWithPostsQueuedAndSendsInFlight) {
  const std::size_t before = open_descriptors();
  auto payload = std::make_shared<int>(7);
  {
    Loop own(options());
    TcpPair pair;
    ASSERT_TRUE(pair.open(own));
    const std::vector<std::byte> much(16 << 20);
    pair.client.send(much, [payload](Result<void>) { FAIL(); });
    own.post([payload] { FAIL(); });
    ASSERT_TRUE(own.poster().post([payload] { FAIL(); }));
    std::thread other([&] { own.post([payload] { FAIL(); }); });
    other.join();
    EXPECT_EQ(payload.use_count(), 5);
  }
  EXPECT_EQ(payload.use_count(), 1) << "each payload is destroyed once";
  EXPECT_EQ(open_descriptors(), before);
}

// 10,000 cycles in the full run, 500 by default, after 50 to warm up.
TEST_P(LoopTraps, TrapT028CreateAndDestroyLeaks) {
  const auto cycle = [](bool runs) {
    Loop own(options());
    if (!runs) return;
    Timer timer(own);
    timer.after(1ms, [] {});
    own.post([] {});
    EXPECT_EQ(own.run(), 0);
  };
  for (int warm = 0; warm < 50; ++warm) cycle(warm % 2 == 0);
  const std::size_t descriptors = open_descriptors();
  const std::int64_t resident = resident_bytes();
  const std::size_t tasks = threads();
  for (std::uint64_t round = 0; round < scaled(10'000, 500); ++round) cycle(round % 2 == 0);
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(threads(), tasks);
  if (!keeps_freed_memory) {
    EXPECT_LT(resident_bytes(), resident + 256 * 1024);
  }
}

TEST_P(LoopTraps, TrapT029InternalHandlesDoNotCount) {
  SignalWatcher watcher(loop);
  ASSERT_TRUE(watcher.start(SIGUSR1, [](int) {}));
  watcher.stop();
  Timer timer(loop);
  timer.after(1ms, [] {});  // the wait makes the wake descriptor
  std::thread other([this] { loop.post([] {}); });
  EXPECT_EQ(loop.run(), 0);
  other.join();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(loop.counters().handles_active, 0U);
  const Poster poster = loop.poster();
  Waker waker(loop, [] {});
  EXPECT_EQ(loop.run(), 0) << "neither a poster nor a waker keeps it";
}

/** What else is served while something posts or is ready for ever: counted in turns. */
class FairnessTraps : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    ASSERT_TRUE(pair.open(loop));
    pair.server.receive_start([this](Result<Buffer> buffer) {
      ASSERT_TRUE(buffer);
      ++echoes;
      ASSERT_TRUE(pair.client.send_copy("x"));
    });
    ASSERT_TRUE(pair.client.send_copy("x"));
    timer.every(1ns, [this] { ++ticks; });
  }
  void expect_everything_served(std::uint64_t turns) {
    const std::uint64_t turns_before = loop.counters().turns;
    for (std::uint64_t turn = 0; turn < turns; ++turn) ASSERT_EQ(loop.run_once(), 0);
    EXPECT_EQ(loop.counters().turns - turns_before, turns);
    // On sim no time passes in a turn that need not wait: the first tick is the only one.
    EXPECT_GE(ticks, is_sim() ? 0U : turns - 2);
    EXPECT_GE(echoes + 2, turns);
  }

  TcpPair pair;
  Timer timer{loop};
  std::uint64_t echoes = 0;
  std::uint64_t ticks = 0;
};
EVIX_OVER_BACKENDS(FairnessTraps);

// 1 s in the trap's text; here 300 turns, some 300,000 immediates.
TEST_P(FairnessTraps, TrapT096SelfPostingImmediate) {
  std::uint64_t immediates = 0;
  std::function<void()> post_again = [&] {
    ASSERT_LT(++immediates, 10'000'000U);
    loop.post([&] { post_again(); });
  };
  loop.post([&] { post_again(); });
  expect_everything_served(300);
  EXPECT_EQ(immediates, 300U * 1024 + 300) << "the budget, and what was queued before";
}

TEST_P(FairnessTraps, TrapT096SelfPostingThroughAPoster) {
  const Poster poster = loop.poster();
  std::uint64_t immediates = 0;
  std::function<void()> post_again = [&] {
    ++immediates;
    ASSERT_TRUE(poster.post([&] { post_again(); }));
  };
  post_again();
  expect_everything_served(300);
  EXPECT_EQ(immediates, 301U);
}

TEST_P(FairnessTraps, TrapT096SelfWakingWaker) {
  std::uint64_t wakes = 0;
  Waker waker;
  waker = Waker(loop, [&] {
    ++wakes;
    waker.sender().wake();
  });
  waker.sender().wake();
  expect_everything_served(300);
  EXPECT_EQ(wakes, 300U);
}

TEST_P(FairnessTraps, TrapT096PostingWaitHook) {
  std::uint64_t hooks = 0;
  std::uint64_t immediates = 0;
  loop.set_wait_hooks(
      [&] {
        ++hooks;
        loop.post([&] { ++immediates; });
      },
      {});
  expect_everything_served(300);
  EXPECT_EQ(hooks, 300U);
  EXPECT_EQ(immediates, 299U) << "the next turn runs it";
  loop.set_wait_hooks({}, {});
}

TEST_P(FairnessTraps, TrapT097WakersThatWakeEachOther) {
  std::uint64_t wakes = 0;
  std::array<Waker, 2> wakers;
  for (std::size_t self = 0; self < 2; ++self) {
    wakers[self] = Waker(loop, [&, self] {
      ++wakes;
      wakers[1 - self].sender().wake();
    });
  }
  wakers[0].sender().wake();
  expect_everything_served(300);
  EXPECT_EQ(wakes, 300U) << "one a turn";
}

TEST_P(FairnessTraps, TrapT097AlwaysReadySource) {
  TcpPair flood;
  ASSERT_TRUE(flood.open(loop));
  const std::string much(256 * 1024, 'x');
  std::uint64_t flooded = 0;
  flood.server.receive_start([&](Result<Buffer> buffer) {
    ASSERT_TRUE(buffer);
    ++flooded;
    (void)flood.client.try_send(std::as_bytes(std::span(much)));
  });
  ASSERT_TRUE(flood.client.send_copy(much));
  expect_everything_served(300);
  EXPECT_GE(flooded + 2, 300U);
  EXPECT_LE(flooded, 300U * 5) << "bounded per source and turn";
}

}  // namespace
}  // namespace evix::test
