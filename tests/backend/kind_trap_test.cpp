#include <evix/evix.hpp>

#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backend/stimulus.hpp"
#include "support/fault_calls.hpp"

// The traps of sections B and C that are about every kind of handle, or about pairs of kinds.
namespace evix::test {
namespace {

class KindTraps : public Conformance {
 protected:
  static std::vector<Kind> kinds() { return handle_kinds(GetParam()); }
  std::unique_ptr<Stimulus> prepared(Kind kind) {
    auto stimulus = make_stimulus(loop, kind);
    stimulus->prepare();
    return stimulus;
  }
  void few_turns() {
    for (int turn = 0; turn < 4; ++turn) EXPECT_EQ(loop.run_once(2ms), 0);
  }
};
EVIX_OVER_BACKENDS(KindTraps);

TEST_P(KindTraps, EveryKindIsCalledBack) {
  for (const Kind kind : kinds()) {
    const auto stimulus = prepared(kind);
    int calls = 0;
    stimulus->start([&] {
      ++calls;
      stimulus->stop();
    });
    few_turns();
    EXPECT_EQ(calls, 1) << to_string(kind);
    EXPECT_EQ(loop.counters().handles_active, 0U) << to_string(kind);
  }
}

TEST_P(KindTraps, TrapT011FreedInItsOwnCallback) {
  for (const Kind kind : kinds()) {
    const auto stimulus = prepared(kind);
    auto guard = std::make_shared<int>(7);
    const std::weak_ptr<int> watch = guard;
    int calls = 0;
    stimulus->start([&, guard = std::move(guard)] {
      ++calls;
      const auto& seen = watch;  // found through the callback, which must outlive the next line
      stimulus->destroy();
      EXPECT_FALSE(seen.expired()) << "what the running callback holds lives until it returns";
      EXPECT_EQ(*guard, 7);
    });
    if (kind == Kind::signal) {
      raise(SIGUSR1);
      raise(SIGUSR1);
    }
    few_turns();
    EXPECT_EQ(calls, 1) << to_string(kind);
    EXPECT_TRUE(watch.expired()) << to_string(kind);
  }
}

// Each stops the other and itself: whichever the turn reaches first is the only one that is called.
TEST_P(KindTraps, TrapT013StopsTheOtherInEveryOrderedPair) {
  for (const Kind first : kinds()) {
    for (const Kind second : kinds()) {
      for (const bool destroys : {false, true}) {
        const auto one = prepared(first);
        const auto two = prepared(second);
        int calls = 0;
        const auto stop_both = [&] {
          ++calls;
          for (const auto& each : {one.get(), two.get()}) {
            destroys ? each->destroy() : each->stop();
          }
        };
        one->start(stop_both);
        two->start(stop_both);
        few_turns();
        EXPECT_EQ(calls, 1) << to_string(first) << " and " << to_string(second);
      }
    }
  }
}

TEST_P(KindTraps, TrapT017UsedAfterTheLoopIsDestroyed) {
  for (const Kind kind : kinds()) {
    std::optional<Loop> own(options());
    const auto stimulus = make_stimulus(*own, kind);
    stimulus->prepare();
    auto guard = std::make_shared<int>(7);
    const std::weak_ptr<int> watch = guard;
    stimulus->start([guard = std::move(guard)] { FAIL(); });
    own.reset();
    EXPECT_TRUE(watch.expired()) << to_string(kind) << ": callbacks die with the loop";
    stimulus->stop();
    stimulus->stop();
    stimulus->destroy();
    own.emplace(options());
    EXPECT_EQ(own->run(), 0);
  }
}

constexpr auto call_count = static_cast<std::size_t>(detail::CallId::count);
constexpr const char* own_calls = "the simulated kernel has system calls of its own";

// Each system call fails, in the destructor of each kind of handle and in that of the loop.
TEST_P(KindTraps, TrapT031DestructorsWhoseCallsFail) {
  EVIX_SKIP_ON(BackendKind::sim, own_calls);
  const auto disposition = std::signal(SIGUSR1, SIG_DFL);
  for (std::size_t call = 0; call < call_count; ++call) {
    for (const Kind kind : kinds()) {
      for (const bool loop_first : {false, true}) {
        SCOPED_TRACE(std::string(to_string(kind)) + ", call " + std::to_string(call));
        detail::FaultCalls calls;
        std::optional<Loop> own(LoopOptions{.backend = GetParam(), .system_calls = &calls});
        const auto stimulus = make_stimulus(*own, kind);
        stimulus->prepare();
        auto guard = std::make_shared<int>(7);
        const std::weak_ptr<int> watch = guard;
        stimulus->start([guard = std::move(guard)] { FAIL(); });
        calls.refuse(static_cast<detail::CallId>(call), EIO);
        if (loop_first) own.reset();
        stimulus->destroy();
        own.reset();
        EXPECT_TRUE(watch.expired());
      }
    }
  }
  std::signal(SIGUSR1, disposition);  // which a sigaction() that failed could not bring back
}

/** Which of its waits epoll has, on an old kernel or under ThreadSanitizer, shows at the start. */
detail::CallId epoll_wait_call() {
  static const bool waits_ns = probe_backends(BackendKind::epoll).fallbacks.empty();
  return waits_ns ? detail::CallId::epoll_wait_ns : detail::CallId::epoll_wait_ms;
}

/** Whether no loop of this kind runs without this call. */
bool is_needed(BackendKind kind, detail::CallId call) {
  using detail::CallId;
  // A thread makes a ring its own before it enters it.
  if (kind == BackendKind::io_uring) {
    return call == CallId::ring_enter || call == CallId::ring_register;
  }
  return call == (kind == BackendKind::poll ? CallId::poll : epoll_wait_call());
}

// The same in the library's own thread: the loop there ends with the error, or does without.
TEST_P(KindTraps, TrapT031LoopThreadWhoseCallsFail) {
  EVIX_SKIP_ON(BackendKind::sim, own_calls);
  using detail::CallId;
  for (std::size_t number = 0; number < call_count; ++number) {
    const auto call = static_cast<CallId>(number);
    // Nothing else ends a wait; the kernel refuses the write only when the counter is full, and
    // then the thread is awake (eventfd(2)).
    if (call == CallId::event_write) continue;
    detail::FaultCalls calls;
    LoopThread thread([&](Loop&) { calls.refuse(call, EIO); },
                      LoopOptions{.backend = GetParam(), .system_calls = &calls});
    const bool needed = is_needed(GetParam(), call);
    if (!needed) thread.stop();
    while (needed && calls.injected(call) == 0) std::this_thread::yield();
    EXPECT_EQ(thread.join(), needed ? EIO : 0) << "call " << number;
  }
}

/**
 * 50 descriptors that are ready and 5 timers that are due, each to be delivered exactly once. Of
 * the descriptors 25 are streams, on sim all: an edge that is lost does not come again.
 */
class Crowd {
 public:
  explicit Crowd(Loop& loop) : pairs_(loop.backend() == BackendKind::sim ? 50 : 25), timers_(5) {
    for (TcpPair& pair : pairs_) EXPECT_TRUE(pair.open(loop));
    for (std::size_t index = 0; index < 50; ++index) start(loop, index);
    for (Timer& timer : timers_) {
      timer = Timer(loop);
      timer.after(0ns, [this] { ++timer_calls; });
    }
  }
  int timer_calls = 0;
  std::vector<int> calls = std::vector<int>(50);

 private:
  void start(Loop& loop, std::size_t index) {
    if (index < pairs_.size()) {
      pairs_[index].server.receive([this, index](Result<Buffer>) { ++calls[index]; });
      EXPECT_TRUE(pairs_[index].client.send_copy("x"));
      return;
    }
    descriptors_.push_back(readable_descriptor());
    watchers_.emplace_back(loop);
    EXPECT_TRUE(watchers_.back().once(descriptors_.back().get(), Ready::readable,
                                      [this, index](Ready) { ++calls[index]; }));
  }

  std::vector<OwnDescriptor> descriptors_;
  std::vector<Watcher> watchers_;
  std::vector<TcpPair> pairs_;
  std::vector<Timer> timers_;
};

TEST_P(KindTraps, TrapT021NestedRunInACallbackOfEachKind) {
  std::vector<Kind> all = kinds();
  all.push_back(Kind::immediate);
  for (const Kind kind : all) {
    for (const bool once : {true, false}) {
      SCOPED_TRACE(std::string(to_string(kind)) + (once ? " run_once" : " run"));
      const auto stimulus = prepared(kind);
      Crowd crowd(loop);
      int depth = 0;
      int deepest = 0;
      stimulus->start([&] {
        deepest = std::max(deepest, ++depth);
        stimulus->stop();
        EXPECT_EQ(once ? loop.run_once(1ms) : loop.run(), 0);
        if (!once) {
          EXPECT_EQ(crowd.timer_calls, 5);
          EXPECT_EQ(crowd.calls, std::vector<int>(50, 1)) << "the inner run drains everything";
        }
        --depth;
      });
      EXPECT_EQ(loop.run(), 0);
      EXPECT_EQ(deepest, 1);
      EXPECT_EQ(crowd.timer_calls, 5) << "exactly once";
      EXPECT_EQ(crowd.calls, std::vector<int>(50, 1)) << "exactly once";
    }
  }
}

TEST_P(KindTraps, AnExceptionLeavesRunAndLosesNothing) {
  std::vector<Kind> all = kinds();
  all.push_back(Kind::immediate);
  for (const Kind kind : all) {
    SCOPED_TRACE(to_string(kind));
    const auto stimulus = prepared(kind);
    Crowd crowd(loop);
    int immediates = 0;
    int calls = 0;
    stimulus->start([&] {
      ++calls;
      if (kind != Kind::repeating) stimulus->stop();
      for (int number = 0; number < 3; ++number) loop.post([&immediates] { ++immediates; });
      if (calls == 1) throw std::runtime_error("callback");
      stimulus->stop();
    });
    loop.post([&immediates] { ++immediates; });
    EXPECT_THROW(loop.run(), std::runtime_error);
    EXPECT_FALSE(loop.running());
    EXPECT_EQ(loop.run(), 0);
    const bool twice = kind == Kind::repeating;
    EXPECT_EQ(calls, twice ? 2 : 1);
    EXPECT_EQ(immediates, twice ? 7 : 4);
    EXPECT_EQ(crowd.timer_calls, 5);
    EXPECT_EQ(crowd.calls, std::vector<int>(50, 1));
  }
}

TEST_P(KindTraps, AStartedHandleSurvivesTheExceptionOfItsCallback) {
  for (const Kind kind : kinds()) {
    if (kind == Kind::timer) continue;  // one-shot
    SCOPED_TRACE(to_string(kind));
    const auto stimulus = prepared(kind);
    int calls = 0;
    stimulus->start([&] {
      ++calls;
      throw calls;
    });
    EXPECT_THROW(loop.run(), int);
    EXPECT_EQ(calls, 1);
    const bool again = kind == Kind::repeating || kind == Kind::watcher;
    if (again) {
      EXPECT_THROW(loop.run(), int);
      EXPECT_EQ(calls, 2);
    }
    stimulus->stop();
    EXPECT_EQ(loop.run(), 0);
  }
}

TEST_P(KindTraps, AnExceptionInANestedRunUnwindsToTheOuterCallback) {
  bool caught = false;
  loop.post([&] {
    loop.post([] { throw std::runtime_error("inner"); });
    try {
      loop.run();
    } catch (const std::runtime_error&) {
      caught = true;
    }
    EXPECT_TRUE(loop.running());
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_TRUE(caught);
  EXPECT_FALSE(loop.running());
}

TEST_P(KindTraps, AnExceptionOfAWaitHook) {
  bool throws = true;
  int calls = 0;
  loop.set_wait_hooks(
      [&] {
        if (std::exchange(throws, false)) throw std::runtime_error("hook");
      },
      [&] { ++calls; });
  Timer timer(loop);
  timer.after(1ms, [&] { ++calls; });
  EXPECT_THROW(loop.run(), std::runtime_error);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 2);
}

// Six orders of three ways to end a stream, with and without something queued.
TEST_P(KindTraps, TrapT015ClosedTwice) {
  constexpr int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  std::vector<TcpPair> pairs(12);
  std::vector<int> closed(12);
  std::vector<int> halves(12);
  const std::string much(8 << 20, 'x');
  for (std::size_t index = 0; index < pairs.size(); ++index) {
    TcpPair& pair = pairs[index];
    ASSERT_TRUE(pair.open(loop));
    if (index >= 6) {
      ASSERT_TRUE(pair.server.send_copy(much));
    }
    for (const int way : orders[index % 6]) {
      if (way == 0)
        pair.server.close_gracefully({.timeout = 50ms}, [&, index] { ++closed[index]; });
      if (way == 1) pair.server.close([&, index] { ++closed[index]; });
      if (way == 2) pair.server.shutdown_send([&, index](Result<void>) { ++halves[index]; });
    }
  }
  ASSERT_TRUE(run_until([&] {
    return std::all_of(pairs.begin(), pairs.end(),
                       [](const TcpPair& pair) { return !pair.server.active(); });
  }));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(halves, std::vector<int>(12, 1)) << "each half-close completes once";
  for (const int count : closed) EXPECT_TRUE(count == 1 || count == 2) << count;
  EXPECT_EQ(loop.counters().handles_active, 0U);
  EXPECT_TRUE(rests());
}

}  // namespace
}  // namespace evix::test
