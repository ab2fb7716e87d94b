#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "evix/backend.hpp"
#include "evix/native_handle.hpp"
#include "evix/poller.hpp"

/** @file
 * Contract of a driver: one kernel's way to poll descriptors, below evix::Poller.
 *
 * - A driver knows descriptors and keys, nothing else: identity, batching, enabling, validity of
 *   events are the poller's. It keeps no record per descriptor unless its kernel needs one.
 * - add/modify/remove act at once and return 0 or the negative errno. add returns -EPERM for a
 *   descriptor that is open but cannot be polled: the poller makes it always ready. It must return
 *   -EBADF for one that is not open or was opened with O_PATH.
 * - `interest` is never none: an interest in nothing is not in the kernel's set, since hang-ups and
 *   errors are reported whatever the mask.
 * - wait fills `out` with at most its size, fairly: what found no room comes first next time.
 *   Ready bits have the values of poll(2). -EINTR is passed on. It must not spin for a timeout
 *   below the kernel's unit, and never returns 0 before the timeout has passed.
 * - add and modify may throw std::bad_alloc, with nothing changed; nothing else is thrown.
 * - No driver function runs user code (a program's own backend is user code; its driver says so).
 *
 * To add a driver: write `NAME.cpp` here with its make function, add it to poller.cpp's choice
 * and to backend/choose.cpp, and run the suite tests/poll with it.
 */
namespace evix::detail {

class Calls;

/**
 * One ready descriptor as a driver reports it. Laid out as the kernel's epoll_event on x86-64, so
 * that the epoll driver has nothing to convert: eight instructions an event.
 */
struct [[gnu::packed, gnu::may_alias]] DriverEvent {
  Ready ready = Ready::none;
  std::uint16_t unused = 0;
  std::uint64_t key = 0;  ///< as given to add

  DriverEvent() noexcept = default;
  DriverEvent(std::uint64_t event_key, Ready bits) noexcept : ready(bits), key(event_key) {}
};

class PollDriver {
 public:
  virtual ~PollDriver() = default;

  virtual BackendKind kind() const noexcept = 0;
  virtual bool supports_edge() const noexcept = 0;
  /** True when wait takes nanoseconds; false: it rounds up to milliseconds. */
  virtual bool waits_nanoseconds() const noexcept = 0;

  /** 0, or why add() will refuse this descriptor (-EBADF); cheap, for batched adds. */
  virtual int check(native_handle) noexcept { return 0; }

  virtual int add(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) = 0;
  virtual int modify(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) = 0;
  virtual int remove(native_handle handle, std::uint64_t key) = 0;
  /** The descriptor is about to be closed by its only owner. Default for kernels: remove. */
  virtual void forget(native_handle handle, std::uint64_t key) { remove(handle, key); }

  /**
   * Whether the number still means the descriptor that was added: 0, -EBADF (not open) or -ENOENT
   * (it was closed and something else has its number). 0 where the kernel has no way to tell.
   */
  virtual int verify(native_handle, std::uint64_t) { return 0; }

  /** @param timeout_ns below 0: no limit. @return the number of events, or the negative errno. */
  virtual int wait(std::int64_t timeout_ns, std::span<DriverEvent> out) = 0;

  /** A new, empty kernel object in place of the old one, which is closed. 0 or -errno. */
  virtual int rebuild() = 0;
};

/** epoll(7); null with the negative errno in `error` when the kernel object cannot be made. */
std::unique_ptr<PollDriver> make_epoll_driver(Calls& calls, int& error);
/** ppoll(2); never fails. */
std::unique_ptr<PollDriver> make_poll_driver(Calls& calls, int& error);

}  // namespace evix::detail
