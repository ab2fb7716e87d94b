#include <csignal>
#include <memory>
#include <optional>

#include "backend/conformance.hpp"
#include "backend/stimulus.hpp"

// Setting a callback destroyed the one before, and with it what that one had captured: the last
// owner of the handle, or a guard that stops or restarts it. The call that was going on then used a
// record that was free, or left a handle that was active while nothing was watched.
//
// What was captured dies last, so what it does is the latest call.
namespace evix::test {
namespace {

/** Runs a task when it dies, once. */
template <class Task>
class AtDeath {
 public:
  explicit AtDeath(Task task) : task_(std::move(task)) {}
  AtDeath(AtDeath&& other) noexcept
      : task_(std::move(other.task_)), armed_(std::exchange(other.armed_, false)) {}
  AtDeath& operator=(AtDeath&&) = delete;
  ~AtDeath() {
    if (armed_) task_();
  }

 private:
  Task task_;
  bool armed_ = true;
};

enum class What { destroy, stop, restart };

/** A handle whose first callback has a guard, replaced by a second one. */
template <class Handle>
struct Replaced {
  std::optional<Handle> handle;
  int first = 0;
  int second = 0;
  int third = 0;
  std::shared_ptr<int> token = std::make_shared<int>(0);

  /** `start(handle, callback, number)`: number 1, 2, 3 in the order of the calls. */
  template <class Start, class Stop>
  void replace(What what, Start start, Stop stop) {
    auto act = [this, what, start, stop, held = token] {
      if (what == What::destroy) handle.reset();
      if (what == What::stop) stop(*handle);
      if (what == What::restart) start(*handle, [this, held] { ++third; }, 3);
    };
    start(*handle, [this, guard = AtDeath(std::move(act))] { ++first; }, 1);
    start(*handle, [this, held = token] { ++second; }, 2);
  }
  void expect_latest(Loop& loop, What what) const {
    EXPECT_EQ(loop.run_ready(), 0);
    EXPECT_EQ(first, 0);
    EXPECT_EQ(second, 0);
    EXPECT_EQ(third, what == What::restart ? 1 : 0);
    EXPECT_EQ(handle.has_value(), what != What::destroy);
    if (what == What::destroy) {
      EXPECT_EQ(token.use_count(), 1);
    }
  }
};

class ReplacedCallbackUsesHandle : public Conformance {
 protected:
  static constexpr What all[] = {What::destroy, What::stop, What::restart};
  /** The handle's records are where they were, and nothing that was captured is left. */
  template <class Handle>
  void expect_nothing_left(Replaced<Handle>& replaced, std::uint64_t handles_before) {
    replaced.handle.reset();
    EXPECT_EQ(loop.run_ready(), 0);
    EXPECT_EQ(replaced.token.use_count(), 1);
    EXPECT_EQ(loop.counters().handles, handles_before);
    EXPECT_EQ(loop.counters().handles_active, 0U);
    EXPECT_EQ(loop.counters().timers_armed, 0U);
  }
};
EVIX_OVER_BACKENDS(ReplacedCallbackUsesHandle);

TEST_P(ReplacedCallbackUsesHandle, Timer) {
  for (const What what : all) {
    SCOPED_TRACE(static_cast<int>(what));
    Replaced<evix::Timer> replaced;
    replaced.handle.emplace(loop);
    replaced.replace(
        what, [](evix::Timer& timer, auto callback, int) { timer.after(0ms, std::move(callback)); },
        [](evix::Timer& timer) { timer.stop(); });
    if (what == What::stop) {
      EXPECT_FALSE(replaced.handle->active());
    }
    replaced.expect_latest(loop, what);
    expect_nothing_left(replaced, 0);
  }
}

TEST_P(ReplacedCallbackUsesHandle, TimerAt) {
  for (const What what : all) {
    SCOPED_TRACE(static_cast<int>(what));
    Replaced<evix::Timer> replaced;
    replaced.handle.emplace(loop);
    replaced.replace(
        what,
        [this](evix::Timer& timer, auto callback, int number) {
          timer.at(loop.now() - 1ms * number, std::move(callback));
        },
        [](evix::Timer& timer) { timer.stop(); });
    replaced.expect_latest(loop, what);
    expect_nothing_left(replaced, 0);
  }
}

TEST_P(ReplacedCallbackUsesHandle, Watcher) {
  EVIX_SKIP_ON(BackendKind::sim, "real descriptors do not exist in the simulator");
  const OwnDescriptor ready = readable_descriptor();
  for (const What what : all) {
    for (const bool once : {false, true}) {
      SCOPED_TRACE(static_cast<int>(what));
      Replaced<evix::Watcher> replaced;
      replaced.handle.emplace(loop);
      replaced.replace(
          what,
          [&](evix::Watcher& watcher, auto callback, int number) {
            auto call = [inner = std::move(callback)](Ready) mutable { inner(); };
            const auto started = once
                                     ? watcher.once(ready.get(), Ready::readable, std::move(call))
                                     : watcher.start(ready.get(), Ready::readable, std::move(call));
            EXPECT_TRUE(started) << number;
          },
          [](evix::Watcher& watcher) { watcher.stop(); });
      if (what == What::stop) {
        EXPECT_FALSE(replaced.handle->active());
        EXPECT_EQ(replaced.handle->handle(), no_handle);
      }
      replaced.expect_latest(loop, what);
      expect_nothing_left(replaced, 0);
    }
  }
}

TEST_P(ReplacedCallbackUsesHandle, SignalWatcher) {
  for (const What what : all) {
    SCOPED_TRACE(static_cast<int>(what));
    Replaced<evix::SignalWatcher> replaced;
    replaced.handle.emplace(loop);
    evix::SignalWatcher other(loop);  // the signal stays caught
    ASSERT_TRUE(other.start(SIGUSR1, [](int) {}));
    replaced.replace(
        what,
        [](evix::SignalWatcher& watcher, auto callback, int) {
          EXPECT_TRUE(
              watcher.start(SIGUSR1, [inner = std::move(callback)](int) mutable { inner(); }));
        },
        [](evix::SignalWatcher& watcher) { watcher.stop(); });
    std::raise(SIGUSR1);
    replaced.expect_latest(loop, what);
    other = evix::SignalWatcher();
    expect_nothing_left(replaced, 0);
  }
}

// Starting to receive when it is started is refused (Errc::busy): the callback is replaced after a
// stop, which destroys it too.
TEST_P(ReplacedCallbackUsesHandle, StreamReceive) {
  for (const What what : all) {
    SCOPED_TRACE(static_cast<int>(what));
    TcpPair pair;
    ASSERT_TRUE(pair.open(loop));
    ASSERT_TRUE(pair.client.send_copy("x"));
    Replaced<TcpStream> replaced;
    replaced.handle.emplace(std::move(pair.server));
    replaced.replace(
        what,
        [](TcpStream& stream, auto callback, int number) {
          if (number == 2) return;
          stream.receive_start([inner = std::move(callback)](Result<Buffer> bytes) mutable {
            if (bytes && !bytes->empty()) inner();
          });
        },
        [](TcpStream& stream) { stream.receive_stop(); });
    replaced.handle->receive_stop();  // the guard dies here
    if (what == What::restart) {
      ASSERT_TRUE(run_until([&] { return replaced.third == 1; }));
      replaced.handle->receive_stop();
    }
    replaced.expect_latest(loop, what);
    pair.client = TcpStream();
    expect_nothing_left(replaced, 0);
  }
}

TEST_P(ReplacedCallbackUsesHandle, ListenerAccept) {
  for (const What what : all) {
    SCOPED_TRACE(static_cast<int>(what));
    Replaced<TcpListener> replaced;
    replaced.handle.emplace(loop);
    ASSERT_TRUE(replaced.handle->listen("127.0.0.1:0"));
    TcpStream client(loop);
    bool connected = false;
    client.connect(*replaced.handle->local_address(),
                   [&](const Result<void>& result) { connected = result.has_value(); });
    ASSERT_TRUE(run_until([&] { return connected; }));
    replaced.replace(
        what,
        [](TcpListener& listener, auto callback, int) {
          listener.accept_start([inner = std::move(callback)](Result<TcpStream> stream) mutable {
            if (stream) inner();
          });
        },
        [](TcpListener& listener) { listener.accept_stop(); });
    if (what == What::restart) {
      ASSERT_TRUE(run_until([&] { return replaced.third == 1; }));
      replaced.handle->accept_stop();
    }
    replaced.expect_latest(loop, what);
    client = TcpStream();
    expect_nothing_left(replaced, 0);
  }
}

TEST_P(ReplacedCallbackUsesHandle, WaterMarks) {
  for (const What what : all) {
    SCOPED_TRACE(static_cast<int>(what));
    TcpPair pair;
    ASSERT_TRUE(pair.open(loop));
    Replaced<TcpStream> replaced;
    replaced.handle.emplace(std::move(pair.client));
    replaced.replace(
        what,
        [](TcpStream& stream, auto callback, int) {
          stream.set_water_marks(WaterMarks{.low_bytes = 1, .high_bytes = 2},
                                 [inner = std::move(callback)](WaterMark mark) mutable {
                                   if (mark == WaterMark::full) inner();
                                 });
        },
        [](TcpStream& stream) { stream.set_water_marks({}); });
    if (what != What::destroy) {
      const std::string much(8 * 1024 * 1024, 'm');
      ASSERT_TRUE(replaced.handle->send_copy(much));
    }
    replaced.expect_latest(loop, what);
    pair.server = TcpStream();
    expect_nothing_left(replaced, 0);
  }
}

TEST_P(ReplacedCallbackUsesHandle, WaitHooks) {
  int first = 0;
  int second = 0;
  int third = 0;
  int after = 0;
  auto act = [&] { loop.set_wait_hooks([&] { ++third; }, [&] { ++after; }); };
  loop.set_wait_hooks([&, guard = AtDeath(act)] { ++first; }, {});
  loop.set_wait_hooks([&] { ++second; }, {});
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 0);
  EXPECT_EQ(third, 2);
  EXPECT_EQ(after, 2);
}

}  // namespace
}  // namespace evix::test
