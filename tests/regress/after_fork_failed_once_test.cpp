#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>

#include "backend/fork_support.hpp"
#include "support/fault_calls.hpp"
#include "support/offered.hpp"

// An after_fork() that failed for want of descriptors was taken for done: the next one did nothing
// and gave success, and the child went on with the epoll set of its parent.
namespace evix::test {
namespace {

using namespace std::chrono_literals;
using detail::CallId;

const int forked_code = static_cast<int>(Errc::forked);

struct Failing {
  BackendKind backend;
  CallId call;
  const char* name;
};

class AfterForkFailedOnce : public testing::TestWithParam<Failing> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(watcher.start(pipe.read_end(), Ready::readable, [this](Ready) {
      ++calls;
      watcher.stop();
    }));
    // With it the loop has a wake descriptor.
    ASSERT_TRUE(signals.start(SIGUSR1, [](int) {}));
    signals.unreference();
    ASSERT_EQ(loop.run_ready(), 0);
  }
  Pipe pipe;
  detail::FaultCalls faults;
  Loop loop{LoopOptions{.backend = GetParam().backend, .system_calls = &faults}};
  Watcher watcher{loop};
  SignalWatcher signals{loop};
  int calls = 0;
};
std::vector<Failing> failing_calls() {
  std::vector<Failing> calls{{BackendKind::epoll, CallId::epoll_create, "epoll"},
                             {BackendKind::epoll, CallId::event_create, "event"},
                             {BackendKind::poll, CallId::event_create, "poll"},
                             {BackendKind::io_uring, CallId::ring_setup, "ring"},
                             {BackendKind::io_uring, CallId::ring_register, "ring_register"},
                             {BackendKind::io_uring, CallId::memory_map, "memory_map"}};
  std::erase_if(calls, [](const Failing& each) { return !is_offered(each.backend); });
  return calls;
}
INSTANTIATE_TEST_SUITE_P(Calls, AfterForkFailedOnce, testing::ValuesIn(failing_calls()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_P(AfterForkFailedOnce, IsDoneByTheNextCall) {
  ASSERT_EQ(run_child([&] {
              faults.fail(GetParam().call, 1, EMFILE, 2);
              for (int attempt = 0; attempt < 2; ++attempt) {
                const auto failed = loop.after_fork();
                if (failed) return 1;
                if (failed.error().code().value() != EMFILE) return 2;
                if (loop.run() != forked_code) return 3;
                Watcher refused(loop);
                const auto started = refused.start(0, Ready::readable, [](Ready) {});
                if (started || !(started.error() == Errc::forked)) return 4;
              }
              if (!loop.after_fork()) return 5;
              pipe.put();
              if (loop.run() != 0 || calls != 1) return 6;
              Pipe own;
              own.put();
              Watcher another(loop);
              int told = 0;
              if (!another.once(own.read_end(), Ready::readable, [&](Ready) { ++told; })) return 7;
              if (loop.run() != 0 || told != 1) return 8;
              // The descriptors from before and after: nothing of the parent's is used.
              ::raise(SIGUSR1);
              return loop.run_ready() == 0 ? 0 : 9;
            }),
            0);
  // The parent's byte was written by the child; its set still has exactly its own watcher.
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 1);
  pipe.take();
  ASSERT_TRUE(watcher.start(pipe.read_end(), Ready::readable, [this](Ready) { ++calls; }));
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, 1);
  pipe.put();
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace evix::test
