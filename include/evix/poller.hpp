#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "evix/backend.hpp"
#include "evix/error.hpp"
#include "evix/export.hpp"
#include "evix/native_handle.hpp"
#include "evix/ready.hpp"
#include "evix/time.hpp"

/** @file
 * The readiness layer by itself: register interests, wait, walk the events. No loop is needed.
 */
namespace evix {

namespace detail {
class Calls;
class PollDriver;
class PollerState;
}  // namespace detail

/** One interest that became ready. */
struct PollEvent {
  std::uint64_t token = 0;  ///< yours, from add()
  InterestId id;
  native_handle handle = no_handle;
  Ready ready = Ready::none;
};

/** A change that the kernel refused; its interest has been removed. */
struct ChangeFailure {
  InterestId id;
  native_handle handle = no_handle;
  std::uint64_t token = 0;
  Error error;
};

struct PollerOptions {
  /** automatic, epoll or poll. */
  BackendKind kind = BackendKind::automatic;
  /** The most events one wait gives; the rest comes with the next, in turn. At least 1. */
  std::size_t events_max = 256;
  /** Replaces the system calls; for tests and simulation. Null: the kernel's. */
  detail::Calls* system_calls = nullptr;
};

/**
 * A set of interests in descriptors. Used by one thread at a time.
 *
 * Changes (add, modify, enable, disable) are collected and go to the kernel together, at commit()
 * or at the start of wait(); a refused one is listed in failures(). remove() acts at once and
 * before it returns, so the descriptor may be closed right after it; remove before you close.
 * Descriptors that the kernel cannot poll (regular files, directories, /dev/null) are always ready
 * while enabled, as poll(2) has it. A closed or O_PATH descriptor is refused by add().
 *
 * Source: epoll(7), epoll_ctl(2), epoll_pwait2(2), poll(2).
 */
class EVIX_API Poller {
 public:
  /** @return backend_unavailable, or what the kernel said to making the kernel object. */
  [[nodiscard]] static Result<Poller> create(PollerOptions options = {});
  /** For loops: over this driver. @param events_max as in PollerOptions. */
  static Poller over(std::unique_ptr<detail::PollDriver> driver, std::size_t events_max = 256);

  Poller(Poller&&) noexcept;
  Poller& operator=(Poller&&) noexcept;
  ~Poller();

  /** epoll or poll (custom with a driver). */
  BackendKind kind() const noexcept;
  bool supports_edge() const noexcept;

  /**
   * Registers an interest.
   * @param interest any of readable, writable, priority; none is as if disabled.
   * @param token given back with each event; evix does not look at it.
   * @return already_registered when the poller has this descriptor; EBADF for a closed or O_PATH
   *         descriptor; not_supported for Trigger::edge without supports_edge(). When the kernel
   *         says that the number was closed by others and means another descriptor now, the new
   *         interest is added and the old one gets an event with Ready::invalid.
   */
  [[nodiscard]] Result<InterestId> add(native_handle handle, Ready interest, Trigger trigger,
                                       std::uint64_t token, bool enabled = true);
  /** As add(), but the kernel is asked before the call returns, with its answer. */
  [[nodiscard]] Result<InterestId> add_now(native_handle handle, Ready interest, Trigger trigger,
                                           std::uint64_t token);
  /** Changes interest and trigger; a disabled interest stays disabled. @return stale_handle. */
  Result<void> modify(InterestId id, Ready interest, Trigger trigger);
  Result<void> set_token(InterestId id, std::uint64_t token);
  /** Enabling an enabled interest re-arms it: an edge or one-shot interest that is ready fires. */
  Result<void> enable(InterestId id);
  /** Takes it out of the kernel's set, hang-ups and errors included; add() again is not needed. */
  Result<void> disable(InterestId id);
  /** Forgets the interest, in the kernel before the call returns, and its events not yet walked. */
  Result<void> remove(InterestId id);
  /**
   * Forgets an interest whose descriptor is about to be closed by its only owner and was never
   * duplicated: the kernel drops it at the close, so no system call is made. Never use it for a
   * descriptor that somebody else may hold (dup(2), fork(2)).
   */
  Result<void> forget(InterestId id);

  /** Sends the collected changes to the kernel. @return how many were refused; see failures(). */
  std::size_t commit();
  /** Changes refused by the last commit() or wait(); valid until the next one. */
  std::span<const ChangeFailure> failures() const noexcept;

  /**
   * Commits, then waits for events.
   * @param timeout zero: do not wait; evix::forever: no limit. Nanoseconds where the kernel has
   *        them (epoll_pwait2, Linux 5.11; ppoll), else rounded up to milliseconds.
   * @return the number of events to walk with next(); 0 after the timeout, or at once when
   *         failures() has something new; EINTR is an error here (the caller recomputes its
   *         timeout). Events of an earlier wait that were not walked are dropped and, as long as
   *         their descriptors are ready, come again.
   */
  [[nodiscard]] Result<std::size_t> wait(Duration timeout);
  /** The next event whose interest still exists and is enabled. */
  std::optional<PollEvent> next();

  /** Registered interests. */
  std::size_t size() const noexcept;

  /** In a child after fork(2): makes a new kernel object and registers all interests in it. */
  [[nodiscard]] Result<void> after_fork();

  /** For the loop: what is behind. */
  detail::PollerState& state() noexcept { return *state_; }

 private:
  explicit Poller(std::unique_ptr<detail::PollerState> state) noexcept;
  std::unique_ptr<detail::PollerState> state_;
};

}  // namespace evix
