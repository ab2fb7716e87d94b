#pragma once

#include <cstdint>
#include <memory>

#include "poll/driver.hpp"
#include "sys/calls.hpp"

/** @file
 * A kernel in memory: virtual clock, TCP over loopback, ready order from a seed.
 *
 * The backend `sim` is the readiness adapter over these two halves of one simulated kernel, so a
 * loop runs its ordinary code. The same seed and the same program give the same events in the same
 * order.
 *
 * - Sockets behave as Linux TCP does over loopback: results, error numbers and readiness bits are
 *   compared with the real kernel's by tests/backend/sim_kernel_test.cpp. Only non-blocking stream
 *   sockets exist (IPv4, IPv6); the world ends at 127.0.0.0/8 and ::1.
 * - Sent bytes, ends and resets arrive at once. A connect completes in a later wait, never in the
 *   call; while the listener's queue is full it waits, and fails after 127 s as on Linux.
 * - Time moves only in PollDriver::wait, by exactly the timeout when nothing becomes ready, without
 *   sleeping. A wait without a limit sleeps for real, on the event descriptors.
 * - Numbers are the lowest free ones from sim_descriptor_base, so that no real descriptor can be
 *   taken for a simulated one. Event descriptors and signals are the real kernel's; every other
 *   real descriptor is -EBADF here.
 * - One thread at a time, event_write apart.
 */
namespace evix::detail {

inline constexpr int sim_descriptor_base = 1'000'000;
inline constexpr int sim_descriptors_max = 20'000;  ///< then -EMFILE
/** The virtual time at which every simulation starts. */
inline constexpr std::int64_t sim_start_ns = 1'000'000'000;
/** Unread bytes of one direction: 2.5 MiB, what Linux 6.18 lets a loopback connection hold. */
inline constexpr std::size_t sim_capacity = 2'621'440;

/** Both halves share one simulated kernel; either may die first. */
struct Sim {
  std::unique_ptr<Calls> calls;
  std::unique_ptr<PollDriver> driver;
};

Sim make_sim(std::uint64_t seed);

}  // namespace evix::detail
