#pragma once

#include <evix/tcp.hpp>

#include <cstdint>
#include <memory>
#include <vector>

#include "loop/core.hpp"
#include "op/op.hpp"

/** @file
 * What is behind evix::TcpStream.
 *
 * The record holds what an idle connection needs; all else is in StreamExtras, made when it is
 * first needed. A request is one queued operation with a callback of its own; it belongs to its
 * stream while the backend has it, and to the loop's queue once it is finished.
 *
 * Whatever is accepted can end without memory: all that an end needs is made before the operation
 * is started, and what starts it throws std::bad_alloc with nothing done.
 */
namespace evix::detail {

struct StreamRecord;
struct SendRequest;

/** A send on its way. */
struct SendRequest : SendOp {
  StreamRecord* stream = nullptr;
  TcpStream::DoneCallback callback;
  Buffer buffer;                  ///< when the request owns the bytes as a lease
  std::vector<std::byte> copied;  ///< when it owns a copy
  std::uint32_t slot = 0;         ///< of the pool
  bool queued = false;            ///< in the loop's queue, not in the stream's
  SendRequest() noexcept;
};

struct ConnectRequest : ConnectOp {
  StreamRecord* stream = nullptr;
  TcpStream::DoneCallback callback;
  bool refuse_self_connect = true;
  bool queued = false;  ///< final, in the loop's queue
  ConnectRequest() noexcept;
};

struct ReceiveIntoRequest : ReceiveIntoOp {
  StreamRecord* stream = nullptr;
  TcpStream::CountCallback callback;
  bool queued = false;  ///< final, in the loop's queue
  ReceiveIntoRequest() noexcept;
};

/** A finished operation that has nothing but a callback: shutdown, close, refused starts. */
struct Notice : Work {
  StreamRecord* stream = nullptr;
  TcpStream::DoneCallback done;
  Callback<void()> closed;
  int error = 0;
  const char* operation = "";
};

struct StreamTimer : TimerWork {
  StreamRecord* stream = nullptr;
  std::int64_t timeout_ns = never_ns;
};

struct MarkWork : Work {
  StreamRecord* stream = nullptr;
};

struct StreamExtras {
  StreamExtras() noexcept = default;
  StreamExtras(const StreamExtras&) = delete;
  StreamExtras& operator=(const StreamExtras&) = delete;
  ~StreamExtras();

  std::size_t queued_bytes = 0;  ///< sizes of the queued sends
  int send_error = 0;            ///< latched: no send after it
  bool shutdown_wanted = false;  ///< after the queued sends
  bool shutdown_done = false;
  bool full = false;       ///< at the high mark, not yet back at the low one
  bool told_full = false;  ///< the mark that was told last
  bool full_due = false;   ///< to be told; with both, the one that was not told last is first
  bool drained_due = false;
  bool marks_queued = false;
  bool mark_running = false;  ///< on_mark is out, and comes back unless it was replaced
  WaterMarks marks;
  TcpStream::WaterMarkCallback on_mark;
  MarkWork mark_work;

  std::unique_ptr<ConnectRequest> connecting;
  std::unique_ptr<ReceiveIntoRequest> receiving_into;
  std::unique_ptr<Notice> shutdown_notice;
  WorkQueue graceful_notices;  ///< owned
  std::size_t drain_left_bytes = 0;
  bool drained = false;  ///< the peer's end or the limit came before all was sent
  bool graceful = false;

  std::unique_ptr<StreamTimer> receive_timer;
  std::unique_ptr<StreamTimer> send_timer;
  std::size_t send_timer_done = 0;  ///< of the first send, when the timer was started
  std::unique_ptr<StreamTimer> connect_timer;
  std::unique_ptr<StreamTimer> close_timer;
};

struct StreamRecord : HandleRecord, ReceiveOp {
  Source socket;
  TcpStream::ReceiveCallback on_receive;
  std::unique_ptr<StreamExtras> extras;

  using HandleRecord::kind;
  StreamRecord() noexcept;

  ReceiveOp& receive_op() noexcept { return *this; }
  bool receiving() const noexcept { return in_flight(); }
  bool opened() const noexcept { return socket.handle != no_handle; }

  void shut() noexcept;
  void describe(HandleInfo& info) const;
};
static_assert(sizeof(StreamRecord) == 144, "counts in the memory of an idle connection");

/** What all streams of a loop share. */
struct SendPool : LoopCore::Extension {
  Slab<SendRequest> requests;
  /** For a stream that turns out to need them when its send is on its way already. */
  std::unique_ptr<StreamExtras> spare_extras;
};

inline SendPool& send_pool(LoopCore& core) {
  if (core.io == nullptr) core.io = std::make_unique<SendPool>();
  return static_cast<SendPool&>(*core.io);
}
StreamExtras& extras_of(StreamRecord& stream);
inline StreamRecord& stream_of(const TcpStream& stream) noexcept {
  check(stream.record() != nullptr, "an empty stream was used");
  auto& record = static_cast<StreamRecord&>(*stream.record());
  record.core->check_usable("a stream was used by a thread that does not run its loop");
  return record;
}
/** For messages: the descriptor, nothing once it is closed. */
inline Subject subject_of(const StreamRecord& stream) noexcept {
  return stream.opened() ? Subject::descriptor(stream.socket.handle) : Subject();
}
/**
 * A connected descriptor becomes a stream, which owns it; when it throws std::bad_alloc the caller
 * still does. @param duplicable others may hold the descriptor too.
 */
StreamRecord* make_stream(LoopCore& core, native_handle handle, bool duplicable);
void update_active(StreamRecord& stream) noexcept;
/** The receive callback that is set; one that is running goes when its call has returned. */
TcpStream::ReceiveCallback take_receive_callback(StreamRecord& stream) noexcept;
/** Ends the user's receive, if there is one, without a call. @return its callback. */
TcpStream::ReceiveCallback stop_receiving(StreamRecord& stream) noexcept;

/** Queues a callback with `error` (0: success, else errno or Errc) for the completion phase. */
void queue_notice(StreamRecord& stream, std::unique_ptr<Notice> notice, int error) noexcept;
void queue_done(StreamRecord& stream, TcpStream::DoneCallback&& callback, int error,
                const char* operation);

void make_stream_timer(StreamRecord& stream, std::unique_ptr<StreamTimer>& timer,
                       void (*run)(TimerWork*), std::int64_t timeout_ns);
void start_stream_timer(StreamRecord& stream, const std::unique_ptr<StreamTimer>& timer) noexcept;
void stop_stream_timer(StreamRecord& stream, const std::unique_ptr<StreamTimer>& timer) noexcept;

/** Every queued send fails with `error`, in order; with `silent` no callback runs. */
void fail_sends(StreamRecord& stream, int error, bool silent) noexcept;
/** A send left the queue: does what waited for the queue. */
void after_send(StreamRecord& stream) noexcept;

enum class CloseMode : std::uint8_t {
  silent,  ///< the handle is gone: no callback runs
  told,    ///< every operation ends with operation_canceled
};
void close_stream(StreamRecord& stream, CloseMode mode) noexcept;

}  // namespace evix::detail
