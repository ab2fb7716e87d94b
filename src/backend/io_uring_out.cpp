#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "backend/io_uring.hpp"
#include "sys/descriptor.hpp"

namespace evix::detail {
namespace {

// What try_send() copies for one source in a turn. A call of its own costs as much as copying
// about this much.
constexpr std::size_t batch_max = 4096;

// A closed stream's bytes for a peer that does not read: as long as Linux keeps a socket whose
// other end is silent behind its last FIN (tcp_fin_timeout, tcp(7)).
constexpr std::int64_t lingering_max_ns = 60'000'000'000;
// Peers that do not read cost a descriptor each, which no limit on connections counts.
constexpr std::size_t lingering_count_max = 256;

}  // namespace

// ---- Sends that the caller keeps --------------------------------------------------------------

// While the loop runs the kernel gets it with the next wait; else now, for nobody knows when there
// will be one.
Started RingBackend::start_send(SendOp& op) {
  Source& source = *op.source;
  RingPort& port = port_of(source);
  op.done = 0;
  if (port.send_error() != 0) {
    port.send_told = true;
    finish(op, port.send_error());
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
  const bool nothing = source.out == nullptr && !port.unsent;
  if (nothing || port.out_armed || port.out_done) return;
  if (port.batched) return make_audible(port);
  if (source.out != nullptr && source.out->kind == OpKind::connect) {
    io_uring_sqe* entry = ring_.next_entry();
    io_uring_prep_poll_add(entry, source.handle, POLLOUT);
    entry->user_data = token_of(port, Role::out);
    port.out_armed = true;
    return;
  }
  const std::byte* bytes = nullptr;
  std::size_t size = 0;
  if (port.unsent) {
    const UnsentBytes& unsent = unsent_.find(port.slot)->second;
    bytes = unsent.bytes.data() + unsent.done;
    size = unsent.bytes.size() - unsent.done;
  } else {
    auto& op = static_cast<SendOp&>(*source.out);
    if (port.send_error() != 0 || op.done == op.size) {
      op.result = port.send_error();
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
  if (port.unsent) return absorb_unsent(port, result);
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
  if (first && port.out_armed && !port.unsent) stop(port, Role::out);
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
  const std::int64_t count =
      calls_.send(port.source->handle, bytes.data(), std::min(bytes.size(), transfer_size_max));
  if (!bytes.empty()) port.full = count != static_cast<std::int64_t>(bytes.size());
  return count;
}

std::int64_t RingBackend::try_send(Source& source, std::span<const std::byte> bytes) noexcept {
  RingPort& port = port_of(source);
  const bool plain = collecting_ && source.out == nullptr && !port.sending() &&
                     port.send_errno == 0 && !port.full && bytes.size() - 1 < batch_max;
  if (!plain) [[unlikely]]
    return try_send_otherwise(port, bytes);
  if (!has_batch_room(bytes.size()) && !make_batch_room(bytes.size())) [[unlikely]]
    return send_now(port, bytes);
  Batch& batch = batches_->list[batches_->count++];
  batch.port = &port;
  batch.bytes = batches_->bytes.data() + batches_->bytes_used;
  batch.entry = ring_.position();
  batch.size = static_cast<std::uint32_t>(bytes.size());
  batches_->bytes_used += bytes.size();
  port.batched = true;
  std::memcpy(batch.bytes, bytes.data(), bytes.size());
  io_uring_sqe* entry = ring_.next_entry();
  // Not to wait in the kernel: the copy is to be free again when the call returns. To take all is
  // what makes the rest a failure, which alone has a completion.
  io_uring_prep_send(entry, source.handle, batch.bytes, bytes.size(),
                     MSG_NOSIGNAL | MSG_DONTWAIT | MSG_WAITALL);
  entry->flags |= ring_.flags_of_silent_send();
  entry->user_data = token_of(source, Role::batch);
  return static_cast<std::int64_t>(bytes.size());
}

std::int64_t RingBackend::try_send_otherwise(RingPort& port,
                                             std::span<const std::byte> bytes) noexcept {
  if (port.send_error() != 0) {
    port.send_told = true;
    return port.send_error();
  }
  if (port.source->out != nullptr || port.unsent) return -EAGAIN;
  return port.batched ? extend_batch(port, bytes) : send_now(port, bytes);
}

bool RingBackend::has_batch_room(std::size_t size) const noexcept {
  return batches_ != nullptr && batches_->count != Batches::count_max &&
         Batches::bytes_max - batches_->bytes_used >= size && ring_.room() != 0;
}

// False: there is no memory, or the kernel takes nothing now.
bool RingBackend::make_batch_room(std::size_t size) noexcept {
  if (batches_ == nullptr) {
    batches_.reset(new (std::nothrow) Batches);
    if (batches_ == nullptr) return false;
  }
  return has_batch_room(size) || (hand_over() == 0 && has_batch_room(size));
}

// One of the last few, for a program sends to a stream and then to the next.
Batch& RingBackend::batch_of(const RingPort& port) noexcept {
  std::size_t index = batches_->count;
  while (batches_->list[--index].port != &port) check(index != 0, "a batch is lost");
  return batches_->list[index];
}

// More of a source in the same turn joins what is there, as a second entry could overtake the rest
// of the first. What is too much for that goes straight to the kernel, after what is there.
std::int64_t RingBackend::extend_batch(RingPort& port, std::span<const std::byte> bytes) noexcept {
  Batch& batch = batch_of(port);
  const std::size_t size = batch.size + bytes.size();
  std::byte* const free = batches_->bytes.data() + batches_->bytes_used;
  const bool last = batch.bytes + batch.size == free;
  const std::size_t room = Batches::bytes_max - batches_->bytes_used;
  const std::size_t needed = last ? bytes.size() : size;
  if (ring_.is_unsubmitted(batch.entry) && size <= batch_max && needed <= room) {
    if (!last) {
      std::memcpy(free, batch.bytes, batch.size);
      batch.bytes = free;
    }
    std::memcpy(batch.bytes + batch.size, bytes.data(), bytes.size());
    batches_->bytes_used += needed;
    batch.size = static_cast<std::uint32_t>(size);
    io_uring_sqe& entry = ring_.entry_at(batch.entry);
    entry.addr = reinterpret_cast<std::uintptr_t>(batch.bytes);
    entry.len = batch.size;
    return static_cast<std::int64_t>(bytes.size());
  }
  if (settle(*port.source) < 0) return -EAGAIN;
  return port.send_error() != 0 ? port.send_error() : send_now(port, bytes);
}

void RingBackend::end_batch(Batch& batch) noexcept {
  if (batch.port == nullptr) return;
  batch.port->batched = false;
  if (batch.port->source->out != nullptr) list(*batch.port);
  batch.port = nullptr;
}

// They do not wait: when the kernel has the entries, each has taken all or has its completion. With
// completions put aside (the queue is full) that is not so yet.
void RingBackend::settle_batches() noexcept {
  if (ring_.unsubmitted() != 0 || ring_.overflowed()) return;
  const unsigned count = ring_.completions();
  for (unsigned index = 0; index < count; ++index) {
    io_uring_cqe& completion = ring_.completion(index);
    if (role_of(completion.user_data) != Role::batch) continue;
    RingPort* port = find(completion.user_data);
    if (port != nullptr) (void)absorb_batch(*port, completion.res);
    completion.user_data = 0;
  }
  for (std::size_t index = 0; index < batches_->count; ++index) end_batch(batches_->list[index]);
  batches_->count = batches_->bytes_used = 0;
}

// Something waits for the end of the copies, and so a wait has to be ended by it.
void RingBackend::make_audible(const RingPort& port) noexcept {
  const Batch& batch = batch_of(port);
  if (!ring_.is_unsubmitted(batch.entry)) return;
  io_uring_sqe& entry = ring_.entry_at(batch.entry);
  entry.flags = static_cast<std::uint8_t>(entry.flags & ~ring_.flags_of_silent_send());
}

// Asked when nothing else keeps the loop alive. Nothing would end a wait for copies that the kernel
// takes whole, so they are handed over before.
bool RingBackend::is_busy() noexcept {
  if (has_batches() && collecting_ && !forked() && owner_ == current_thread()) (void)hand_over();
  return has_batches() || !unsent_.empty();
}

// The ring goes, and with it the entries that the kernel has not got.
void RingBackend::keep_unsent_batches() noexcept {
  if (!has_batches()) return;
  for (std::size_t index = 0; index < batches_->count; ++index) {
    Batch& batch = batches_->list[index];
    if (batch.port == nullptr) continue;
    if (ring_.is_unsubmitted(batch.entry)) {
      (void)absorb_batch(*batch.port, -EAGAIN);
    } else {
      end_batch(batch);
    }
  }
  batches_->count = batches_->bytes_used = 0;
}

Source* RingBackend::absorb_batch(RingPort& port, std::int32_t result) noexcept {
  if (!port.batched) return nullptr;
  Batch& batch = batch_of(port);
  const std::size_t size = batch.size;
  const std::byte* bytes = batch.bytes;
  end_batch(batch);
  if (static_cast<std::size_t>(result) == size) return nullptr;
  port.full = true;
  list(port);
  if (result < 0 && !is_to_be_repeated(result)) {
    note_failure(port, result);
    port.fail_sends(result);
    return nullptr;
  }
  const std::size_t done = result < 0 ? 0 : static_cast<std::size_t>(result);
  try {
    unsent_[port.slot].bytes.assign(bytes + done, bytes + size);
    port.unsent = true;
  } catch (const std::bad_alloc&) {
    // Nothing may follow the part that has gone out: every send fails from now on.
    unsent_.erase(port.slot);
    port.fail_sends(-ENOMEM);
  }
  return nullptr;
}

Source* RingBackend::absorb_unsent(RingPort& port, std::int32_t result) noexcept {
  UnsentBytes& unsent = unsent_.find(port.slot)->second;
  if (result > 0) unsent.done += static_cast<std::size_t>(result);
  const bool failed = result < 0 && !is_to_be_repeated(result) && result != -ECANCELED;
  if (failed) {
    note_failure(port, result);
    port.fail_sends(result);
  }
  if (failed || unsent.done == unsent.bytes.size()) {
    unsent_.erase(port.slot);
    port.unsent = false;
    if (port.source->lingers) {
      end_lingering(static_cast<LingeringStream&>(*port.source));
      return nullptr;
    }
  }
  list(port);
  return nullptr;
}

int RingBackend::settle(Source& source) noexcept {
  if (source.interest.generation == 0 || forked()) return 0;
  const RingPort& port = port_of(source);
  if (port.batched && owner_ == current_thread()) (void)hand_over();
  return port.sending() ? -EAGAIN : 0;
}

// The descriptor is about to be closed: what try_send() took and the kernel does not take now is
// sent later. Never a clean end behind a part that nobody was told of.
void RingBackend::drop_out(RingPort& port) noexcept {
  (void)settle(*port.source);
  if (port.out_armed) stop(port, Role::out);
  if (port.batched) end_handed_over(port);
  if (port.unsent) {
    keep_sending(port);
  } else if (port.send_error() != 0 && !port.send_told) {
    reset_when_closed(calls_, port.source->handle);
  }
}

// settle() could not: the kernel did not take all entries, or holds completions back.
void RingBackend::end_handed_over(RingPort& port) noexcept {
  if (take_back(token_of(port, Role::batch))) {
    (void)absorb_batch(port, -EAGAIN);
    return;
  }
  collect(port);
  if (port.batched && ring_.overflowed()) {
    absorb_everything();
    (void)enter_ring(0, 0);
    if (port.batched) collect(port);
  }
  if (port.batched) end_batch(batch_of(port));
}

// ---- Closed and not sent yet -----------------------------------------------------------------

// Without a duplicate (too many of them, the descriptor limit, memory) the peer is told by a reset.
void RingBackend::keep_sending(RingPort& port) noexcept {
  const native_handle handle = port.source->handle;
  port.unsent = false;
  LingeringStream* stream = is_to_be_reset(handle) ? nullptr : make_lingering(handle);
  if (stream == nullptr) {
    unsent_.erase(port.slot);
    reset_when_closed(calls_, handle);
    return;
  }
  auto bytes = unsent_.extract(port.slot);
  bytes.key() = stream->interest.slot;
  unsent_.insert(std::move(bytes));
  RingPort& own = port_of(*stream);
  own.unsent = true;
  list(own);
}

// abort(), or the program itself: no other descriptor may keep the connection then.
bool RingBackend::is_to_be_reset(native_handle handle) noexcept {
  linger set{};
  socklen_t size = sizeof set;
  if (calls_.get_option(handle, SOL_SOCKET, SO_LINGER, &set, &size) < 0) return false;
  return set.l_onoff != 0 && set.l_linger == 0;
}

LingeringStream* RingBackend::make_lingering(native_handle handle) noexcept {
  if (lingering_.size() == lingering_count_max) return nullptr;
  LingeringStream* stream = nullptr;
  try {
    stream = lingering_.make();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  stream->handle = calls_.duplicate(handle);
  if (stream->handle >= 0) (void)evict(stream->handle);
  if (stream->handle < 0 || make_port(*stream) == nullptr) {
    if (stream->handle >= 0) (void)calls_.close(stream->handle);
    lingering_.free(stream);
    return nullptr;
  }
  stream->lingers = true;
  stream->until_ns = calls_.clock_now() + lingering_max_ns;
  if (lingering_.size() == 1) lingering_next_ns_ = stream->until_ns;
  return stream;
}

// With all of it sent a clean end follows, else a reset.
void RingBackend::end_lingering(LingeringStream& stream) noexcept {
  if (stream.ended) return;
  stream.ended = true;  // what stop() absorbs does not end it once more
  RingPort& port = port_of(stream);
  if (port.out_armed) stop(port, Role::out);
  const bool sent = !port.unsent && port.send_error() == 0;
  if (port.unsent) unsent_.erase(port.slot);
  const native_handle handle = stream.handle;
  free_port(port);
  lingering_.free(&stream);
  if (!sent) reset_when_closed(calls_, handle);
  (void)calls_.close(handle);
}

// How long a wait may be; whoever has had their time is reset.
std::int64_t RingBackend::limit_lingering(std::int64_t timeout_ns) noexcept {
  const std::int64_t now = calls_.clock_now();
  if (now >= lingering_next_ns_) {
    lingering_next_ns_ = INT64_MAX;
    lingering_.for_each([this, now](LingeringStream& stream) {
      if (now < stream.until_ns) {
        lingering_next_ns_ = std::min(lingering_next_ns_, stream.until_ns);
      } else {
        end_lingering(stream);
      }
    });
    if (lingering_.size() == 0) return 0;  // nothing else may keep the loop
  }
  const std::int64_t left = lingering_next_ns_ - now;
  return timeout_ns < 0 ? left : std::min(timeout_ns, left);
}

void RingBackend::end_all_lingering() noexcept {
  lingering_.for_each([this](LingeringStream& stream) { end_lingering(stream); });
}

// In a forked child, whose ring is gone: they are the parent's to send.
void RingBackend::abandon_lingering() noexcept {
  lingering_.for_each([this](LingeringStream& stream) {
    free_port(port_of(stream));
    (void)calls_.close(stream.handle);
    lingering_.free(&stream);
  });
}

}  // namespace evix::detail
