#include <atomic>
#include <csignal>
#include <thread>

#include <pthread.h>

#include "backend/conformance.hpp"
#include "backend/tcp_support.hpp"

// stop() on the loop's own thread did not wake the loop, since nobody waits there: but a signal
// handler of the program may run on that thread while it waits, or just before.
namespace evix::test {
namespace {

std::atomic<Loop*> loop_to_stop = nullptr;

class StopInSignalHandler : public TcpConformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    struct sigaction action{};
    action.sa_handler = [](int) { loop_to_stop.load()->stop(); };
    ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  }
  void TearDown() override { sigaction(SIGUSR1, &before, nullptr); }
  struct sigaction before{};
};
EVIX_OVER_BACKENDS(StopInSignalHandler);

// The signal comes when the loop counts as asleep and has not begun to wait.
TEST_P(StopInSignalHandler, JustBeforeTheWait) {
  EVIX_SKIP_ON(BackendKind::sim, "its waits are no calls of the table");
  FaultyLoop faulty(GetParam());
  loop_to_stop = faulty.loop.get();
  const KeepAlive forever = faulty.loop->keep_alive();
  bool armed = true;
  int signals = 0;
  faulty.loop->set_wait_hooks(
      [&] {
        faulty.calls->before = [&](detail::CallId id) {
          const bool waits = id == detail::CallId::epoll_wait_ns ||
                             id == detail::CallId::epoll_wait_ms || id == detail::CallId::poll ||
                             id == detail::CallId::ring_enter;
          if (!waits || !std::exchange(armed, false)) return;
          ++signals;
          std::raise(SIGUSR1);
        };
      },
      {});
  const Duration took =
      elapsed(*faulty.loop, [&] { EXPECT_EQ(faulty.loop->run_for(patience), 0); });
  faulty.calls->before = nullptr;
  EXPECT_LT(took, patience);
  EXPECT_EQ(signals, 1);
}

TEST_P(StopInSignalHandler, WhileItWaits) {
  loop_to_stop = &loop;
  const KeepAlive forever = loop.keep_alive();
  const pthread_t here = pthread_self();
  const std::uint64_t waits = loop.counters().waits;
  std::thread sender([&] {
    // After this it waits, or is about to, which the test above is for.
    while (loop.counters().waits == waits) std::this_thread::yield();
    ASSERT_EQ(pthread_kill(here, SIGUSR1), 0);
  });
  EXPECT_EQ(loop.run(), 0);
  sender.join();
}

}  // namespace
}  // namespace evix::test
