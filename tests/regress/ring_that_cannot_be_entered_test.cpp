#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <cerrno>

#include "support/fault_calls.hpp"
#include "support/offered.hpp"

// A sandbox allowed io_uring_setup(2) and refused io_uring_enter(2): a loop was made over io_uring,
// and each run() failed with EPERM. Found by tests/degraded.
namespace evix::test {
namespace {

using detail::CallId;

TEST(RingThatCannotBeEntered, IsNoBackend) {
  if (!is_offered(BackendKind::io_uring)) GTEST_SKIP() << io_uring_refusal();
  for (const int error : {EPERM, ENOSYS, EINVAL}) {
    detail::FaultCalls faults;
    faults.makes_ring_operations = false;
    faults.refuse(CallId::ring_enter, error);
    const auto loop = Loop::create({.backend = BackendKind::io_uring, .system_calls = &faults});
    ASSERT_FALSE(loop) << error;
    EXPECT_EQ(loop.error(), Errc::backend_unavailable);
    EXPECT_EQ(faults.count(CallId::ring_enter), 1U);
    EXPECT_EQ(faults.count(CallId::memory_map), faults.count(CallId::memory_unmap));
  }
}

}  // namespace
}  // namespace evix::test
