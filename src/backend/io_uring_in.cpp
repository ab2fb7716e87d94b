#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "backend/io_uring.hpp"
#include "base/mutation.hpp"
#include "sys/descriptor.hpp"

namespace evix::detail {
namespace {

// accept(2), "Error handling": the connection is gone, the next one may be there.
bool is_of_lost_connection(int error) noexcept {
  return error == -ECONNABORTED || error == -EPROTO;
}

unsigned count_of(const BufferBlock* last) noexcept {
  unsigned count = 0;
  if (last == nullptr) return count;
  const BufferBlock* block = last;
  do {
    ++count;
    block = block->next;
  } while (block != last);
  return count;
}

}  // namespace

// ---- Start and end ---------------------------------------------------------------------------

Started RingBackend::start_in(Op& op) {
  Source& source = *op.source;
  check(source.in == nullptr, "two readers on one stream");
  RingPort& port = port_of(source);
  source.in = &op;
  op.state = OpState::in_flight;
  kept_count_ += count_of(port.kept);
  update_plain(port);
  if (has_something(source)) {
    enqueue(source);
  } else {
    list(port);
  }
  return Started::in_flight;
}

Op* RingBackend::end_in(RingPort& port, std::int32_t result) noexcept {
  Source& source = *port.source;
  Op* op = source.in;
  kept_count_ -= count_of(port.kept);
  source.in = nullptr;
  port.in_done = false;
  update_plain(port);
  finish(*op, result);
  return op;
}

void RingBackend::update_plain(RingPort& port) noexcept {
  Source& source = *port.source;
  source.plain = source.kind == SourceKind::stream && source.in != nullptr &&
                 source.in->kind == OpKind::receive && source.in->multishot && !port.has_kept() &&
                 !port.stopping;
}

// ---- What the kernel gets --------------------------------------------------------------------

void RingBackend::arm_in(RingPort& port) noexcept {
  Source& source = *port.source;
  const Op& op = *source.in;
  if (port.in_armed || port.has_kept() || port.in_done || port.has_connections) return;
  if (op.kind == OpKind::receive && buffers_.available() == 0) {
    (void)buffers_.refill(kept_count_);
    if (buffers_.available() == 0) return starve(port);
  }
  io_uring_sqe* entry = ring_.next_entry();
  if (op.kind == OpKind::accept) {
    io_uring_prep_accept(entry, source.handle, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    port.multishot =
        op.multishot && multishot_accept_ && !static_cast<const AcceptOp&>(op).one_at_a_time;
    if (port.multishot) entry->ioprio |= IORING_ACCEPT_MULTISHOT;
    entry->user_data = token_of(port, Role::accept);
  } else if (op.kind == OpKind::receive) {
    io_uring_prep_recv(entry, source.handle, nullptr, 0, 0);
    entry->flags |= IOSQE_BUFFER_SELECT;
    entry->buf_group = ring_buffer_group;
    port.multishot = op.multishot && multishot_receive_ && !port.urgent;
    if (port.multishot) entry->ioprio |= IORING_RECV_MULTISHOT;
    entry->user_data = token_of(port, Role::receive);
    // A multishot receive ends at the mark of urgent data and then waits for an edge, which what is
    // there already behind the mark does not make.
    if (port.multishot && !source.splits && !port.urgent_armed) {
      entry = ring_.next_entry();
      io_uring_prep_poll_add(entry, source.handle, POLLPRI);
      entry->user_data = token_of(port, Role::urgent);
      port.urgent_armed = true;
    }
  } else {
    const auto& into = static_cast<const ReceiveIntoOp&>(op);
    io_uring_prep_recv(entry, source.handle, into.bytes, std::min(into.size, transfer_size_max), 0);
    entry->user_data = token_of(port, Role::receive);
    port.into = true;
  }
  port.in_armed = true;
}

// ---- Receiving -------------------------------------------------------------------------------

Source* RingBackend::absorb_receive(RingPort& port, const io_uring_cqe& completion) noexcept {
  Source& source = *port.source;
  const std::int32_t result = completion.res;
  const bool lost = mutated("T134") && port.multishot && result > 0;
  const bool more = (completion.flags & IORING_CQE_F_MORE) != 0 || lost;
  const bool into = port.into;
  const bool was_multishot = port.multishot && !into;
  BufferBlock* block = (completion.flags & IORING_CQE_F_BUFFER) != 0
                           ? buffers_.take(completion.flags >> IORING_CQE_BUFFER_SHIFT)
                           : nullptr;
  if (!more) disarm(port, Role::receive);
  if (into && result >= 0) {
    source.in->result = result;
    port.in_done = true;
  } else if (result > 0 && block != nullptr) {
    multishot_seen_ = multishot_seen_ || more;
    keep(port, block, static_cast<std::size_t>(result));
  } else {
    if (block != nullptr) BufferPool::release(block);
    if (result == -ENOBUFS) {
      buffers_.grow();
    } else if (result == -EINVAL && was_multishot && !multishot_seen_) {
      multishot_receive_ = false;  // Linux before 6.0
    } else if ((result != -ECANCELED || mutated("T143")) && !is_to_be_repeated(result)) {
      port.keep_end(result);
    }
  }
  update_plain(port);
  if (source.in == nullptr) return nullptr;
  if (has_something(source)) return &source;
  if (!more && result == -ENOBUFS && !mutated("T133")) {
    starve(port);
  } else if (!more) {
    list(port);
  }
  return nullptr;
}

// From now on each receive begins with an attempt.
Source* RingBackend::absorb_urgent(RingPort& port, std::int32_t result) noexcept {
  port.urgent_armed = false;
  if (result <= 0 || (result & POLLPRI) == 0) return nullptr;
  port.urgent = true;
  if (port.in_armed && port.multishot && !port.into) {
    port.stop_due = true;
    list(port);
  }
  return nullptr;
}

// At the end of the circle of those that nobody has had.
void RingBackend::keep(RingPort& port, BufferBlock* block, std::size_t size) noexcept {
  block->begin = 0;
  block->end = static_cast<std::uint32_t>(size);
  if (port.kept == nullptr) {
    block->next = block;
  } else {
    block->next = port.kept->next;
    port.kept->next = block;
  }
  port.kept = block;
  if (port.source->in != nullptr) ++kept_count_;
}

BufferBlock* RingBackend::take_kept(RingPort& port) noexcept {
  BufferBlock* first = port.kept->next;
  if (first == port.kept) {
    port.kept = nullptr;
  } else {
    port.kept->next = first->next;
  }
  --kept_count_;
  return first;
}

// It has had its share of this turn, and more comes: the kernel is to stop until that is given.
void RingBackend::throttle(RingPort& port) noexcept {
  if (port.source->kind != SourceKind::stream || !port.in_armed || port.stopping || port.into) {
    return;
  }
  port.stop_due = true;
  list(port);
}

// What comes behind everything that is kept. A failed send, also one that was cancelled, may have
// been given the only word of a reset: the kernel tells it once, and says end to receives then.
std::int32_t RingBackend::end_of(RingPort& port) noexcept {
  const std::int32_t result = port.kept_end();
  port.kept_errno = RingPort::no_end;
  if (result != 0) return result;
  if (port.reset) return -ECONNRESET;
  const bool told = port.send_told || port.send_error() == -EPIPE || port.send_error() == 0;
  if (told) return result;
  port.send_told = true;
  return port.send_error();
}

Op* RingBackend::give_received(RingPort& port) {
  Source& source = *port.source;
  if (source.in->kind == OpKind::receive_into) {
    return give_into(port, static_cast<ReceiveIntoOp&>(*source.in));
  }
  auto& op = static_cast<ReceiveOp&>(*source.in);
  if (port.kept == nullptr) {
    if (!port.has_end()) return nullptr;
    return end_in(port, end_of(port));
  }
  BufferBlock* block = take_kept(port);
  const std::size_t size = block->end - block->begin;
  if (block->begin != 0) std::memmove(block->bytes(), block->bytes() + block->begin, size);
  op.block = block;
  if (!op.multishot) return end_in(port, static_cast<std::int32_t>(size));
  op.result = static_cast<std::int32_t>(size);
  update_plain(port);
  if (!port.has_kept()) list(port);
  return &op;
}

Op* RingBackend::give_into(RingPort& port, ReceiveIntoOp& op) {
  if (port.in_done && op.result > 0) return end_in(port, op.result);
  if (port.in_done) port.keep_end(0);
  if (port.kept == nullptr) {
    if (!port.has_end()) return nullptr;
    return end_in(port, end_of(port));
  }
  BufferBlock* block = port.kept->next;
  const std::size_t size = std::min<std::size_t>(op.size, block->end - block->begin);
  std::memcpy(op.bytes, block->bytes() + block->begin, size);
  block->begin += static_cast<std::uint32_t>(size);
  if (block->begin == block->end) BufferPool::release(take_kept(port));
  return end_in(port, static_cast<std::int32_t>(size));
}

void RingBackend::drop_kept(RingPort& port) noexcept {
  if (port.source->in != nullptr) kept_count_ -= count_of(port.kept);
  while (port.kept != nullptr) {
    ++kept_count_;
    BufferPool::release(take_kept(port));
  }
  port.kept_errno = RingPort::no_end;
  while (port.has_connections) refuse_connection(take_connection(port));
}

// ---- Accepting -------------------------------------------------------------------------------

Source* RingBackend::absorb_accept(RingPort& port, const io_uring_cqe& completion) noexcept {
  Source& source = *port.source;
  const std::int32_t result = completion.res;
  const bool more = (completion.flags & IORING_CQE_F_MORE) != 0;
  if (!more) disarm(port, Role::accept);
  if (result >= 0) {
    accept_seen_ = accept_seen_ || more;
    keep_connection(port, result);
  } else if (result == -EINVAL && port.multishot && !accept_seen_) {
    multishot_accept_ = false;  // Linux before 5.19
  } else if (result != -ECANCELED && !is_to_be_repeated(result) && !is_of_lost_connection(result)) {
    port.keep_end(result);
  }
  if (source.in == nullptr) return nullptr;
  if (has_something(source)) return &source;
  if (!more) list(port);
  return nullptr;
}

void RingBackend::keep_connection(RingPort& port, native_handle handle) noexcept {
  try {
    connections_.push_back({port.slot, handle});
    port.has_connections = true;
  } catch (const std::bad_alloc&) {
    refuse_connection(handle);
  }
}

native_handle RingBackend::take_connection(RingPort& port) noexcept {
  const auto of_port = [&port](const Connection& each) { return each.slot == port.slot; };
  const auto first = std::ranges::find_if(connections_, of_port);
  const native_handle handle = first->handle;
  const auto rest = connections_.erase(first);
  port.has_connections = std::find_if(rest, connections_.end(), of_port) != connections_.end();
  return handle;
}

// As a listener that is closed refuses those that wait: with a reset.
void RingBackend::refuse_connection(native_handle handle) noexcept {
  if (!forked()) reset_when_closed(calls_, handle);
  (void)calls_.close(handle);
}

Op* RingBackend::give_connection(RingPort& port) {
  Op* op = port.source->in;
  if (op == nullptr) return nullptr;
  if (port.has_connections) {
    const native_handle handle = take_connection(port);
    if (!op->multishot) return end_in(port, handle);
    op->result = handle;
    if (!port.in_armed && !port.has_connections) list(port);
    return op;
  }
  if (!port.has_end()) return nullptr;
  return end_in(port, end_of(port));
}

}  // namespace evix::detail
