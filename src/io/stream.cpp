#include "io/stream_record.hpp"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>

#include "base/mutation.hpp"
#include "sys/address.hpp"
#include "sys/descriptor.hpp"
#include "sys/error.hpp"
#include "sys/inet.hpp"

namespace evix {
namespace detail {

/**
 * A receive callback that is running, in its place in the record: moving it out and back would
 * cost a tenth of an echo. User code may stop, restart, close or destroy the stream meanwhile; a
 * callback that has to go then goes when its call has returned.
 */
struct ReceiveFrame {
  StreamRecord& stream;
  ReceiveFrame* outer;
  /** The callback is to go, and `replacement`, when there is one, to come. */
  bool replaced = false;
  /** Owned, on the heap: it is rare, and a frame is made for every buffer. */
  TcpStream::ReceiveCallback* replacement = nullptr;
  /** The last replacement, while it is called in a nested run. */
  TcpStream::ReceiveCallback* running = nullptr;
};

namespace {

[[gnu::hot]] void run_receive(Work* work);

ReceiveFrame* frame_of(const StreamRecord& stream) noexcept;

// Only the outermost call lets the callback go: until then it is running.
[[gnu::noinline]] void settle_callback(ReceiveFrame& frame) noexcept {
  StreamRecord& stream = frame.stream;
  if (frame_of(stream) != nullptr) return;
  if (frame.replacement != nullptr) {
    stream.on_receive = std::move(*frame.replacement);
    delete frame.replacement;
  } else if (frame.replaced || !stream.op_queued) {
    stream.on_receive.reset();
  }
}

[[gnu::always_inline]] inline void enter(ReceiveFrame& frame) noexcept {
  frame.stream.core->receive_frame = &frame;
  ++frame.stream.works_queued;
}

[[gnu::always_inline]] inline void leave(ReceiveFrame& frame) noexcept {
  StreamRecord& stream = frame.stream;
  stream.core->receive_frame = frame.outer;
  if (!stream.receiving() || frame.replaced) [[unlikely]]
    settle_callback(frame);
  stream.core->work_taken(stream);
}

[[gnu::noinline, gnu::cold]] void leave_by_exception(ReceiveFrame& frame) noexcept { leave(frame); }

// The outermost call of this stream's callback that is running; null: none.
ReceiveFrame* frame_of(const StreamRecord& stream) noexcept {
  ReceiveFrame* found = nullptr;
  for (ReceiveFrame* frame = stream.core->receive_frame; frame != nullptr; frame = frame->outer) {
    if (&frame->stream == &stream) found = frame;
  }
  return found;
}

/** A callback with the memory that it needs to take its place, which is found beforehand. */
class NextCallback {
 public:
  NextCallback(StreamRecord& stream, TcpStream::ReceiveCallback& callback)
      : stream_(stream), callback_(callback) {
    if (frame_of(stream) != nullptr) boxed_ = std::make_unique<TcpStream::ReceiveCallback>();
  }
  /** @return the one that was there, which must outlive the use of the record. */
  [[nodiscard]] TcpStream::ReceiveCallback put() noexcept {
    TcpStream::ReceiveCallback before = take_receive_callback(stream_);
    if (boxed_ == nullptr) {
      stream_.on_receive = std::move(callback_);
    } else {
      *boxed_ = std::move(callback_);
      frame_of(stream_)->replacement = boxed_.release();
    }
    return before;
  }

 private:
  StreamRecord& stream_;
  TcpStream::ReceiveCallback& callback_;
  std::unique_ptr<TcpStream::ReceiveCallback> boxed_;
};

// A send has been given the reset, after which the kernel says "end" to every receive. An end from
// before the reset would have given the send EPIPE instead.
bool ended_by_reset(const StreamRecord& stream) noexcept {
  return stream.extras != nullptr && stream.extras->send_error == ECONNRESET;
}

Result<Buffer> take_result(StreamRecord& stream) noexcept {
  BufferBlock* block = std::exchange(stream.block, nullptr);
  if (block != nullptr) [[likely]] {
    return Result<Buffer>(std::in_place, block, block->bytes(),
                          static_cast<std::size_t>(stream.result));
  }
  if (stream.result == 0 && ended_by_reset(stream)) stream.result = -ECONNRESET;
  const bool hides_reset = mutated("T059") && stream.result == -ECONNRESET;
  if (stream.result >= 0 || hides_reset) return Result<Buffer>(std::in_place);
  return Failure(make_error(-stream.result, "receive", subject_of(stream)));
}

// Inside a nested run the stream may have been given another callback while the first one is still
// running further out: that one waits in the outer frame and runs from the stack; in a run nested
// further it is called again where it is.
void call_nested(StreamRecord& stream, ReceiveFrame& outermost) {
  if (outermost.replacement == nullptr) {
    Result<Buffer> result = take_result(stream);
    if (outermost.running != nullptr) (*outermost.running)(std::move(result));
    return;
  }
  struct Call {
    StreamRecord& stream;
    ReceiveFrame& outermost;
    std::unique_ptr<TcpStream::ReceiveCallback> callback;
    TcpStream::ReceiveCallback* outer;
    ~Call() {
      outermost.running = outer;
      if (stream.receiving() && outermost.replacement == nullptr) {
        outermost.replacement = callback.release();
      }
    }
  } call{stream, outermost,
         std::unique_ptr<TcpStream::ReceiveCallback>(std::exchange(outermost.replacement, nullptr)),
         outermost.running};
  outermost.running = call.callback.get();
  (*call.callback)(take_result(stream));
}

void call_receive(StreamRecord& stream) {
  ReceiveFrame* outermost = stream.core->receive_frame;
  if (outermost != nullptr) [[unlikely]] {
    outermost = frame_of(stream);
    if (outermost != nullptr && outermost->replaced) {
      call_nested(stream, *outermost);
      return;
    }
  }
  struct Inside : ReceiveFrame {
    explicit Inside(StreamRecord& record) noexcept
        : ReceiveFrame{record, record.core->receive_frame} {
      enter(*this);
    }
    ~Inside() { leave(*this); }
  } const inside(stream);
  if (stream.on_receive) [[likely]] {
    stream.on_receive(take_result(stream));
  } else {
    (void)take_result(stream);
  }
}

void drain(StreamRecord& stream) {
  StreamExtras& extras = *stream.extras;
  const Result<Buffer> dropped = take_result(stream);
  const std::size_t size = dropped ? dropped->size() : 0;
  const bool more = stream.receiving() && size < extras.drain_left_bytes;
  extras.drain_left_bytes -= std::min(extras.drain_left_bytes, size);
  if (more) return;
  // What is still queued goes out first; after_send() closes then, and the time limit at the last.
  if (dropped && !extras.shutdown_done) {
    if (stream.receiving()) stream.core->backend().cancel(stream.receive_op());
    stream.draining = false;
    extras.drained = true;
    return;
  }
  close_stream(stream, CloseMode::told);
}

// The operation was cancelled with the stream: its end comes from the loop's queue.
void run_queued_receive(StreamRecord& stream) {
  LoopCore& core = *stream.core;
  const WorkTaken taken(stream);
  stream.op_queued = false;
  if (stream.released || core.discarding()) {
    (void)take_receive_callback(stream);
  } else {
    call_receive(stream);
  }
}

void restart_receive_timer(StreamRecord& stream) noexcept {
  const auto& timer = stream.extras->receive_timer;
  if (timer == nullptr) return;
  if (stream.receiving()) {
    stream.core->start_timer(*timer, timer->timeout_ns);
  } else {
    stream.core->stop_timer(*timer);
  }
}

// Whatever is not a plain buffer for a plain stream.
[[gnu::noinline]] void run_other_receive(StreamRecord& stream) {
  if (stream.op_queued) return run_queued_receive(stream);
  if (stream.draining) return drain(stream);
  if (stream.extras != nullptr) restart_receive_timer(stream);
  if (!stream.receiving()) update_active(stream);
  call_receive(stream);
}

void run_receive(Work* work) {
  auto& stream = static_cast<StreamRecord&>(*static_cast<ReceiveOp*>(work));
  LoopCore& core = *stream.core;
  const bool plain = stream.receiving() && stream.extras == nullptr &&
                     core.receive_frame == nullptr && stream.block != nullptr;
  if (!plain) [[unlikely]]
    return run_other_receive(stream);
  ReceiveFrame frame{stream, nullptr};
  enter(frame);
  BufferBlock* block = std::exchange(stream.block, nullptr);
  // Neither is left to a destructor: what an exception needs then stays out of the registers, and
  // giving the block back needs no call.
  union Place {
    Result<Buffer> buffer;
    explicit Place(BufferBlock* bytes, std::size_t size) noexcept
        : buffer(std::in_place, bytes, bytes->bytes(), size) {}
    ~Place() {}
  } place(block, static_cast<std::size_t>(stream.result));
  try {
    stream.on_receive.call_in_place(std::move(place.buffer));
  } catch (...) {
    std::destroy_at(&place.buffer);
    leave_by_exception(frame);
    throw;
  }
  if (place.buffer) [[likely]] {
    if (BufferBlock* left = place.buffer->take_block()) [[likely]]
      BufferPool::release(left);
  }
  leave(frame);
}

void run_receive_into(Work* work) {
  auto& request = static_cast<ReceiveIntoRequest&>(*static_cast<ReceiveIntoOp*>(work));
  StreamRecord& stream = *request.stream;
  const std::unique_ptr<ReceiveIntoRequest> owned = std::move(stream.extras->receiving_into);
  if (!request.queued) {
    stop_stream_timer(stream, stream.extras->receive_timer);
    update_active(stream);
    ++stream.works_queued;
  }
  const WorkTaken taken(stream);
  if (stream.released || stream.core->discarding()) return;
  if (request.result == 0 && ended_by_reset(stream)) request.result = -ECONNRESET;
  if (request.result >= 0) {
    owned->callback(static_cast<std::size_t>(request.result));
  } else {
    owned->callback(Failure(make_error(-request.result, "receive", subject_of(stream))));
  }
}

void run_receive_timeout(TimerWork* work) {
  StreamRecord& stream = *static_cast<StreamTimer*>(work)->stream;
  LoopCore& core = *stream.core;
  if (stream.receiving()) {
    core.backend().cancel(stream.receive_op());
    stream.result = -ETIMEDOUT;
    run_receive(&stream.receive_op());
  } else if (stream.extras->receiving_into != nullptr) {
    ReceiveIntoRequest& request = *stream.extras->receiving_into;
    core.backend().cancel(request);
    if (request.result == -ECANCELED) request.result = -ETIMEDOUT;
    run_receive_into(&request);
  }
}

void run_notice(Work* work) {
  const std::unique_ptr<Notice> notice(static_cast<Notice*>(work));
  StreamRecord& stream = *notice->stream;
  LoopCore& core = *stream.core;
  const WorkTaken taken(stream);
  if (core.discarding() || stream.released) return;
  if (notice->closed) {
    notice->closed();
  } else if (notice->error == 0) {
    notice->done(Result<void>());
  } else {
    notice->done(Failure(make_error(notice->error, notice->operation)));
  }
}

}  // namespace

// ---- Record ----------------------------------------------------------------------------------

StreamRecord::StreamRecord() noexcept : HandleRecord(HandleKind::stream) {
  run = run_receive;
  source = &socket;
}

ReceiveIntoRequest::ReceiveIntoRequest() noexcept { run = run_receive_into; }

void StreamRecord::shut() noexcept {
  close_stream(*this, CloseMode::silent);
  (void)take_receive_callback(*this);
}

void StreamRecord::describe(HandleInfo& info) const {
  info.handle = socket.handle;
  const char* separator = "";
  const auto add = [&](bool waits, const char* what) {
    if (!waits) return;
    info.waits_for += separator;
    info.waits_for += what;
    separator = ", ";
  };
  const bool into = extras != nullptr && extras->receiving_into != nullptr;
  const bool connecting = extras != nullptr && extras->connecting != nullptr;
  add(connecting, "connect");
  add(receiving() || into, draining ? "the peer's end" : "receive");
  add(!connecting && socket.out != nullptr, "send");
}

StreamExtras::~StreamExtras() {
  while (Work* notice = graceful_notices.pop()) delete static_cast<Notice*>(notice);
}

StreamExtras& extras_of(StreamRecord& stream) {
  if (stream.extras == nullptr) {
    std::unique_ptr<StreamExtras>& spare = send_pool(*stream.core).spare_extras;
    stream.extras = spare != nullptr ? std::move(spare) : std::make_unique<StreamExtras>();
    stream.extras->mark_work.stream = &stream;
  }
  return *stream.extras;
}

StreamRecord* make_stream(LoopCore& core, native_handle handle, bool duplicable) {
  auto* stream = core.make_record<StreamRecord>(HandleKind::stream);
  stream->socket.handle = handle;
  stream->socket.duplicable = duplicable;
  if (core.backend().attach(stream->socket) < 0) {
    stream->socket.handle = no_handle;
    core.release_record(*stream);
    throw std::bad_alloc();
  }
  stream->connected = true;
  return stream;
}

void update_active(StreamRecord& stream) noexcept {
  const bool waits = stream.socket.in != nullptr || stream.socket.out != nullptr;
  stream.core->set_active(stream, waits);
}

void queue_notice(StreamRecord& stream, std::unique_ptr<Notice> notice, int error) noexcept {
  notice->run = run_notice;
  notice->stream = &stream;
  notice->error = error;
  stream.core->queue_finished(stream, *notice.release());
}

void queue_done(StreamRecord& stream, TcpStream::DoneCallback&& callback, int error,
                const char* operation) {
  if (!callback) return;
  auto notice = std::make_unique<Notice>();
  notice->done = std::move(callback);
  notice->operation = operation;
  queue_notice(stream, std::move(notice), error);
}

void make_stream_timer(StreamRecord& stream, std::unique_ptr<StreamTimer>& timer,
                       void (*run)(TimerWork*), std::int64_t timeout_ns) {
  if (timer == nullptr) {
    stream.core->reserve_timer();
    timer = std::make_unique<StreamTimer>();
    timer->stream = &stream;
    timer->run = run;
  }
  timer->timeout_ns = timeout_ns;
}

void start_stream_timer(StreamRecord& stream, const std::unique_ptr<StreamTimer>& timer) noexcept {
  if (timer != nullptr) stream.core->start_timer(*timer, timer->timeout_ns);
}

void stop_stream_timer(StreamRecord& stream, const std::unique_ptr<StreamTimer>& timer) noexcept {
  if (timer != nullptr) stream.core->stop_timer(*timer);
}

TcpStream::ReceiveCallback take_receive_callback(StreamRecord& stream) noexcept {
  ReceiveFrame* frame = frame_of(stream);
  if (frame == nullptr) return std::exchange(stream.on_receive, {});
  frame->replaced = true;
  const std::unique_ptr<TcpStream::ReceiveCallback> replacement(
      std::exchange(frame->replacement, nullptr));
  return replacement != nullptr ? std::move(*replacement) : TcpStream::ReceiveCallback();
}

// Returns the callback, which must outlive the use of the record.
TcpStream::ReceiveCallback stop_receiving(StreamRecord& stream) noexcept {
  if (!stream.receiving() || stream.draining) return {};
  stream.core->backend().cancel(stream.receive_op());
  if (stream.extras != nullptr) stop_stream_timer(stream, stream.extras->receive_timer);
  update_active(stream);
  return take_receive_callback(stream);
}

// ---- Close -----------------------------------------------------------------------------------

namespace {

void end_receive(StreamRecord& stream, CloseMode mode) noexcept {
  if (!stream.receiving()) return;
  const bool user = !stream.draining;
  stream.core->backend().cancel(stream.receive_op());
  stream.draining = false;
  if (mode == CloseMode::silent || !user) return;
  stream.result = -ECANCELED;
  stream.op_queued = true;
  stream.core->queue_finished(stream, stream.receive_op());
}

void end_receive_into(StreamRecord& stream, CloseMode mode) noexcept {
  std::unique_ptr<ReceiveIntoRequest>& request = stream.extras->receiving_into;
  if (request == nullptr || request->queued) return;
  // Success beats cancel: what had arrived is told.
  if (request->in_flight() && !mutated("T007")) stream.core->backend().cancel(*request);
  if (mode == CloseMode::silent) {
    request.reset();
    return;
  }
  request->queued = true;
  stream.core->queue_finished(stream, *request);
}

void end_connect(StreamRecord& stream, CloseMode mode) noexcept {
  std::unique_ptr<ConnectRequest>& request = stream.extras->connecting;
  if (request == nullptr || request->queued) return;
  stream.core->backend().cancel(*request);
  if (mode == CloseMode::silent) {
    request.reset();
    return;
  }
  request->result = -ECANCELED;
  request->queued = true;
  stream.core->queue_finished(stream, *request);
}

void end_extras(StreamRecord& stream, CloseMode mode) noexcept {
  StreamExtras& extras = *stream.extras;
  for (const auto* timer :
       {&extras.receive_timer, &extras.send_timer, &extras.connect_timer, &extras.close_timer}) {
    stop_stream_timer(stream, *timer);
  }
  end_connect(stream, mode);
  end_receive_into(stream, mode);
  fail_sends(stream, ECANCELED, mode == CloseMode::silent);
  if (extras.shutdown_notice != nullptr) {
    std::unique_ptr<Notice> notice = std::move(extras.shutdown_notice);
    if (mode == CloseMode::told) queue_notice(stream, std::move(notice), ECANCELED);
  }
  while (Work* work = extras.graceful_notices.pop()) {
    std::unique_ptr<Notice> notice(static_cast<Notice*>(work));
    if (mode == CloseMode::told) queue_notice(stream, std::move(notice), 0);
  }
  if (mode == CloseMode::silent) extras.on_mark.reset();
}

}  // namespace

void close_stream(StreamRecord& stream, CloseMode mode) noexcept {
  if (stream.core->dead()) return;
  end_receive(stream, mode);
  if (stream.extras != nullptr) end_extras(stream, mode);
  const bool first = !stream.closed;
  stream.closed = true;
  stream.connected = false;
  if (stream.opened()) {
    LoopCore& core = *stream.core;
    core.backend().detach(stream.socket);
    core.calls().close(std::exchange(stream.socket.handle, no_handle));
    if (stream.accepted) core.connection_closed();
    stream.accepted = false;
    core.descriptor_closed();
  }
  if (first) update_active(stream);
}

}  // namespace detail

using detail::StreamRecord;

TcpStream::TcpStream(Loop& loop)
    : Handle(loop.core().make_record<StreamRecord>(HandleKind::stream)) {}

TcpStream::TcpStream(StreamRecord* record) noexcept : Handle(record) {}

void TcpStream::close() noexcept {
  StreamRecord& stream = detail::stream_of(*this);
  if (!stream.closed) detail::close_stream(stream, detail::CloseMode::told);
}

void TcpStream::close(Callback<void()> callback) {
  StreamRecord& stream = detail::stream_of(*this);
  if (stream.core->dead()) return;
  if (detail::mutated("T015") && stream.closed) stream.core->add_reference();
  auto notice = callback ? std::make_unique<detail::Notice>() : nullptr;
  if (!stream.closed) detail::close_stream(stream, detail::CloseMode::told);
  if (notice == nullptr) return;
  notice->closed = std::move(callback);
  detail::queue_notice(stream, std::move(notice), 0);
}

void TcpStream::abort() noexcept {
  StreamRecord& stream = detail::stream_of(*this);
  if (stream.opened() && !stream.core->forked()) {
    detail::reset_when_closed(stream.core->calls(), stream.socket.handle);
  }
  close();
}

// ---- Receive ---------------------------------------------------------------------------------

namespace {

// Why no receive can start now; 0 when it can.
int receive_refusal(StreamRecord& stream) noexcept {
  if (stream.closed || stream.core->dead()) return static_cast<int>(Errc::closed);
  if (stream.core->forked()) return static_cast<int>(Errc::forked);
  if (!stream.connected) return static_cast<int>(Errc::not_connected);
  if (detail::mutated("T058") && stream.extras && stream.extras->send_error) return EPIPE;
  if (stream.socket.in != nullptr || stream.op_queued) return static_cast<int>(Errc::busy);
  return 0;
}

template <class ResultCallback>
void refuse_receive(StreamRecord& stream, ResultCallback callback, int error) {
  if (stream.core->dead()) return;
  detail::queue_done(
      stream,
      [told = std::move(callback)](Result<void> done) mutable { told(Failure(done.error())); },
      error, "receive");
}

void start_receive(StreamRecord& stream, bool multishot, TcpStream::ReceiveCallback&& callback,
                   std::source_location location) {
  if (!callback) callback = [](const Result<Buffer>&) {};
  if (const int error = receive_refusal(stream); error != 0) {
    refuse_receive(stream, std::move(callback), error);
    return;
  }
  detail::NextCallback next(stream, callback);
  stream.location = location;
  stream.multishot = multishot;
  if (stream.core->backend().start(stream.receive_op()) == detail::Started::done) {
    refuse_receive(stream, std::move(callback), -stream.result);
    return;
  }
  const TcpStream::ReceiveCallback before = next.put();
  if (stream.extras != nullptr) {
    detail::start_stream_timer(stream, stream.extras->receive_timer);
  }
  stream.core->set_active(stream, true);
}

}  // namespace

void TcpStream::receive(ReceiveCallback callback, std::source_location location) {
  start_receive(detail::stream_of(*this), false, std::move(callback), location);
}

void TcpStream::receive_start(ReceiveCallback callback, std::source_location location) {
  StreamRecord& stream = detail::stream_of(*this);
  const ReceiveCallback before =
      stream.core->dead() ? ReceiveCallback() : detail::stop_receiving(stream);
  start_receive(stream, true, std::move(callback), location);
}

void TcpStream::receive_stop() noexcept {
  StreamRecord& stream = detail::stream_of(*this);
  if (!stream.core->dead()) (void)detail::stop_receiving(stream);
}

void TcpStream::receive_into(std::span<std::byte> bytes, CountCallback callback,
                             std::source_location location) {
  StreamRecord& stream = detail::stream_of(*this);
  if (stream.core->dead()) return;
  if (!callback) callback = [](const Result<std::size_t>&) {};
  int error = receive_refusal(stream);
  if (error == 0 && bytes.empty()) error = EINVAL;
  if (error == 0) {
    detail::StreamExtras& extras = detail::extras_of(stream);
    auto request = std::make_unique<detail::ReceiveIntoRequest>();
    request->stream = &stream;
    request->source = &stream.socket;
    request->bytes = bytes.data();
    request->size = bytes.size();
    if (stream.core->backend().start(*request) == detail::Started::in_flight) {
      request->callback = std::move(callback);
      stream.location = location;
      extras.receiving_into = std::move(request);
      detail::start_stream_timer(stream, extras.receive_timer);
      detail::update_active(stream);
      return;
    }
    error = -request->result;
  }
  refuse_receive(stream, std::move(callback), error);
}

void TcpStream::set_receive_timeout(Duration timeout) {
  StreamRecord& stream = detail::stream_of(*this);
  if (stream.core->dead()) return;
  auto& timer = detail::extras_of(stream).receive_timer;
  if (timeout == forever) {
    detail::stop_stream_timer(stream, timer);
    timer.reset();
    return;
  }
  detail::make_stream_timer(stream, timer, detail::run_receive_timeout, timeout.count());
  if (stream.socket.in != nullptr) detail::start_stream_timer(stream, timer);
}

native_handle TcpStream::native() const noexcept { return detail::stream_of(*this).socket.handle; }

bool TcpStream::connected() const noexcept { return detail::stream_of(*this).connected; }

bool TcpStream::closed() const noexcept {
  const StreamRecord& stream = detail::stream_of(*this);
  return stream.closed || stream.core->dead();
}

}  // namespace evix
