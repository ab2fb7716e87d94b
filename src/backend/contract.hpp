#pragma once

#include <evix/backend.hpp>
#include <evix/native_handle.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/buffer_pool.hpp"
#include "op/op.hpp"

/** @file
 * Contract of a backend: operations in, finished operations out.
 *
 * A backend never runs user code, allocates nothing per operation, reads the clock only in now()
 * and for what closed streams have still to send, and is used by one thread at a time.
 *
 * - attach(source) makes a descriptor known; detach(source) forgets it, in the kernel before it
 *   returns, so that the number may be closed and reused right after. No operation may be in
 *   flight at detach: cancel them first. Nothing of a detached source is ever given by next().
 * - start(op) either finishes at once (`done`: the result is in the op, next() will not give it)
 *   or takes it in flight. It may try the system call first.
 * - cancel(op) is synchronous: when it returns, the op is final and unknown to the backend, nothing
 *   can write to its memory any more, and its result is -ECANCELED or the success that it had.
 *   A backend whose kernel cancels asynchronously reaps until it is so; what else finishes
 *   meanwhile stays queued for next().
 * - try_send is for bytes that nobody keeps: what the kernel takes now, or a negative errno;
 *   -EAGAIN where the backend would have to wait, -EINTR to be tried again. Between wait() and
 *   end_run() a backend may copy a few of them and hand them over with the next wait() or
 *   end_run(): they go out before anything that is sent later, a failure is told by the next
 *   operation of the source, and is_busy(), which may hand them over, is true until the
 *   kernel has them all. Those of a source that is detached are sent still; where that is
 *   impossible, the connection is reset.
 * - settle(source) is to be called before the caller itself ends what is sent (shutdown(2)).
 * - end_run() follows the last next() of an outermost run.
 * - wait(timeout_ns) hands everything asked for to the kernel and waits until something is ready,
 *   at most `timeout_ns` (below 0: no limit; 0: only looks). 0; -EINTR when a signal ended it
 *   early; or the negative errno when waiting has become impossible.
 * - next() gives one finished op at a time, null when there is none for this turn. A multishot op
 *   stays in flight after it. Each source gets a bounded number a turn, in rotation; when
 *   something is left over, has_leftovers() is true and the next wait must not block.
 * - An op given by next() may be freed, restarted or cancelled by the caller at once, and so may
 *   any other op and source, before next() is called again.
 *
 * To add a backend: write `NAME.cpp` here with its make function below, add it to choose.cpp,
 * and run the suite tests/backend with it.
 */
namespace evix::detail {

class Calls;
class PollDriver;

enum class Started : std::uint8_t { done, in_flight };

class Backend {
 public:
  virtual ~Backend() = default;

  virtual BackendKind kind() const noexcept = 0;
  /** The loop's clock, in nanoseconds. */
  virtual std::int64_t now() noexcept = 0;

  /** 0, or the negative errno of a descriptor that cannot be used. */
  virtual int attach(Source& source) = 0;
  virtual void detach(Source& source) noexcept = 0;

  virtual Started start(Op& op) = 0;
  virtual void cancel(Op& op) noexcept = 0;
  virtual std::int64_t try_send(Source& source, std::span<const std::byte> bytes) noexcept = 0;
  /** 0: the kernel has all that try_send took. -EAGAIN: not yet; a send that ends comes after it.
   */
  virtual int settle(Source&) noexcept { return 0; }
  /** A watch op in flight asks for something else. 0 or the negative errno. */
  virtual int change_interest(WatchOp& op, Ready interest) = 0;

  virtual int wait(std::int64_t timeout_ns) = 0;
  virtual Op* next() = 0;
  virtual bool has_leftovers() const noexcept = 0;
  /** Bytes that try_send took are not all with the kernel yet: the loop goes on. */
  virtual bool is_busy() noexcept { return false; }
  virtual void end_run() noexcept {}

  /** Makes wait() return when `event`, an eventfd, is written to, and reads it. 0 or -errno. */
  virtual int watch_wake(native_handle event) = 0;
  /** In a child after fork(2): new kernel objects, everything registered anew. 0 or -errno. */
  virtual int after_fork() = 0;
  /** The same in the process that made them, where everything in flight goes on. 0 or -errno. */
  virtual int rebuild() = 0;

  virtual BufferPool& buffers() noexcept = 0;
  /** Optional calls that this kernel refuses, and what is done instead. */
  virtual std::vector<std::string> fallbacks() const = 0;
};

/** Turns any poll driver into a backend: readiness.cpp. Takes over the driver; may keep `calls`. */
std::unique_ptr<Backend> make_readiness_backend(std::unique_ptr<PollDriver> driver, Calls& calls,
                                                BufferPool& pool);

/**
 * The backend over io_uring(7): io_uring.cpp. Null, with the negative errno in `error` and where it
 * is known the reason in `why`, when this kernel or its rules do not allow one.
 */
std::unique_ptr<Backend> make_io_uring_backend(Calls& calls, BufferPool& pool, int& error,
                                               std::string& why);

}  // namespace evix::detail
