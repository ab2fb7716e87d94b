#include <cerrno>
#include <new>

#include "backend/io_uring.hpp"
#include "sys/descriptor.hpp"
#include "sys/poll_bits.hpp"

namespace evix::detail {

Started RingBackend::start_watch(WatchOp& op) {
  op.pending = Ready::none;
  if (const int error = check_open(calls_, op.handle); error < 0) {
    finish(op, error);
    return Started::done;
  }
  const std::uint32_t slot = handles_.find(op.handle);
  RingPort* port = slot != InterestTable::none ? &ports_.at(slot) : nullptr;
  if (port != nullptr && port->source->kind != SourceKind::watched) {
    const bool used = port->source->in != nullptr || port->source->out != nullptr ||
                      port->source->kind == SourceKind::wake;
    if (used) {
      finish(op, -static_cast<int>(Errc::already_registered));
      return Started::done;
    }
    port = nullptr;
  }
  if (port == nullptr) {
    WatchedPort* source = nullptr;
    try {
      source = watched_.make();
    } catch (const std::bad_alloc&) {
      finish(op, -ENOMEM);
      return Started::done;
    }
    source->kind = SourceKind::watched;
    source->handle = op.handle;
    port = make_port(*source);
    if (port == nullptr) {
      watched_.free(source);
      finish(op, -ENOMEM);
      return Started::done;
    }
    if (slot == InterestTable::none) handles_.set(op.handle, port->slot);
  } else if (port->in_armed) {
    // By its number again: it may have been closed and given out anew.
    stop(*port, Role::poll);
  }
  push_watch(*port->source, op);
  op.state = OpState::in_flight;
  port->unpollable = false;
  list(*port);
  return Started::in_flight;
}

// Level-triggered: one shot, armed again before the next wait. But the kernel adds POLLRDHUP to
// what every poll waits for, so one shot for writing alone comes at once, again and again, when the
// peer has shut its side. Then multishot: it says that first and later what changes.
void RingBackend::arm_poll(RingPort& port) noexcept {
  Source& source = *port.source;
  if (port.stop_due) {
    port.stop_due = false;
    if (port.in_armed && !port.stopping) {
      port.stopping = true;
      io_uring_sqe* entry = ring_.next_entry();
      io_uring_prep_cancel64(entry, token_of(port, Role::poll), 0);
      entry->user_data = 0;
    }
  }
  if (port.in_armed || port.gone || port.unpollable) return;
  io_uring_sqe* entry = nullptr;
  if (source.kind == SourceKind::wake) {
    entry = ring_.next_entry();
    io_uring_prep_poll_multishot(entry, source.handle, POLLIN);
  } else {
    const Ready interest = with_read_closed(interest_of(source));
    if (!any(interest)) return;  // hang-ups would be told whatever the mask
    source.registered = interest;
    entry = ring_.next_entry();
    io_uring_prep_poll_add(entry, source.handle, static_cast<unsigned>(interest));
    if (port.multishot) entry->len |= IORING_POLL_ADD_MULTI;
  }
  entry->user_data = token_of(port, Role::poll);
  port.in_armed = true;
}

Source* RingBackend::absorb_poll(RingPort& port, std::int32_t result, bool more) noexcept {
  Source& source = *port.source;
  if (!more) disarm(port, Role::poll);
  if (source.kind == SourceKind::wake) {
    if (result > 0) (void)calls_.event_read(source.handle);
    if (!more && (result >= 0 || result == -ECANCELED)) list(port);
    return nullptr;
  }
  if (result == -EINVAL || result == -EOPNOTSUPP) {
    port.unpollable = true;  // as poll(2) has it: such a file never says what was asked for
    return nullptr;
  }
  if (!more) list(port);
  if (result == -ECANCELED || result == -EINTR) {
    port.multishot = false;
    return nullptr;
  }
  if (more && (port.stop_due || port.stopping)) return nullptr;  // one shot will tell it
  Ready ready = static_cast<Ready>(static_cast<unsigned short>(result));
  if (result < 0) ready = result == -EBADF ? Ready::invalid : Ready::error;
  if (any(ready, Ready::invalid)) {
    port.gone = true;
    handles_.erase(source.handle);
  }
  source.turn = turn_;
  for (auto* op = static_cast<WatchOp*>(source.in); op != nullptr; op = op->next_watch) {
    op->pending = ready & reportable(op->interest);
  }
  if (!has_something(source)) {
    port.multishot = ready == Ready::read_closed;
    return nullptr;
  }
  // From now on whether it is still so, which one shot tells.
  if (more) {
    port.stop_due = true;
    list(port);
  } else {
    port.multishot = false;
  }
  return &source;
}

Op* RingBackend::give_watched(Source& source) {
  // What a stop or an exception left over is old: it comes again if it is true.
  const Ready valid = source.turn == turn_ ? all_bits : Ready::invalid;
  WatchOp* op = first_pending(source.in, valid);
  if (op == nullptr) return nullptr;
  op->ready = op->pending & valid;
  op->pending = Ready::none;
  op->result = 0;
  if (first_pending(op->next_watch, valid) != nullptr) {
    ++visits_left_;
    enqueue(source);
  }
  if (any(op->ready, Ready::invalid) || !op->multishot) {
    remove_watch(*op);
    op->state = OpState::idle;
  }
  return op;
}

void RingBackend::remove_watch(WatchOp& op) noexcept {
  Source& source = *op.source;
  unlink_watch(op);
  RingPort& port = port_of(source);
  if (source.in == nullptr) {
    drop_watched(port);
  } else if (port.in_armed && !any(interest_of(source))) {
    stop(port, Role::poll);
  }
}

void RingBackend::drop_watched(RingPort& port) noexcept {
  if (port.in_armed) stop(port, Role::poll);
  auto* source = static_cast<WatchedPort*>(port.source);
  free_port(port);
  watched_.free(source);
}

int RingBackend::change_interest(WatchOp& op, Ready interest) {
  op.interest = interest;
  op.pending &= reportable(interest);
  RingPort& port = port_of(*op.source);
  const Ready wanted = interest_of(*op.source);
  port.unpollable = false;
  const bool more = any(wanted & ~op.source->registered);
  if (port.in_armed && (more || !any(wanted))) stop(port, Role::poll);
  list(port);
  return 0;
}

int RingBackend::watch_wake(native_handle event) {
  if (wake_.interest.generation != 0) {
    RingPort& port = port_of(wake_);
    if (port.in_armed) stop(port, Role::poll);
    free_port(port);
  }
  wake_.handle = event;
  if (const int error = evict(event); error < 0) return error;
  RingPort* port = make_port(wake_);
  if (port == nullptr) return -ENOMEM;
  handles_.set(event, port->slot);
  list(*port);
  return 0;
}

}  // namespace evix::detail
