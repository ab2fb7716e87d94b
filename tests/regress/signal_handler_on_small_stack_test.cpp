#include <evix/evix.hpp>

#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <cstddef>
#include <functional>
#include <utility>

#include "support/fault_calls.hpp"

// The handler was installed without SA_ONSTACK, so on a thread whose own stack is small, and that
// has an alternate one for that reason, it ran on the small one: sigaltstack(2).
namespace evix::test {
namespace {

using detail::CallId;

TEST(SignalHandlerOnSmallStack, UsesTheAlternateStack) {
  static std::array<std::byte, 128 * 1024> stack;
  detail::FaultCalls calls;
  Loop loop{LoopOptions{.backend = BackendKind::poll, .system_calls = &calls}};
  SignalWatcher watcher{loop};
  int signals = 0;
  ASSERT_TRUE(watcher.start(SIGUSR1, [&](int) { ++signals; }));
  struct sigaction installed{};
  ASSERT_EQ(sigaction(SIGUSR1, nullptr, &installed), 0);
  EXPECT_EQ(installed.sa_flags & SA_ONSTACK, SA_ONSTACK);

  // The signal comes while the loop counts as asleep, so its handler writes the event.
  bool armed = true;
  int writes = 0;
  int writes_on_stack = 0;
  calls.before = [&](CallId id) {
    if (id == CallId::poll && std::exchange(armed, false)) raise(SIGUSR1);
    if (id != CallId::event_write) return;
    ++writes;
    const auto* here = static_cast<const std::byte*>(__builtin_frame_address(0));
    // std::less orders pointers into different objects.
    const std::less<> below;
    if (below(stack.data(), here) && below(here, stack.data() + stack.size())) ++writes_on_stack;
  };
  stack_t alternate{};
  alternate.ss_sp = stack.data();
  alternate.ss_size = stack.size();
  stack_t before{};
  ASSERT_EQ(sigaltstack(&alternate, &before), 0);
  EXPECT_EQ(loop.run_once(), 0);
  ASSERT_EQ(sigaltstack(&before, nullptr), 0);
  calls.before = nullptr;
  EXPECT_EQ(signals, 1);
  EXPECT_EQ(writes, 1);
  EXPECT_EQ(writes_on_stack, 1);
}

}  // namespace
}  // namespace evix::test
