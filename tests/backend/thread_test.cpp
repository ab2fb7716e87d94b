#include <atomic>
#include <csignal>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "backend/conformance.hpp"
#include "backend/fork_support.hpp"

/** @file
 * What other threads may do to a loop: post, wake, stop, read its counters, and nothing else.
 */
namespace evix::test {
namespace {

class Thread : public Conformance {};
EVIX_OVER_BACKENDS(Thread);

/** Counts its ends; moved-from ones do not count. */
class Payload {
 public:
  explicit Payload(std::atomic<int>& ends) : ends_(&ends) {}
  Payload(Payload&& other) noexcept : ends_(std::exchange(other.ends_, nullptr)) {}
  Payload& operator=(Payload&&) = delete;
  ~Payload() {
    if (ends_ != nullptr) ++*ends_;
  }

 private:
  std::atomic<int>* ends_;
};

// ---- Posts -----------------------------------------------------------------------------------

// 8 producers x 10^6 posts with EVIX_TEST_FULL=1, 8 x 10^4 by default.
TEST_P(Thread, TrapT110PostsArriveOnceInTheOrderOfTheirThread) {
  constexpr std::size_t producers = 8;
  const std::uint64_t posts = scaled(1'000'000, 10'000);
  std::vector<std::uint64_t> next(producers);
  std::uint64_t out_of_order = 0;
  std::size_t finished = 0;
  const KeepAlive until_stop = loop.keep_alive();
  std::vector<std::thread> threads;
  for (std::size_t producer = 0; producer < producers; ++producer) {
    threads.emplace_back([&, producer, poster = loop.poster()] {
      for (std::uint64_t sequence = 0; sequence < posts; ++sequence) {
        ASSERT_TRUE(poster.post([&, producer, sequence] {
          if (next[producer]++ != sequence) ++out_of_order;
          if (sequence + 1 == posts && ++finished == producers) loop.stop();
        }));
      }
    });
  }
  EXPECT_EQ(loop.run(), 0);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(out_of_order, 0U);
  for (const std::uint64_t count : next) EXPECT_EQ(count, posts);
}

// A post at a time, each sent when the one before has run: the loop falls asleep in between, so a
// lost wake-up stops the test. The set of descriptors changes all the while. The limit of 50 ms is
// for a quiet machine (EVIX_TEST_FULL=1, 10^5 posts); else 5000 posts and 5 s.
TEST_P(Thread, TrapT113EveryPostWakesTheLoopWhileTheSetChurns) {
  EVIX_SKIP_ON(BackendKind::sim, "needs real descriptors");
  const std::uint64_t posts = scaled(100'000, 5'000);
  const auto limit = full_counts() ? std::chrono::steady_clock::duration(50ms) : 5s;
  const Pipe pipe;
  std::vector<Watcher> watchers;
  for (int i = 0; i < 20; ++i) watchers.emplace_back(loop);
  const auto churn = [&] {
    for (Watcher& watcher : watchers) {
      if (watcher.active()) {
        watcher.stop();
      } else {
        EXPECT_TRUE(watcher.start(pipe.read_end(), Ready::readable, [](Ready) {}));
      }
    }
  };
  std::chrono::steady_clock::duration longest{};
  const KeepAlive until_stop = loop.keep_alive();
  std::thread producer([&, poster = loop.poster()] {
    for (std::uint64_t i = 0; i < posts; ++i) {
      std::atomic<bool> ran = false;
      const auto posted_at = std::chrono::steady_clock::now();
      ASSERT_TRUE(poster.post([&] {
        longest = std::max(longest, std::chrono::steady_clock::now() - posted_at);
        if (i % 16 == 0) churn();
        ran = true;
        ran.notify_one();
      }));
      ran.wait(false);
    }
    loop.stop();
  });
  EXPECT_EQ(loop.run(), 0);
  producer.join();
  EXPECT_LT(longest, limit);
}

// 60 s with EVIX_TEST_FULL=1, half a second by default. The gaps are the load, nobody waits for
// them.
TEST_P(Thread, TrapT114RunForEverEndsByStopOnly) {
  const auto duration = std::chrono::milliseconds(scaled(60'000, 500));
  std::atomic<bool> stopping = false;
  std::uint64_t ran = 0;
  std::atomic<std::uint64_t> posted = 0;
  const KeepAlive for_ever = loop.keep_alive();
  const auto end = std::chrono::steady_clock::now() + duration;
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed, poster = loop.poster()] {
      std::minstd_rand random(seed + 1);
      while (std::chrono::steady_clock::now() < end) {
        ASSERT_TRUE(poster.post([&] { ++ran; }));
        ++posted;
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      }
    });
  }
  std::thread stopper([&] {
    for (std::thread& thread : threads) thread.join();
    stopping = true;
    loop.stop();
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_TRUE(stopping);
  stopper.join();
  loop.run_ready();
  EXPECT_EQ(ran, posted);
}

TEST_P(Thread, TrapT115PostToADeadLoopIsRefusedAndItsPayloadEndsOnce) {
  constexpr int jobs = 64;
  for (std::uint64_t round = 0; round < scaled(100, 5); ++round) {
    std::atomic<int> ends = 0;
    std::atomic<int> ran = 0;
    std::atomic<bool> dead = false;
    std::optional<Loop> dying(std::in_place, options());
    std::vector<std::thread> threads;
    for (int job = 0; job < jobs; ++job) {
      threads.emplace_back([&, job, poster = dying->poster()] {
        std::minstd_rand random(static_cast<unsigned>(job) + 1);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
        const Result<void> posted = poster.post([&, payload = Payload(ends)] {
          EXPECT_FALSE(dead);
          ++ran;
        });
        EXPECT_TRUE(posted || posted.error() == Errc::closed);
      });
    }
    {
      const KeepAlive busy = dying->keep_alive();
      EXPECT_EQ(is_sim() ? dying->run_ready() : dying->run_for(10ms), 0);
    }
    dying.reset();
    dead = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ends, jobs);
    EXPECT_LE(ran, jobs);
  }
}

TEST_P(Thread, PostToADeadLoopDestroysThePayloadBeforeItReturns) {
  std::atomic<int> ends = 0;
  bool ran = false;
  Poster poster;
  EXPECT_EQ(poster.post([&, payload = Payload(ends)] { ran = true; }).error(), Errc::closed);
  EXPECT_EQ(ends, 1);
  {
    Loop dying(options());
    poster = dying.poster();
    ASSERT_TRUE(poster.post([&, payload = Payload(ends)] { ran = true; }));
    dying.post([&, payload = Payload(ends)] { ran = true; });
    EXPECT_EQ(ends, 1);
  }
  EXPECT_EQ(ends, 3);
  EXPECT_EQ(poster.post([&, payload = Payload(ends)] { ran = true; }).error(), Errc::closed);
  EXPECT_EQ(ends, 4);
  poster.wake();  // nothing to wake, nothing happens
  EXPECT_FALSE(ran);
}

// Posts of another thread while runs are nested: each runs once, in whatever depth.
TEST_P(Thread, PostsDuringNestedRunsRunOnceInOrder) {
  constexpr int posts = 2000;
  std::vector<int> order;
  const KeepAlive until_stop = loop.keep_alive();
  int depth = 0;
  std::thread producer([&, poster = loop.poster()] {
    for (int i = 0; i < posts; ++i) {
      ASSERT_TRUE(poster.post([&, i] {
        order.push_back(i);
        if (depth < 10) {
          ++depth;
          loop.run_ready();
          --depth;
        }
        if (i + 1 == posts) loop.stop_all();
      }));
    }
  });
  EXPECT_EQ(loop.run(), 0);
  producer.join();
  ASSERT_EQ(order.size(), static_cast<std::size_t>(posts));
  for (int i = 0; i < posts; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST_P(Thread, WakesMergeAndPostsDoNot) {
  constexpr int count = 100;
  int ran = 0;
  std::uint64_t turns = 0;
  loop.post([&] {
    std::thread([&] {
      for (int i = 0; i < count; ++i) loop.wake();
    }).join();
    turns = loop.counters().turns;
  });
  const KeepAlive alive = loop.keep_alive();
  EXPECT_EQ(loop.run_once(5s), 0);  // the wake-ups end this wait
  EXPECT_EQ(loop.counters().turns, turns);
  std::thread([&, poster = loop.poster()] {
    for (int i = 0; i < count; ++i) ASSERT_TRUE(poster.post([&] { ++ran; }));
  }).join();
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(ran, count);
}

// ---- Waker -----------------------------------------------------------------------------------

TEST_P(Thread, WakerMergesAndSeesWhatTheSenderWrote) {
  int calls = 0;
  int written = 0;
  int seen = 0;
  Waker waker(loop, [&] {
    ++calls;
    seen = written;
  });
  const WakeSender sender = waker.sender();
  std::thread([&, copy = sender] {
    for (written = 1; written < 100; ++written) EXPECT_TRUE(copy.wake());
  }).join();
  EXPECT_EQ(loop.run(), 0);  // a pending wake-up runs, though the waker is unreferenced
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(seen, 100);
  EXPECT_TRUE(sender.wake());
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(sender.wake());
  waker.stop();
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, 2);
  EXPECT_FALSE(sender.wake());
  EXPECT_FALSE(WakeSender().wake());
}

/** A thread that wakes with each sender it is given, once. */
class WakingThread {
 public:
  ~WakingThread() {
    ended_ = true;
    thread_.join();
  }
  void give(WakeSender sender) {
    auto* given = new WakeSender(std::move(sender));
    while (slot_.load() != nullptr) std::this_thread::yield();
    slot_ = given;
  }

 private:
  std::atomic<WakeSender*> slot_ = nullptr;
  std::atomic<bool> ended_ = false;
  std::thread thread_{[this] {
    while (!ended_ || slot_.load() != nullptr) {
      const std::unique_ptr<WakeSender> sender(slot_.exchange(nullptr));
      if (sender != nullptr) {
        sender->wake();
      } else {
        std::this_thread::yield();
      }
    }
  }};
};

// 10^6 rounds with EVIX_TEST_FULL=1, 3000 by default.
TEST_P(Thread, TrapT111WakerIsFreedByTheCallbackOfItsFirstWake) {
  WakingThread waking;
  for (std::uint64_t round = 0; round < scaled(1'000'000, 3000); ++round) {
    std::optional<Waker> waker;
    int calls = 0;
    waker.emplace(loop, [&] {
      ++calls;
      waker.reset();
    });
    waking.give(waker->sender());
    while (waker) ASSERT_EQ(loop.run_once(5s), 0);
    ASSERT_EQ(calls, 1);
  }
}

TEST_P(Thread, TrapT111LoopIsDestroyedWhileTheSenderSends) {
  WakingThread waking;
  for (std::uint64_t round = 0; round < scaled(100'000, 1000); ++round) {
    Loop dying(options());
    Waker waker(dying, [] {});
    waking.give(waker.sender());
  }
}

// ---- Stop ------------------------------------------------------------------------------------

// A timer of 15 s, or on sim, where that would be over at once, a loop that waits for ever.
class Blocked {
 public:
  explicit Blocked(Loop& loop, bool is_sim) : keep_(loop.keep_alive()), timer_(loop) {
    if (!is_sim) timer_.after(15s, [this] { late_ = true; });
  }
  bool late() const { return late_; }

 private:
  KeepAlive keep_;
  Timer timer_;
  bool late_ = false;
};

TEST_P(Thread, TrapT023StopFromAnotherThreadEndsTheWait) {
  const Blocked blocked(loop, is_sim());
  for (int round = 0; round < 200; ++round) {
    std::thread stopper([&] { loop.stop(); });
    EXPECT_EQ(loop.run(), 0);
    stopper.join();
    loop.clear_stop();
  }
  EXPECT_FALSE(blocked.late());
}

TEST_P(Thread, TrapT023StopFromASignalWatcherEndsTheWait) {
  const Blocked blocked(loop, is_sim());
  SignalWatcher watcher(loop);
  ASSERT_TRUE(watcher.start(SIGUSR1, [&](int) { loop.stop(); }));
  std::thread killer([] { ::kill(::getpid(), SIGUSR1); });
  EXPECT_EQ(loop.run(), 0);
  killer.join();
  EXPECT_FALSE(blocked.late());
}

std::atomic<Loop*> woken_by_handler = nullptr;
std::atomic<bool> handler_ran = false;

// stop() is not for raw signal handlers, wake() is; also for one that runs on the loop's own
// thread just before the wait begins.
TEST_P(Thread, TrapT023WakeFromARawSignalHandlerEndsTheWait) {
  const Blocked blocked(loop, is_sim());
  woken_by_handler = &loop;
  struct sigaction action{};
  struct sigaction before{};
  action.sa_handler = [](int) {
    handler_ran = true;
    woken_by_handler.load()->wake();
  };
  ASSERT_EQ(::sigaction(SIGUSR2, &action, &before), 0);
  for (int round = 0; round < 100; ++round) {
    handler_ran = false;
    const pthread_t here = ::pthread_self();
    std::thread killer([here] { ::pthread_kill(here, SIGUSR2); });
    while (!handler_ran) ASSERT_EQ(loop.run_once(), 0);
    killer.join();
  }
  EXPECT_EQ(::sigaction(SIGUSR2, &before, nullptr), 0);
  EXPECT_FALSE(blocked.late());
}

// ---- What another thread may not do ----------------------------------------------------------

/** A loop on its thread with one handle of each kind, for calls from the wrong thread. */
struct Guarded {
  std::optional<Timer> timer;
  std::optional<Watcher> watcher;
  std::optional<SignalWatcher> signal;
  std::optional<TcpListener> listener;
  std::optional<TcpStream> stream;
  std::optional<Waker> waker;
  Loop* loop = nullptr;
  LoopThread thread;

  explicit Guarded(const LoopOptions& options)
      : thread(
            [this](Loop& its_loop) {
              loop = &its_loop;
              timer.emplace(its_loop);
              watcher.emplace(its_loop);
              signal.emplace(its_loop);
              listener.emplace(its_loop);
              stream.emplace(its_loop);
              waker.emplace(its_loop, [] {});
            },
            options) {
    const Pipe told;
    EXPECT_TRUE(thread.post([&](Loop&) { told.put(); }));
    told.take();
  }
};

// T012: stopping from another thread is forbidden, and the check of it is on in release too.
TEST_P(Thread, TrapT012UseFromAnotherThreadAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr const char* message = "evix: .*thread";
  const LoopOptions with = options();
  EXPECT_DEATH(Guarded(with).timer->stop(), message);
  EXPECT_DEATH(Guarded(with).watcher->stop(), message);
  EXPECT_DEATH(Guarded(with).signal->stop(), message);
  EXPECT_DEATH(Guarded(with).listener->close(), message);
  EXPECT_DEATH(Guarded(with).stream->close(), message);
  EXPECT_DEATH(Guarded(with).waker->stop(), message);
  EXPECT_DEATH(Guarded(with).timer.reset(), message);
  EXPECT_DEATH((void)Guarded(with).loop->now(), message);
  EXPECT_DEATH((void)Guarded(with).loop->keep_alive(), message);
  EXPECT_DEATH((void)Guarded(with).loop->handles(), message);
}

TEST_P(Thread, RunFromASecondThreadIsRefused) {
  LoopThread thread({}, options());
  std::atomic<Loop*> inside = nullptr;
  ASSERT_TRUE(thread.post([&](Loop& its_loop) {
    inside = &its_loop;
    inside.notify_one();
  }));
  inside.wait(nullptr);
  EXPECT_EQ(inside.load()->run(), static_cast<int>(Errc::wrong_thread));
  EXPECT_EQ(inside.load()->run_ready(), static_cast<int>(Errc::wrong_thread));
  EXPECT_EQ(thread.join(), 0);
}

// What T012 asks for, done the allowed way: the stop is posted, and after it has run the callback
// neither runs nor will run. 10^5 rounds with EVIX_TEST_FULL=1, 300 by default.
TEST_P(Thread, TrapT012PostedStopIsTheLastOfTheCallback) {
  EVIX_SKIP_ON(BackendKind::sim, "needs real descriptors");
  const Pipe always_readable;
  always_readable.put();
  for (std::uint64_t round = 0; round < scaled(100'000, 300); ++round) {
    std::atomic<bool> poisoned = false;
    std::atomic<int> calls = 0;
    std::optional<Watcher> watcher;
    LoopThread thread(
        [&](Loop& its_loop) {
          watcher.emplace(its_loop);
          EXPECT_TRUE(watcher->start(always_readable.read_end(), Ready::readable, [&](Ready) {
            EXPECT_FALSE(poisoned);
            if (++calls == 1) calls.notify_one();
            // Else it may keep the other thread from its processor for a tick in each round.
            std::this_thread::yield();
          }));
        },
        options());
    calls.wait(0);
    const Pipe stopped;
    ASSERT_TRUE(thread.post([&](Loop&) {
      watcher.reset();
      stopped.put();
    }));
    stopped.take();
    poisoned = true;
    ASSERT_EQ(thread.join(), 0);
  }
}

// ---- LoopThread ------------------------------------------------------------------------------

TEST_P(Thread, LoopThreadRunsBeginFirstOnItsOwnThread) {
  std::thread::id begun;
  std::thread::id posted;
  std::string order;
  LoopThread thread(
      [&](Loop&) {
        begun = std::this_thread::get_id();
        order += 'b';
      },
      options());
  ASSERT_TRUE(thread.post([&](Loop&) {
    posted = std::this_thread::get_id();
    order += 'p';
  }));
  EXPECT_EQ(thread.join(), 0);
  EXPECT_EQ(thread.join(), 0);  // twice is fine
  EXPECT_EQ(order, "bp");
  EXPECT_EQ(begun, posted);
  EXPECT_NE(begun, std::this_thread::get_id());
}

TEST_P(Thread, LoopThreadRefusesPostsWhenItsLoopHasEnded) {
  std::atomic<int> ends = 0;
  LoopThread thread({}, options());
  EXPECT_EQ(thread.join(), 0);
  const Result<void> posted = thread.post([payload = Payload(ends)](Loop&) {});
  ASSERT_FALSE(posted);
  EXPECT_EQ(posted.error(), Errc::closed);
  EXPECT_EQ(ends, 1);
}

TEST_P(Thread, LoopThreadRethrowsAtJoin) {
  LoopThread thread({}, options());
  ASSERT_TRUE(thread.post([](Loop&) { throw std::runtime_error("from a callback"); }));
  EXPECT_THROW(
      {
        try {
          thread.join();
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "from a callback");
          throw;
        }
      },
      std::runtime_error);
  LoopThread early([](Loop&) { throw std::runtime_error("from begin"); }, options());
  EXPECT_THROW(early.join(), std::runtime_error);
}

TEST_P(Thread, LoopThreadStopEndsItBeforeItsNextCallback) {
  bool ran = false;
  LoopThread thread({}, options());
  ASSERT_TRUE(thread.post([&](Loop&) {
    thread.stop();
    EXPECT_TRUE(thread.post([&](Loop&) { ran = true; }));
  }));
  EXPECT_EQ(thread.join(), 0);
  EXPECT_FALSE(ran);
  const LoopThread stopped_by_its_destructor(
      [](Loop& its_loop) {
        static thread_local std::optional<KeepAlive> for_ever;
        for_ever = its_loop.keep_alive();
        for_ever.reset();
      },
      options());
}

TEST_P(Thread, LoopThreadThrowsWhenItsLoopCannotBeMade) {
  EXPECT_THROW(LoopThread({}, {.backend = BackendKind::kqueue}), std::system_error);
}

// MISSION §2: a file is written on a loop's own thread, and told to the one that asked.
TEST_P(Thread, TaskFromAThreadComesBackInOrder) {
  std::string output;
  LoopThread worker({}, options());
  KeepAlive pending = loop.keep_alive();
  const auto path = testing::TempDir() + "evix_thread_test_" + std::to_string(::getpid());
  output += "Hello\n";
  ASSERT_TRUE(worker.post([&, poster = loop.poster()](Loop&) {
    std::ofstream file(path);
    file << "text";
    file.close();
    EXPECT_TRUE(poster.post([&, good = file.good()] {
      EXPECT_TRUE(good);
      output += "File written!\n";
      pending = {};
    }));
  }));
  output += "Write requested\n";
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(output, "Hello\nWrite requested\nFile written!\n");
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "text");
  ::unlink(path.c_str());
}

struct Player {
  std::optional<LoopThread> thread;
  int hits = 0;
};

void hit(std::array<Player, 2>& players, std::size_t who, int left, const Pipe& done) {
  ++players[who].hits;
  if (left == 0) {
    done.put();
    return;
  }
  const std::size_t other = 1 - who;
  EXPECT_TRUE(players[other].thread->post(
      [&players, other, left, &done](Loop&) { hit(players, other, left - 1, done); }));
}

TEST_P(Thread, TwoLoopsPlayPingPong) {
  constexpr int rallies = 1000;
  const Pipe done;
  std::array<Player, 2> players;
  for (Player& player : players) player.thread.emplace(Callback<void(Loop&)>(), options());
  hit(players, 0, 2 * rallies - 1, done);
  done.take();
  for (Player& player : players) EXPECT_EQ(player.thread->join(), 0);
  EXPECT_EQ(players[0].hits, rallies);
  EXPECT_EQ(players[1].hits, rallies);
}

TEST_P(Thread, CountersAreReadableFromAnotherThreadWhileItRuns) {
  const KeepAlive alive = loop.keep_alive();
  std::thread reader([&, poster = loop.poster()] {
    LoopCounters before = loop.counters();
    for (int i = 0; i < 1000; ++i) {
      ASSERT_TRUE(poster.post([] {}));
      const LoopCounters now = loop.counters();
      EXPECT_GE(now.turns, before.turns);
      EXPECT_GE(now.waits, before.waits);
      EXPECT_GE(now.callbacks, before.callbacks);
      EXPECT_GE(now.time_asleep_ns, before.time_asleep_ns);
      EXPECT_EQ(now.handles_active, 1U);
      before = now;
    }
    loop.stop();
  });
  EXPECT_EQ(loop.run(), 0);
  reader.join();
  loop.run_ready();
  EXPECT_EQ(loop.counters().callbacks, 1000U);
}

}  // namespace
}  // namespace evix::test
