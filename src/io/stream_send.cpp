#include <algorithm>
#include <cerrno>
#include <new>

#include "base/mutation.hpp"
#include "io/stream_record.hpp"
#include "sys/error.hpp"
#include "sys/inet.hpp"

namespace evix {
namespace detail {
namespace {

// A queued copy starts with room for what follows, so that a producer of small pieces makes one
// request for many of them.
constexpr std::size_t copy_capacity = 16 * 1024;

void run_send(Work* work);
void run_marks(Work* work);
void queue_request(SendRequest& request, int result) noexcept;

std::size_t queued_bytes(const StreamRecord& stream) noexcept {
  if (stream.extras == nullptr) return 0;
  const bool sending = stream.socket.out != nullptr && stream.socket.out->kind == OpKind::send;
  const std::size_t done = sending ? static_cast<SendOp*>(stream.socket.out)->done : 0;
  return stream.extras->queued_bytes - done;
}

void queue_marks(StreamRecord& stream) noexcept {
  StreamExtras& extras = *stream.extras;
  if (extras.marks_queued || (!extras.on_mark && !extras.mark_running)) return;
  extras.marks_queued = true;
  extras.mark_work.run = run_marks;
  extras.mark_work.next = nullptr;
  stream.core->queue_finished(stream, extras.mark_work);
}

// The queue has passed a mark. What has not been told by then merges with it, so that the last mark
// told is the state of the queue.
void note_mark(StreamRecord& stream, bool full) noexcept {
  StreamExtras& extras = *stream.extras;
  extras.full = full;
  (full ? extras.full_due : extras.drained_due) = true;
  if (full != extras.told_full) (full ? extras.drained_due : extras.full_due) = false;
  queue_marks(stream);
}

// Bytes have joined the queue.
void note_queued(StreamRecord& stream, std::size_t size) noexcept {
  StreamExtras& extras = *stream.extras;
  extras.queued_bytes += size;
  stream.core->count_send_queue(static_cast<std::int64_t>(size));
  if (mutated("T066")) return;
  if (!extras.full && queued_bytes(stream) >= extras.marks.high_bytes) note_mark(stream, true);
}

// Bytes have left it.
void note_sent(StreamRecord& stream, std::size_t size) noexcept {
  StreamExtras& extras = *stream.extras;
  extras.queued_bytes -= size;
  stream.core->count_send_queue(-static_cast<std::int64_t>(size));
  if (extras.full && queued_bytes(stream) <= extras.marks.low_bytes) note_mark(stream, false);
}

// The callback may replace itself, or destroy the handle: it is moved out while it runs.
void tell_mark(StreamRecord& stream, WaterMark mark) {
  StreamExtras& extras = *stream.extras;
  struct Putting {
    StreamRecord& stream;
    TcpStream::WaterMarkCallback callback;
    ~Putting() {
      StreamExtras& after = *stream.extras;
      if (!stream.released && after.mark_running) after.on_mark = std::move(callback);
      after.mark_running = false;
      if (after.full_due || after.drained_due) queue_marks(stream);  // from a nested run
    }
  } running{stream, std::move(extras.on_mark)};
  extras.mark_running = true;
  running.callback(mark);
}

void run_marks(Work* work) {
  StreamRecord& stream = *static_cast<MarkWork*>(work)->stream;
  StreamExtras* extras = stream.extras.get();
  const WorkTaken taken(stream);
  extras->marks_queued = false;
  if (extras->mark_running) return;
  for (int marks = 0; marks < 2; ++marks) {
    if (stream.released || stream.core->dead() || !extras->on_mark) return;
    bool& due = extras->told_full ? extras->drained_due : extras->full_due;
    if (!std::exchange(due, false)) return;
    extras->told_full = !extras->told_full;
    tell_mark(stream, extras->told_full ? WaterMark::full : WaterMark::drained);
  }
}

// The callback of a finished send. The request dies here.
void finish_request(SendRequest& request, bool silent) {
  StreamRecord& stream = *request.stream;
  LoopCore& core = *stream.core;
  TcpStream::DoneCallback callback = std::move(request.callback);
  const int result = request.result;
  send_pool(core).requests.free(&request);
  if (silent || !callback) return;
  if (result == 0) {
    callback(Result<void>());
  } else {
    callback(Failure(make_error(-result, "send", subject_of(stream))));
  }
}

// From the backend (it was in the stream's queue) or from the loop's queue (finished at once, or
// failed with the stream).
void run_send(Work* work) {
  auto& request = static_cast<SendRequest&>(*static_cast<SendOp*>(work));
  StreamRecord& stream = *request.stream;
  if (request.queued) {
    const WorkTaken taken(stream);
    finish_request(request, stream.released || stream.core->discarding());
    return;
  }
  // Callbacks of sends that were done at once are due first, and so are the ones that follow.
  const bool others_due = stream.works_queued != 0;
  ++stream.works_queued;
  const WorkTaken taken(stream);
  const int result = request.result;
  const std::size_t size = request.size;
  if (!mutated("T065")) note_sent(stream, size);
  if (others_due) queue_request(request, result);
  if (result < 0) {
    stream.extras->send_error = -result;
    fail_sends(stream, -result, mutated("T062"));
  }
  after_send(stream);
  if (!others_due) finish_request(request, false);
  if (mutated("T065")) note_sent(stream, size);
}

std::size_t bytes_of_first_send(const StreamRecord& stream) noexcept {
  return stream.socket.out == nullptr ? 0 : static_cast<SendOp*>(stream.socket.out)->done;
}

void restart_send_timer(StreamRecord& stream) noexcept {
  StreamExtras& extras = *stream.extras;
  extras.send_timer_done = bytes_of_first_send(stream);
  stream.core->start_timer(*extras.send_timer, extras.send_timer->timeout_ns);
}

// The backend moves bytes of a large send without telling; so whether there was progress is found
// out here, and a stream that stands still fails between one and two timeouts after its last byte.
void run_send_timeout(TimerWork* work) {
  StreamRecord& stream = *static_cast<StreamTimer*>(work)->stream;
  if (bytes_of_first_send(stream) != stream.extras->send_timer_done) {
    restart_send_timer(stream);
    return;
  }
  stream.extras->send_error = ETIMEDOUT;
  fail_sends(stream, ETIMEDOUT, false);
  after_send(stream);
}

void queue_request(SendRequest& request, int result) noexcept {
  request.result = result;
  request.queued = true;
  request.stream->core->queue_finished(*request.stream, request);
}

// Connected, and nothing was ever queued or configured: what most connections are.
inline bool plainly_sendable(const StreamRecord& stream) noexcept {
  return stream.connected && stream.extras == nullptr && !stream.core->forked();
}

int special_refusal(const StreamRecord& stream) noexcept {
  if (stream.closed || stream.core->dead()) return static_cast<int>(Errc::closed);
  if (stream.core->forked()) return static_cast<int>(Errc::forked);
  if (!stream.connected) return static_cast<int>(Errc::not_connected);
  const StreamExtras* extras = stream.extras.get();
  if (extras == nullptr) return 0;
  if (extras->send_error != 0) return extras->send_error;
  if (extras->shutdown_wanted || extras->shutdown_done) return EPIPE;
  return 0;
}

// Why no send can start now; 0 when it can.
inline int send_refusal(const StreamRecord& stream) noexcept {
  return plainly_sendable(stream) ? 0 : special_refusal(stream);
}

// Out of line, and straight into the caller's result: the sending functions then need no stack.
template <class T>
[[gnu::noinline]] Result<T> refuse_send(StreamRecord& stream, int error) {
  return failure(error, "send", subject_of(stream));
}

// A send that the kernel did not take. EAGAIN counts as nothing taken; with any other error the
// stream takes no more.
template <class T>
[[gnu::noinline]] Result<T> latch_send_error(StreamRecord& stream, int error) {
  extras_of(stream).send_error = error;
  return refuse_send<T>(stream, error);
}

inline std::int64_t send_now(StreamRecord& stream, std::span<const std::byte> bytes) noexcept {
  return stream.core->backend().try_send(stream.socket, bytes);
}

// Whether `size` more bytes pass the caps. An empty queue takes anything, once.
int cap_refusal(const StreamRecord& stream, std::size_t size) noexcept {
  const std::size_t queued = queued_bytes(stream);
  if (queued == 0) return 0;
  const LoopCore& core = *stream.core;
  const bool stream_full = size > stream.extras->marks.hard_bytes_max -
                                      std::min(queued, stream.extras->marks.hard_bytes_max);
  const std::size_t loop_max = core.options().send_queue_bytes_max;
  const bool loop_full = size > loop_max - std::min<std::size_t>(core.send_queue_bytes(), loop_max);
  return stream_full || loop_full ? static_cast<int>(Errc::queue_full) : 0;
}

// The request is in flight: the stream now has a queue. make_request() has seen to the memory.
void note_in_flight(StreamRecord& stream, SendRequest& request) {
  StreamExtras& extras = extras_of(stream);
  note_queued(stream, request.size);
  if (extras.send_timer != nullptr && !extras.send_timer->armed()) {
    restart_send_timer(stream);
  }
  stream.core->set_active(stream, true);
}

void start_request(StreamRecord& stream, SendRequest& request, std::source_location location) {
  int error = send_refusal(stream);
  if (error == 0) error = cap_refusal(stream, request.size);
  if (error != 0) {
    queue_request(request, -error);
    return;
  }
  stream.location = location;
  if (stream.core->backend().start(request) == Started::in_flight) {
    note_in_flight(stream, request);
    return;
  }
  if (request.result < 0) {
    extras_of(stream).send_error = -request.result;
  }
  queue_request(request, request.result);
}

SendRequest& make_request(StreamRecord& stream) {
  SendPool& pool = send_pool(*stream.core);
  if (stream.extras == nullptr && pool.spare_extras == nullptr) {
    pool.spare_extras = std::make_unique<StreamExtras>();
  }
  SendRequest& request = *pool.requests.make();
  request.stream = &stream;
  request.source = &stream.socket;
  return request;
}

// Room for `bytes` behind the last queued copy.
bool append_copy(StreamRecord& stream, std::span<const std::byte> bytes) {
  auto* first = static_cast<SendOp*>(stream.socket.out);
  if (first == nullptr) return false;
  auto& last = static_cast<SendRequest&>(*first->last_send);
  if (last.copied.empty() || last.copied.capacity() - last.copied.size() < bytes.size()) {
    return false;
  }
  last.copied.insert(last.copied.end(), bytes.begin(), bytes.end());
  last.size += bytes.size();
  note_queued(stream, bytes.size());
  return true;
}

}  // namespace

SendRequest::SendRequest() noexcept { run = run_send; }

void fail_sends(StreamRecord& stream, int error, bool silent) noexcept {
  while (stream.socket.out != nullptr && stream.socket.out->kind == OpKind::send) {
    auto& request = static_cast<SendRequest&>(*static_cast<SendOp*>(stream.socket.out));
    stream.core->backend().cancel(request);
    note_sent(stream, request.size);
    if (silent) {
      send_pool(*stream.core).requests.free(&request);
    } else {
      queue_request(request, -error);
    }
  }
}

namespace {

// The kernel has not got all that try_send() took: what ends the sending waits for an empty send,
// whose end comes behind it. False: it need not wait.
bool send_behind_the_rest(StreamRecord& stream) noexcept {
  Backend& backend = stream.core->backend();
  if (stream.core->forked() || stream.extras->send_error != 0 ||
      backend.settle(stream.socket) == 0) {
    return false;
  }
  try {
    SendRequest& request = make_request(stream);
    if (backend.start(request) == Started::in_flight) return true;
    send_pool(*stream.core).requests.free(&request);
    return false;
  } catch (const std::bad_alloc&) {
    return false;  // what is not sent yet is lost, as with a kernel that has no memory
  }
}

}  // namespace

void after_send(StreamRecord& stream) noexcept {
  StreamExtras& extras = *stream.extras;
  const bool empty = stream.socket.out == nullptr;
  if (extras.send_timer != nullptr) {
    if (empty) {
      stream.core->stop_timer(*extras.send_timer);
    } else {
      restart_send_timer(stream);
    }
  }
  const bool shuts = extras.shutdown_wanted && !extras.shutdown_done && stream.opened();
  if (empty && shuts && send_behind_the_rest(stream)) return update_active(stream);
  if (empty && shuts) {
    extras.shutdown_done = true;
    int error = extras.send_error;
    if (error == 0) {
      error = -stream.core->calls().shutdown(stream.socket.handle, SHUT_WR);
    }
    if (extras.shutdown_notice != nullptr) {
      queue_notice(stream, std::move(extras.shutdown_notice), error);
    }
    if (extras.graceful && (error != 0 || extras.drained)) close_stream(stream, CloseMode::told);
  }
  update_active(stream);
}

}  // namespace detail

using detail::StreamRecord;

void TcpStream::send(std::span<const std::byte> bytes, DoneCallback callback,
                     std::source_location location) {
  StreamRecord& stream = detail::stream_of(*this);
  if (stream.core->dead()) return;
  detail::SendRequest& request = detail::make_request(stream);
  request.callback = std::move(callback);
  request.bytes = bytes.data();
  request.size = bytes.size();
  detail::start_request(stream, request, location);
}

void TcpStream::send(Buffer buffer, DoneCallback callback, std::source_location location) {
  StreamRecord& stream = detail::stream_of(*this);
  if (stream.core->dead()) return;
  detail::SendRequest& request = detail::make_request(stream);
  request.callback = std::move(callback);
  request.buffer = std::move(buffer);
  request.bytes = request.buffer.data();
  request.size = request.buffer.size();
  detail::start_request(stream, request, location);
}

namespace {

// What send_copy() does when the kernel did not take all at once; `count` is what it said.
[[gnu::noinline]] Result<void> queue_copy(StreamRecord& stream, std::span<const std::byte> bytes,
                                          std::int64_t count) {
  while (count == -EINTR) count = detail::send_now(stream, bytes);
  if (count < 0 && count != -EAGAIN) {
    return detail::latch_send_error<void>(stream, static_cast<int>(-count));
  }
  const auto rest = bytes.subspan(count > 0 ? static_cast<std::size_t>(count) : 0);
  if (rest.empty()) return {};
  if (const int error = detail::cap_refusal(stream, rest.size()); error != 0) {
    return detail::refuse_send<void>(stream, error);
  }
  if (detail::append_copy(stream, rest)) return {};
  try {
    std::vector<std::byte> copied;
    copied.reserve(std::max(detail::copy_capacity, rest.size()));
    copied.assign(rest.begin(), rest.end());
    detail::SendRequest& request = detail::make_request(stream);
    request.copied = std::move(copied);
    request.bytes = request.copied.data();
    request.size = rest.size();
    detail::start_request(stream, request, stream.location);
  } catch (const std::bad_alloc&) {
    // Nothing may follow the part that has gone out: the kernel refuses it (EPIPE) from now on.
    if (count > 0) stream.core->calls().shutdown(stream.socket.handle, SHUT_WR);
    return detail::refuse_send<void>(stream, ENOMEM);
  }
  return {};
}

}  // namespace

[[gnu::hot]] Result<void> TcpStream::send_copy(std::span<const std::byte> bytes) {
  StreamRecord& stream = detail::stream_of(*this);
  if (const int error = detail::send_refusal(stream); error != 0) [[unlikely]] {
    return detail::refuse_send<void>(stream, error);
  }
  const std::int64_t count = detail::send_now(stream, bytes);
  if (count == static_cast<std::int64_t>(bytes.size())) [[likely]]
    return {};
  return queue_copy(stream, bytes, count);
}

namespace {

// try_send() with whatever can be in its way. `count` is what a first attempt gave; -EINTR: it is
// to be made.
[[gnu::noinline]] void try_send_slowly(StreamRecord& stream, std::span<const std::byte> bytes,
                                       std::int64_t count, Result<std::size_t>& result) {
  if (const int error = detail::special_refusal(stream); error != 0) {
    result = detail::refuse_send<std::size_t>(stream, error);
    return;
  }
  while (count == -EINTR) count = detail::send_now(stream, bytes);
  if (count >= 0) {
    result = static_cast<std::size_t>(count);
  } else if (count != -EAGAIN) {
    result = detail::latch_send_error<std::size_t>(stream, static_cast<int>(-count));
  }
}

}  // namespace

[[gnu::hot]] Result<std::size_t> TcpStream::try_send(std::span<const std::byte> bytes) {
  StreamRecord& stream = detail::stream_of(*this);
  const bool plain = detail::plainly_sendable(stream);
  const std::int64_t count = plain ? detail::send_now(stream, bytes) : -EINTR;
  Result<std::size_t> result(count < 0 ? std::size_t{0} : static_cast<std::size_t>(count));
  if (count < 0) [[unlikely]]
    try_send_slowly(stream, bytes, count, result);
  return result;
}

void TcpStream::shutdown_send(DoneCallback callback, std::source_location location) {
  StreamRecord& stream = detail::stream_of(*this);
  if (stream.core->dead()) return;
  if (const int error = detail::send_refusal(stream); error != 0) {
    detail::queue_done(stream, std::move(callback), error, "shutdown");
    return;
  }
  stream.location = location;
  detail::StreamExtras& extras = detail::extras_of(stream);
  if (callback) {
    extras.shutdown_notice = std::make_unique<detail::Notice>();
    extras.shutdown_notice->done = std::move(callback);
    extras.shutdown_notice->operation = "shutdown";
  }
  extras.shutdown_wanted = true;
  detail::after_send(stream);
}

void TcpStream::set_water_marks(const WaterMarks& marks, WaterMarkCallback callback) {
  StreamRecord& stream = detail::stream_of(*this);
  if (stream.core->dead()) return;
  detail::StreamExtras& extras = detail::extras_of(stream);
  extras.marks = marks;
  extras.mark_running = false;
  const WaterMarkCallback before = std::exchange(extras.on_mark, std::move(callback));
  // A queue that stands above the new mark already is told about; it would go unnoticed else.
  extras.full = extras.told_full = extras.full_due = extras.drained_due = false;
  const std::size_t queued = detail::queued_bytes(stream);
  if (queued != 0 && queued >= marks.high_bytes) detail::note_mark(stream, true);
}

std::size_t TcpStream::send_queue_bytes() const noexcept {
  return detail::queued_bytes(detail::stream_of(*this));
}

void TcpStream::set_send_timeout(Duration timeout) {
  StreamRecord& stream = detail::stream_of(*this);
  if (stream.core->dead()) return;
  auto& timer = detail::extras_of(stream).send_timer;
  detail::stop_stream_timer(stream, timer);
  if (timeout == forever) {
    timer.reset();
    return;
  }
  detail::make_stream_timer(stream, timer, detail::run_send_timeout, timeout.count());
  const bool sending = stream.socket.out != nullptr && stream.connected;
  if (sending) detail::restart_send_timer(stream);
}

}  // namespace evix
