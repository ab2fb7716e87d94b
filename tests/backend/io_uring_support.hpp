#pragma once

#include <evix/evix.hpp>

#include <gtest/gtest.h>
#include <liburing.h>

#include <algorithm>
#include <string>

#include "backend/stimulus.hpp"
#include "backend/tcp_support.hpp"
#include "support/fault_calls.hpp"
#include "support/offered.hpp"

/** @file
 * Tables of calls that are other kernels to a ring, or that show what goes through it.
 */
namespace evix::test {

using detail::CallId;

inline LoopOptions over(detail::Calls& calls) {
  return {.backend = BackendKind::io_uring, .system_calls = &calls};
}

/** The kernel alone makes the ring's operations; the calls are counted. */
struct CountingCalls : detail::FaultCalls {
  CountingCalls() { makes_ring_operations = false; }
};

/** A kernel that does not know some flags of the set-up. */
struct OldKernel : CountingCalls {
  explicit OldKernel(unsigned unknown) : unknown_flags(unknown) {}
  int ring_setup(unsigned entries, void* memory) noexcept override {
    auto* const parameters = static_cast<io_uring_params*>(memory);
    if ((parameters->flags & unknown_flags) != 0) return -EINVAL;
    if (entries > entries_max) return -ENOMEM;
    flags_taken = parameters->flags;
    const int fd = CountingCalls::ring_setup(entries, parameters);
    parameters->features &= ~features_lacking;
    return fd;
  }
  int ring_register(int fd, unsigned operation, void* argument, unsigned count) noexcept override {
    const int result = CountingCalls::ring_register(fd, operation, argument, count);
    if (operation == IORING_REGISTER_PROBE && opcode_lacking >= 0) {
      auto* const operations =
          reinterpret_cast<io_uring_probe_op*>(static_cast<io_uring_probe*>(argument) + 1);
      operations[opcode_lacking].flags = 0;
    }
    return operation == operation_lacking ? -EINVAL : result;
  }
  unsigned unknown_flags = 0;
  unsigned entries_max = 4096;
  unsigned features_lacking = 0;
  unsigned flags_taken = 0;
  int opcode_lacking = -1;
  unsigned operation_lacking = UINT32_MAX;
};

/**
 * Shows a test the entries of the newest ring before the kernel gets them, and its completions
 * before the loop does. One ring at a time is used.
 */
struct WatchedRing : OldKernel {
  explicit WatchedRing(unsigned unknown = 0) : OldKernel(unknown) {}
  virtual void on_entry(io_uring_sqe& /*entry*/) noexcept {}
  virtual void on_completion(io_uring_cqe& /*completion*/) noexcept {}

  int ring_setup(unsigned entries, void* memory) noexcept override {
    auto* const parameters = static_cast<io_uring_params*>(memory);
    parameters->cq_entries = std::min(parameters->cq_entries, completions_most);
    const int fd = OldKernel::ring_setup(std::min(entries, entries_most), parameters);
    if (fd < 0) return fd;
    ring = fd;
    layout = *parameters;
    entries_seen = completions_seen = 0;
    return fd;
  }
  int memory_map(int fd, std::size_t size, std::uint64_t offset, void** memory) noexcept override {
    const int error = OldKernel::memory_map(fd, size, offset, memory);
    if (fd >= 0 && offset == IORING_OFF_SQES) entry_memory = static_cast<io_uring_sqe*>(*memory);
    if (fd >= 0 && offset == IORING_OFF_SQ_RING) queues = static_cast<std::byte*>(*memory);
    return error;
  }
  int ring_enter(int fd, unsigned submit_count, unsigned wait_count, unsigned flags,
                 const void* argument, std::size_t argument_size) noexcept override {
    const unsigned end = word(layout.sq_off.head) + submit_count;
    for (; entries_seen != end; ++entries_seen) {
      on_entry(entry_memory[entries_seen & (layout.sq_entries - 1)]);
    }
    const int taken =
        OldKernel::ring_enter(fd, submit_count, wait_count, flags, argument, argument_size);
    overflows += (word(layout.sq_off.flags) & IORING_SQ_CQ_OVERFLOW) != 0 ? 1 : 0;
    const unsigned head = word(layout.cq_off.head);
    if (static_cast<int>(completions_seen - head) < 0) completions_seen = head;
    for (; completions_seen != completions_end(); ++completions_seen) {
      on_completion(completion(completions_seen));
    }
    return taken;
  }

  unsigned& word(unsigned offset) noexcept { return *reinterpret_cast<unsigned*>(queues + offset); }
  unsigned completions_end() noexcept {
    return __atomic_load_n(&word(layout.cq_off.tail), __ATOMIC_ACQUIRE);
  }
  io_uring_cqe& completion(unsigned position) noexcept {
    auto* const all = reinterpret_cast<io_uring_cqe*>(queues + layout.cq_off.cqes);
    return all[position & (layout.cq_entries - 1)];
  }
  /** What the kernel gave up because it had no room, or did not understand. */
  unsigned lost() noexcept { return word(layout.cq_off.overflow) + word(layout.sq_off.dropped); }

  unsigned entries_most = UINT32_MAX;
  unsigned completions_most = UINT32_MAX;
  unsigned overflows = 0;  ///< calls after which the kernel still held completions back
  int ring = -1;
  io_uring_params layout{};
  std::byte* queues = nullptr;
  io_uring_sqe* entry_memory = nullptr;
  unsigned entries_seen = 0;      ///< position of the next
  unsigned completions_seen = 0;  ///< position of the next
};

/** Tests that make their loops themselves. */
class NeedsIoUring : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_offered(BackendKind::io_uring)) GTEST_SKIP() << io_uring_refusal();
  }
};

/** As EVIX_OVER_BACKENDS, with nothing to run where io_uring is refused. */
#define EVIX_OVER_IO_URING(suite)                                                                \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite);                                          \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::ValuesIn(offered({BackendKind::io_uring})), \
                           backend_name)

/** One echo, so that every kind of entry was made. */
inline void echo_once(Loop& loop) {
  TcpPair pair;
  ASSERT_TRUE(pair.open(loop));
  std::string text;
  pair.server.receive_start([&](Result<Buffer> bytes) {
    if (bytes && !bytes->empty()) {
      EXPECT_TRUE(pair.server.send_copy(bytes->text()));
    }
  });
  pair.client.receive_start([&](Result<Buffer> bytes) {
    if (bytes) text += bytes->text();
  });
  ASSERT_TRUE(pair.client.send_copy("round"));
  for (int turn = 0; turn < 100 && text != "round"; ++turn) ASSERT_EQ(loop.run_once(1s), 0);
  EXPECT_EQ(text, "round");
}

}  // namespace evix::test
