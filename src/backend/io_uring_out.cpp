#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "backend/io_uring.hpp"

namespace evix::detail {
namespace {

// What try_send() copies for one source in a turn. A call of its own costs as much as copying
// about this much.
constexpr std::size_t batch_max = 4096;

// For the copies of one turn; nearly always all are with the kernel at its end, and the same memory
// serves the next.
constexpr std::size_t chunk_size = std::size_t{64} * 1024;

}  // namespace

// ---- Sends that the caller keeps --------------------------------------------------------------

// While the loop runs the kernel gets it with the next wait; else now, for nobody knows when there
// will be one.
Started RingBackend::start_send(SendOp& op) {
  Source& source = *op.source;
  RingPort& port = port_of(source);
  op.done = 0;
  if (port.send_error != 0) {
    port.send_told = true;
    finish(op, port.send_error);
    return Started::done;
  }
  if (source.out == nullptr && !collecting_ && !port.sending()) {
    std::int64_t count = 0;
    do {
      count = send_now(port, {op.bytes, op.size});
    } while (count == -EINTR);
    if (count < 0 && count != -EAGAIN) {
      finish(op, static_cast<std::int32_t>(count));
      return Started::done;
    }
    if (count > 0) op.done = static_cast<std::size_t>(count);
    if (op.done == op.size) {
      finish(op, 0);
      return Started::done;
    }
  }
  push_out(source, op);
  list(port);
  return Started::in_flight;
}

// A call at once and a poll: the call has the true error, and the ring's connect would add nothing.
Started RingBackend::start_connect(ConnectOp& op) {
  const int result = connect_now(calls_, op);
  // Already in progress: an interrupted call has gone on without us (connect(2), EINTR).
  if (result != -EINPROGRESS && result != -EALREADY) {
    finish(op, result);
    return Started::done;
  }
  push_out(*op.source, op);
  list(port_of(*op.source));
  return Started::in_flight;
}

void RingBackend::arm_out(RingPort& port) noexcept {
  Source& source = *port.source;
  if (port.out_armed || port.out_done || port.batch != nullptr) return;
  if (source.out != nullptr && source.out->kind == OpKind::connect) {
    io_uring_sqe* entry = ring_.next_entry();
    io_uring_prep_poll_add(entry, source.handle, POLLOUT);
    entry->user_data = token_of(port, Role::out);
    port.out_armed = true;
    return;
  }
  const std::byte* bytes = nullptr;
  std::size_t size = 0;
  if (port.unsent != nullptr) {
    bytes = port.unsent->bytes.data() + port.unsent->done;
    size = port.unsent->bytes.size() - port.unsent->done;
  } else {
    auto& op = static_cast<SendOp&>(*source.out);
    if (port.send_error != 0 || op.done == op.size) {
      op.result = port.send_error;
      port.out_done = true;
      enqueue(source);
      return;
    }
    bytes = op.bytes + op.done;
    size = op.size - op.done;
  }
  io_uring_sqe* entry = ring_.next_entry();
  io_uring_prep_send(entry, source.handle, bytes, std::min(size, transfer_size_max), MSG_NOSIGNAL);
  entry->user_data = token_of(port, Role::out);
  port.out_armed = true;
}

// Short sends are finished here; what the kernel took is counted at once, so that progress shows.
Source* RingBackend::absorb_out(RingPort& port, std::int32_t result) noexcept {
  Source& source = *port.source;
  port.out_armed = false;
  if (port.unsent != nullptr) return absorb_unsent(port, result);
  if (source.out == nullptr) return nullptr;
  if (source.out->kind == OpKind::connect) {
    if (result == -ECANCELED) return nullptr;
    port.out_done = true;
    return &source;
  }
  auto& op = static_cast<SendOp&>(*source.out);
  if (result >= 0) {
    op.done += static_cast<std::size_t>(result);
    op.result = 0;
    port.out_done = op.done == op.size;
  } else if (result != -ECANCELED && !is_to_be_repeated(result)) {
    note_failure(port, result);
    op.result = result;
    port.out_done = true;
  }
  if (port.out_done) return &source;
  list(port);
  return nullptr;
}

void RingBackend::note_failure(RingPort& port, std::int32_t error) noexcept {
  if (error == -ECONNRESET) port.reset = true;
}

Op* RingBackend::give_out(RingPort& port) {
  Source& source = *port.source;
  if (source.out == nullptr || !port.out_done) return nullptr;
  port.out_done = false;
  Op* op = source.out;
  if (op->kind == OpKind::connect) {
    // The poll has said that it can be asked; what it said exactly adds nothing.
    const int result = connect_result(calls_, source.handle, Ready::error);
    source.out = nullptr;
    finish(*op, result);
    return op;
  }
  remove_send(static_cast<SendOp&>(*op));
  op->state = OpState::idle;
  if (source.out != nullptr) list(port);
  return op;
}

void RingBackend::cancel_out(RingPort& port, Op& op) noexcept {
  Source& source = *port.source;
  const bool first = source.out == &op;
  if (first && port.out_armed && port.unsent == nullptr) stop(port, Role::out);
  const bool done = first && port.out_done;
  if (first) port.out_done = false;
  if (op.kind == OpKind::connect) {
    source.out = nullptr;
    finish(op, -ECANCELED);
    return;
  }
  auto& send = static_cast<SendOp&>(op);
  remove_send(send);
  finish(op, done && send.done == send.size ? 0 : -ECANCELED);
  if (source.out != nullptr) list(port);
}

// ---- Bytes that nobody keeps -----------------------------------------------------------------

std::int64_t RingBackend::send_now(RingPort& port, std::span<const std::byte> bytes) noexcept {
  return calls_.send(port.source->handle, bytes.data(), std::min(bytes.size(), transfer_size_max));
}

std::int64_t RingBackend::try_send(Source& source, std::span<const std::byte> bytes) noexcept {
  RingPort& port = port_of(source);
  const bool idle = source.out == nullptr && !port.sending() && port.send_error == 0;
  if (!idle || !collecting_ || bytes.size() > batch_max || bytes.empty()) [[unlikely]] {
    if (port.send_error != 0) {
      port.send_told = true;
      return port.send_error;
    }
    if (port.batch != nullptr && source.out == nullptr) return extend_batch(port, bytes);
    return idle ? send_now(port, bytes) : -EAGAIN;
  }
  std::byte* copy = copy_to_chunk(bytes);
  io_uring_sqe* entry = copy != nullptr ? ring_.next_entry() : nullptr;
  if (entry == nullptr) [[unlikely]]
    return send_now(port, bytes);
  port.batch_entry = ring_.position() - 1;
  // Not to wait in the kernel: the copy is to be free again when the call returns.
  io_uring_prep_send(entry, source.handle, copy, bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  entry->user_data = token_of(port, Role::batch);
  port.batch = copy;
  port.batch_size = static_cast<std::uint16_t>(bytes.size());
  chunk_used_ += bytes.size();
  ++batch_count_;
  ++sending_count_;
  return static_cast<std::int64_t>(bytes.size());
}

std::byte* RingBackend::copy_to_chunk(std::span<const std::byte> bytes) noexcept {
  if (chunk_ == nullptr) chunk_.reset(new (std::nothrow) std::byte[chunk_size]);
  if (chunk_ == nullptr || chunk_size - chunk_used_ < bytes.size()) return nullptr;
  std::memcpy(chunk_.get() + chunk_used_, bytes.data(), bytes.size());
  return chunk_.get() + chunk_used_;
}

// More of a source in the same turn joins what is there, as a second entry could overtake the rest
// of the first. What is too much for that goes straight to the kernel, after what is there.
std::int64_t RingBackend::extend_batch(RingPort& port, std::span<const std::byte> bytes) noexcept {
  const std::size_t size = port.batch_size + bytes.size();
  if (ring_.is_unsubmitted(port.batch_entry) && size <= batch_max) {
    const bool last = port.batch + port.batch_size == chunk_.get() + chunk_used_;
    std::byte* begin = port.batch;
    if (!last) begin = copy_to_chunk({port.batch, port.batch_size});
    if (begin != nullptr && !last) chunk_used_ += port.batch_size;
    if (begin != nullptr && copy_to_chunk(bytes) != nullptr) {
      chunk_used_ += bytes.size();
      io_uring_sqe& entry = ring_.entry_at(port.batch_entry);
      entry.addr = reinterpret_cast<std::uintptr_t>(begin);
      entry.len = static_cast<unsigned>(size);
      port.batch = begin;
      port.batch_size = static_cast<std::uint16_t>(size);
      return static_cast<std::int64_t>(bytes.size());
    }
  }
  if (settle(*port.source) < 0) return -EAGAIN;
  return port.send_error != 0 ? port.send_error : send_now(port, bytes);
}

void RingBackend::end_batch(RingPort& port) noexcept {
  port.batch = nullptr;
  if (--batch_count_ == 0) chunk_used_ = 0;
}

Source* RingBackend::absorb_batch(RingPort& port, std::int32_t result) noexcept {
  const std::size_t size = port.batch_size;
  const std::byte* bytes = port.batch;
  end_batch(port);
  if (static_cast<std::size_t>(result) == size) [[likely]] {
    --sending_count_;
    if (port.source->out != nullptr) list(port);
    return nullptr;
  }
  list(port);
  if (result < 0 && !is_to_be_repeated(result)) {
    note_failure(port, result);
    port.send_error = static_cast<std::int16_t>(result);
    --sending_count_;
    return nullptr;
  }
  const std::size_t done = result < 0 ? 0 : static_cast<std::size_t>(result);
  try {
    port.unsent = std::make_unique<UnsentBytes>();
    port.unsent->bytes.assign(bytes + done, bytes + size);
  } catch (const std::bad_alloc&) {
    // Nothing may follow the part that has gone out: the kernel refuses it (EPIPE) from now on.
    port.unsent.reset();
    port.send_error = -ENOMEM;
    --sending_count_;
    if (done > 0) (void)calls_.shutdown(port.source->handle, SHUT_WR);
  }
  return nullptr;
}

Source* RingBackend::absorb_unsent(RingPort& port, std::int32_t result) noexcept {
  UnsentBytes& unsent = *port.unsent;
  if (result > 0) unsent.done += static_cast<std::size_t>(result);
  const bool failed = result < 0 && !is_to_be_repeated(result) && result != -ECANCELED;
  if (failed) {
    note_failure(port, result);
    port.send_error = static_cast<std::int16_t>(result);
  }
  if (failed || unsent.done == unsent.bytes.size()) {
    port.unsent.reset();
    --sending_count_;
  }
  list(port);
  return nullptr;
}

int RingBackend::settle(Source& source) noexcept {
  if (source.interest.generation == 0 || forked()) return 0;
  RingPort& port = port_of(source);
  if (port.batch != nullptr && owner_ == current_thread() && hand_over() == 0) collect(port);
  return port.sending() ? -EAGAIN : 0;
}

// The descriptor is about to be closed: what try_send() took goes out as far as the kernel takes
// it.
void RingBackend::drop_out(RingPort& port) noexcept {
  (void)settle(*port.source);
  if (port.out_armed) stop(port, Role::out);
  if (port.batch != nullptr) {
    (void)take_back(token_of(port, Role::batch));
    end_batch(port);
    --sending_count_;
  }
  if (port.unsent != nullptr) --sending_count_;
  port.unsent.reset();
}

}  // namespace evix::detail
