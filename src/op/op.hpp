#pragma once

#include <evix/address.hpp>
#include <evix/native_handle.hpp>
#include <evix/ready.hpp>

#include <cstddef>
#include <cstdint>

#include "base/buffer_pool.hpp"
#include "base/work.hpp"

/** @file
 * The operation record and the record of a descriptor: what the loop's handles hand to a backend.
 *
 * Who owns an operation: the handle that fills it. From start() until the operation is final the
 * backend may touch it and everything it points to, so neither may be freed or reused before.
 *
 * States, and who changes them:
 *
 *     idle ──start──► in_flight ──next()──► idle          one result, final
 *      │ ▲               │  ▲ │
 *      │ │               │  └─┴─next()                    multishot: a result, more to come
 *      │ └───cancel()────┘                                final, synchronous; never given by next()
 *      └──start() gives done──► idle                      final at once; never given by next()
 *
 * idle: the handle's. in_flight: the backend's; cancel() is the only call allowed. After cancel()
 * `result` is -ECANCELED, or the success that had happened before ("success beats cancel").
 *
 * To add a kind: OpKind, its record here, the switch of each backend, a handle in src/io, and its
 * tests in tests/backend.
 */
namespace evix::detail {

enum class OpKind : std::uint8_t { watch, accept, connect, receive, receive_into, send };
enum class OpState : std::uint8_t { idle, in_flight };

struct Op;

enum class SourceKind : std::uint8_t {
  stream,    ///< owned by the library: edge-triggered where there is such a thing, try first
  listener,  ///< owned by the library: level-triggered
  watched,   ///< somebody else's descriptor: level-triggered, watch operations only
  wake,      ///< the loop's own wake descriptor
};

/** Record of one descriptor at a backend. A handle embeds it, or the backend owns it (watched). */
struct Source {
  native_handle handle = no_handle;
  InterestId interest;             ///< generation 0: not registered
  Ready ready = Ready::none;       ///< known and not yet used up
  Ready registered = Ready::none;  ///< what the poller was last asked for
  SourceKind kind = SourceKind::stream;
  bool queued : 1 = false;      ///< in the backend's ready queue, at queue_position
  bool duplicable : 1 = false;  ///< others may hold the descriptor: remove, not forget
  bool plain : 1 = false;       ///< the backend's: a multishot leased receive waits, nothing else
  bool splits : 1 = false;      ///< a short read does not show that nothing is left: not TCP
  bool lingers : 1 = false;     ///< the backend's: sends the rest of a stream that is closed
  std::uint8_t turn = 0;        ///< turn that `visits` counts for
  std::uint8_t visits = 0;      ///< results that this source gave in that turn
  std::uint32_t queue_position = 0;
  Op* in = nullptr;   ///< operations that wait to read (watched: all)
  Op* out = nullptr;  ///< operations that wait to write, first in first out
};
static_assert(sizeof(Source) == 40, "counts in the memory of an idle connection");

struct Op : Work {
  Source* source = nullptr;
  std::int32_t result = 0;  ///< the count or descriptor, or the negative errno
  OpKind kind;
  OpState state = OpState::idle;
  bool multishot = false;  ///< stays in flight after a result of 0 or more

  explicit Op(OpKind op_kind) noexcept : kind(op_kind) {}
  bool in_flight() const noexcept { return state == OpState::in_flight; }
};

/** Results are buffers of the pool: `result` bytes in `block`, which then is the handle's. */
struct ReceiveOp : Op {
  BufferBlock* block = nullptr;
  ReceiveOp() noexcept : Op(OpKind::receive) {}
};

/** One transfer into the caller's memory; `result` bytes. */
struct ReceiveIntoOp : Op {
  std::byte* bytes = nullptr;
  std::size_t size = 0;
  ReceiveIntoOp() noexcept : Op(OpKind::receive_into) {}
};

/** All of the bytes; `done` counts what the kernel took, also when it fails or is cancelled. */
struct SendOp : Op {
  const std::byte* bytes = nullptr;
  std::size_t size = 0;
  std::size_t done = 0;
  SendOp* next_send = nullptr;  ///< in Source::out
  SendOp* last_send = nullptr;  ///< of the first in Source::out: the last one
  SendOp() noexcept : Op(OpKind::send) {}
};

/** `result` is a non-blocking, close-on-exec descriptor. */
struct AcceptOp : Op {
  /** There may be no place for the next one: none is to be taken before this one was given. */
  bool one_at_a_time = false;
  AcceptOp() noexcept : Op(OpKind::accept) {}
};

/** `result` 0: connected. */
struct ConnectOp : Op {
  Address address;
  ConnectOp() noexcept : Op(OpKind::connect) {}
};

/** `ready` has the bits; `result` 0. */
struct WatchOp : Op {
  Ready interest = Ready::none;
  Ready ready = Ready::none;
  Ready pending = Ready::none;  ///< bits of this turn, not yet given
  WatchOp* previous_watch = nullptr;
  WatchOp* next_watch = nullptr;
  native_handle handle = no_handle;
  WatchOp() noexcept : Op(OpKind::watch) {}
};

}  // namespace evix::detail
