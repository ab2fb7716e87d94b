#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "evix/backend.hpp"
#include "evix/callback.hpp"
#include "evix/error.hpp"
#include "evix/export.hpp"
#include "evix/handle.hpp"
#include "evix/native_handle.hpp"
#include "evix/time.hpp"

/** @file
 * The loop.
 *
 * Threads: post(), wake(), stop(), stop_all(), poster() and counters() may be called from any
 * thread while the loop exists; a Poster also after it. Everything else belongs to the thread that
 * runs the loop, or, while nobody runs it, to any one thread at a time. A call from another
 * thread aborts the process with a message.
 */
namespace evix {

struct LoopOptions;
template <class T = void>
class Task;

namespace detail {
class Calls;
class LoopCore;
class Mailbox;
class PollDriver;
Result<Loop> make_loop(const LoopOptions& options, std::unique_ptr<PollDriver> driver);
}  // namespace detail

/** A callback with one payload that is queued: posts, immediates. */
using PostCallback = Callback<void(), 6 * sizeof(void*)>;

struct LoopOptions {
  /**
   * Which backend. The environment variable EVIX_BACKEND, if set, overrides `automatic` only, and
   * is ignored in set-user-id programs (secure_getenv(3)).
   */
  BackendKind backend = BackendKind::automatic;
  /** Seed of the simulated backend's ready order. */
  std::uint64_t sim_seed = 1;
  /**
   * Immediates that one turn runs beyond those that were queued when its first phase began. The
   * rest waits for the next turn, so a callback that posts itself for ever starves nobody. 0 is 1.
   * As many tasks that other tasks have resumed go on in each of the turn's phases.
   */
  std::uint32_t immediate_budget = 1024;
  /**
   * Finished operations that one turn dispatches at most; the rest follows in the next turn. 0 is
   * 1: no turn would ever get anything done.
   */
  std::uint32_t completion_budget = 4096;
  /** Size of a leased receive buffer in bytes. */
  std::size_t buffer_size = 64 * 1024;
  /** Bytes that all streams of the loop may have queued for sending. */
  std::size_t send_queue_bytes_max = 256 * 1024 * 1024;
  /**
   * Connections that the listeners of the loop may have accepted and that are open at once; 0: no
   * limit. At that number no more are taken: they wait in the kernel's queue
   * (ListenOptions::backlog_max) until one is closed. Listeners get free places in turn. Each
   * listener with an accept_start() is told once, with Errc::connections_full, which ends nothing;
   * again only after an eighth of the places (at least one) were free. With a limit io_uring takes
   * one connection of each listener a turn, not all that have come.
   */
  std::size_t connections_max = 0;
  /** Replaces the system calls; for tests and simulation. Must outlive the loop. */
  detail::Calls* system_calls = nullptr;
};

/** What a loop has done and has to do. A consistent view is not promised, each figure is exact. */
struct LoopCounters {
  std::uint64_t turns = 0;
  std::uint64_t waits = 0;      ///< times the backend was asked to wait or look
  std::uint64_t callbacks = 0;  ///< posts, operations, timers and wake-ups that were dispatched
  std::uint64_t time_asleep_ns = 0;  ///< in waits that could block
  std::uint64_t immediates_queued = 0;
  std::uint64_t timers_armed = 0;
  std::uint64_t handles = 0;           ///< that exist; a spawned task is one
  std::uint64_t handles_active = 0;    ///< that keep run() from returning
  std::uint64_t send_queue_bytes = 0;  ///< of all streams
  std::uint64_t connections = 0;       ///< that listeners have accepted and that are open
};

enum class HandleKind : std::uint8_t { timer, watcher, signal, listener, stream, waker, task };

/** "timer", "watcher" … */
EVIX_API std::string_view to_string(HandleKind kind) noexcept;

/** One handle, or one spawned task, in Loop::handles(). */
struct HandleInfo {
  HandleKind kind;
  bool active;
  bool referenced;
  std::string name;               ///< empty: none
  std::source_location location;  ///< of the last start, of a task's spawn; line 0: never started
  native_handle handle;           ///< descriptor or signal number; no_handle: none
  std::string waits_for;          ///< "receive", "connect", "readable", "deadline in 3 ms" …
};

/**
 * Posts to a loop from any thread, also after the loop has died. Copies share one reference-counted
 * mailbox; a poster does not keep run() from returning.
 */
class EVIX_API Poster {
 public:
  Poster() noexcept = default;
  Poster(const Poster&) noexcept;
  Poster(Poster&&) noexcept;
  Poster& operator=(Poster) noexcept;
  ~Poster();

  /**
   * Queues `task` behind everything posted before by this thread, and wakes the loop. Posts are
   * never merged and never lost. Memory: one allocation.
   * @return Errc::closed when the loop is dead (or this poster is empty); `task` is destroyed,
   * once, before the call returns.
   */
  Result<void> post(PostCallback task) const;
  /** Makes the current or next wait of the loop return; several merge into one. */
  void wake() const noexcept;

 private:
  friend class Loop;
  explicit Poster(detail::Mailbox* mailbox) noexcept;
  detail::Mailbox* mailbox_ = nullptr;
};

/** Keeps run() from returning while it exists. Owner's thread only. */
class EVIX_API KeepAlive {
 public:
  KeepAlive() noexcept = default;
  KeepAlive(KeepAlive&& other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
  KeepAlive& operator=(KeepAlive&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }
  ~KeepAlive();

 private:
  friend class Loop;
  explicit KeepAlive(detail::LoopCore* core) noexcept;
  detail::LoopCore* core_ = nullptr;
};

/**
 * An event loop.
 *
 * One turn: (1) the immediates that are queued, first in first out; (2) a wait, at most until the
 * nearest deadline; (3) what became ready; (4) the timers that are due. docs/ARCHITECTURE.md has
 * the rules in full.
 *
 * An exception from a callback leaves run() with the loop intact: call run() again and nothing is
 * lost.
 */
class EVIX_API Loop {
 public:
  /** As create(); throws std::system_error with the message when it fails. */
  Loop();
  explicit Loop(const LoopOptions& options);
  /** @return backend_unknown, backend_unavailable (probe_backends() says why), or what failed. */
  [[nodiscard]] static Result<Loop> create(const LoopOptions& options = {});

  Loop(Loop&&) noexcept;
  Loop& operator=(Loop&&) noexcept;
  /**
   * Cancels everything and frees it. No callback runs any more and no task goes on: what tasks
   * hold, callbacks, posted payloads and buffers are destroyed, in this order. Handles stay valid
   * and closed. Not allowed inside a callback.
   */
  ~Loop();

  /**
   * Runs turns until nothing referenced is left, or stop(). May be called inside a callback: the
   * inner run drains the same queues.
   * @return 0 at the natural end and after stop(); else a positive code, with error() telling what:
   *         Errc::wrong_thread when operations are in flight that another thread started (and
   *         while another thread runs the loop, whose error() it then stays),
   *         Errc::forked in a child that did not call after_fork(), or what the kernel said.
   */
  int run();
  /**
   * One turn, which waits until something happens, at most `timeout`. A signal that no watcher of
   * this loop waits for is nothing.
   * @return as run().
   */
  int run_once(Duration timeout = forever);
  /** One turn that does not wait. */
  int run_ready();
  /** Turns for `duration`, or until nothing referenced is left or stop(). */
  int run_for(Duration duration);
  /** Why the last run gave a code other than 0. */
  const Error& error() const noexcept;

  /**
   * Ends the innermost run before its next callback; a stop() before run() makes that run return
   * at once, once. Any thread; wakes the wait.
   */
  void stop() noexcept;
  /** Ends every nested run. */
  void stop_all() noexcept;
  /** Forgets a stop() that no run has consumed yet. */
  void clear_stop() noexcept;
  bool running() const noexcept;
  /** Whether run() would have something to do: queued, armed or in flight. */
  bool alive() const noexcept;

  /**
   * Queues a callback for the next first phase. Any thread. On the loop's own thread, inside run,
   * this is an immediate and allocates nothing after warm-up.
   */
  void post(PostCallback task);
  /**
   * Runs a task that nobody awaits; include evix/task.hpp. It keeps run() from returning until it
   * has ended, an exception that leaves it leaves run(), and what is left of it is destroyed with
   * the loop. It begins in a turn, never inside this call; several begin in the order of the calls.
   * The thread that runs the loop, or any thread while nobody does.
   */
  void spawn(Task<void> task, std::source_location location = std::source_location::current());
  /** Makes the current or next wait return; several merge. Any thread, and signal handlers. */
  void wake() noexcept;
  Poster poster() const;
  [[nodiscard]] KeepAlive keep_alive() noexcept;

  /** The time of this turn; read from the clock at most once a turn. */
  TimePoint now() const noexcept;
  /** Reads the clock anew, for callbacks that work long. */
  void update_now() noexcept;

  BackendKind backend() const noexcept;
  const BackendReport& backend_report() const noexcept;

  /** Any thread. */
  LoopCounters counters() const noexcept;
  /** Every handle, with name, place of its start and what it waits for. */
  std::vector<HandleInfo> handles() const;

  /**
   * In a child after fork(2), before anything else is called: makes new kernel objects and
   * registers all descriptors in them. Signals caught for the parent are forgotten. The parent is
   * not touched. Until then run() returns Errc::forked; destroying the loop is always allowed.
   */
  [[nodiscard]] Result<void> after_fork();

  /**
   * Makes the loop's kernel objects anew and registers all descriptors in them; whatever is in
   * flight goes on, no byte is lost and no operation ends. For a program that has given up
   * privileges (setuid(2), capabilities) or has entered another namespace or control group: the
   * ring or the epoll set then belongs to, and is charged to, who the program is now. Allowed in
   * callbacks. The thread that runs the loop, or any thread while nobody does.
   *
   * @return what the kernel said when it refuses them now: an epoll set stays as it was, a ring is
   *         gone and each run() tries to make it again, and says so when it cannot. Nothing in
   *         flight ends by it. Errc::forked in a child that did not call after_fork().
   */
  [[nodiscard]] Result<void> rebuild();

  /** Called directly before and after each wait, for bindings. Empty: none. */
  void set_wait_hooks(Callback<void()> before, Callback<void()> after);
  void set_user_data(void* data) noexcept;
  void* user_data() const noexcept;

  /** For evix. */
  detail::LoopCore& core() const noexcept;

 private:
  friend Result<Loop> detail::make_loop(const LoopOptions&, std::unique_ptr<detail::PollDriver>);
  explicit Loop(detail::LoopCore* core) noexcept;
  void be_the_loop_of_core() noexcept;
  detail::LoopCore* core_ = nullptr;
};

}  // namespace evix
