#include <cerrno>
#include <new>

#include "backend/io_uring.hpp"
#include "base/mutation.hpp"
#include "sys/descriptor.hpp"

namespace evix::detail {
namespace {

// Nearly always the first one is answered at once; each waits that long at most. A table of calls
// that refuses for ever must not hold us up.
constexpr int cancel_attempts_max = 1000;
constexpr std::int64_t cancel_patience_ns = 1'000'000;

}  // namespace

// ---- Attach and detach -----------------------------------------------------------------------

RingPort* RingBackend::make_port(Source& source) noexcept {
  try {
    handles_.reserve(source.handle);
    RingPort* port = ports_.make();
    port->source = &source;
    source.interest = {port->slot, ports_.generation(port)};
    return port;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void RingBackend::free_port(RingPort& port) noexcept {
  Source& source = *port.source;
  dequeue(source);
  if (handles_.find(source.handle) == port.slot) handles_.erase(source.handle);
  source.interest = {};
  source.plain = false;
  ports_.free(&port);
}

int RingBackend::attach(Source& source) {
  check(source.interest.generation == 0, "a source was attached twice");
  if (!source.duplicable) {
    if (const int error = evict(source.handle); error < 0) return error;
  }
  RingPort* port = make_port(source);
  if (port == nullptr) return -ENOMEM;
  const bool free = handles_.find(source.handle) == InterestTable::none;
  if (free || !source.duplicable) handles_.set(source.handle, port->slot);
  return 0;
}

// The number was given out just now: who watches it has had its descriptor closed behind its back.
int RingBackend::evict(native_handle handle) noexcept {
  const std::uint32_t slot = handles_.find(handle);
  if (slot == InterestTable::none) return 0;
  RingPort& port = ports_.at(slot);
  handles_.erase(handle);
  if (port.source->kind != SourceKind::watched) return 0;
  if (port.in_armed) stop(port, Role::poll);
  port.gone = true;
  for (auto* op = static_cast<WatchOp*>(port.source->in); op != nullptr; op = op->next_watch) {
    op->pending = Ready::invalid;
  }
  enqueue(*port.source);
  return 0;
}

void RingBackend::detach(Source& source) noexcept {
  check(source.in == nullptr && source.out == nullptr, "detach with operations in flight");
  if (source.interest.generation == 0) return;
  RingPort& port = port_of(source);
  if (!forked()) {
    drop_out(port);
    if (port.urgent_armed) stop(port, Role::urgent);
    if (port.in_armed) {
      stop(port, source.kind == SourceKind::listener ? Role::accept : Role::receive);
    }
  }
  drop_kept(port);
  free_port(port);
}

// ---- Lists -----------------------------------------------------------------------------------

void RingBackend::list(RingPort& port) noexcept {
  if (port.listed != RingPort::Listed::no) return;
  std::uint32_t position = 0;
  if (pending_.push(token_of(port, Role::ignored), position)) {
    port.listed = RingPort::Listed::pending;
  } else {
    list_overflowed_ = true;
  }
}

void RingBackend::starve(RingPort& port) noexcept {
  if (port.listed != RingPort::Listed::no) return;
  std::uint32_t position = 0;
  if (starved_.push(token_of(port, Role::ignored), position)) {
    port.listed = RingPort::Listed::starved;
  } else {
    list_overflowed_ = true;
  }
}

// Null for one that is gone.
RingPort* RingBackend::pop_listed(RingQueue<std::uint64_t>& list, RingPort::Listed as) noexcept {
  RingPort* port = find(list.pop());
  if (port == nullptr || port->listed != as) return nullptr;
  port->listed = RingPort::Listed::no;
  return port;
}

void RingBackend::enqueue(Source& source) noexcept {
  if (source.queued) return;
  source.queued = ready_sources_.push(&source, source.queue_position);
  if (!source.queued) queue_overflowed_ = true;
}

void RingBackend::dequeue(Source& source) noexcept {
  if (!source.queued) return;
  source.queued = false;
  ready_sources_.erase(source.queue_position);
}

// Without memory for a longer queue the rest is found anew, turn by turn, as places become free.
void RingBackend::find_unqueued() noexcept {
  queue_overflowed_ = false;
  ports_.for_each([this](RingPort& port) {
    if (has_something(*port.source)) enqueue(*port.source);
  });
}

// ---- Start and cancel ------------------------------------------------------------------------

Started RingBackend::start(Op& op) {
  check(!op.in_flight(), "operation started twice");
  switch (op.kind) {
    case OpKind::watch:
      return start_watch(static_cast<WatchOp&>(op));
    case OpKind::connect:
      return start_connect(static_cast<ConnectOp&>(op));
    case OpKind::send:
      return start_send(static_cast<SendOp&>(op));
    case OpKind::accept:
    case OpKind::receive:
    case OpKind::receive_into:
      break;
  }
  return start_in(op);
}

void RingBackend::cancel(Op& op) noexcept {
  if (!op.in_flight()) return;
  if (op.kind == OpKind::watch) {
    remove_watch(static_cast<WatchOp&>(op));
    finish(op, -ECANCELED);
    return;
  }
  RingPort& port = port_of(*op.source);
  if (op.kind == OpKind::send || op.kind == OpKind::connect) {
    cancel_out(port, op);
    return;
  }
  if (mutated("T136") && port.into) disarm(port, Role::receive);
  if (port.in_armed) stop(port, op.kind == OpKind::accept ? Role::accept : Role::receive);
  const bool has_result = op.kind == OpKind::receive_into && port.in_done;
  const bool counts = has_result && op.result > 0 && !mutated("T141");
  const std::int32_t result = counts ? op.result : -ECANCELED;
  if (has_result && op.result == 0) port.keep_end(0);
  (void)end_in(port, result);
}

bool RingBackend::is_armed(const RingPort& port, Role role) noexcept {
  if (role == Role::urgent) return port.urgent_armed;
  return role == Role::out ? port.out_armed : port.in_armed;
}

void RingBackend::disarm(RingPort& port, Role role) noexcept {
  if (role == Role::urgent) {
    port.urgent_armed = false;
  } else if (role == Role::out) {
    port.out_armed = false;
  } else {
    port.in_armed = port.stop_due = port.stopping = port.into = false;
  }
}

void RingBackend::disarm_all(RingPort& port) noexcept {
  for (const Role role : {Role::receive, Role::out, Role::urgent}) disarm(port, role);
}

// An entry that the kernel has not seen yet becomes an empty one.
bool RingBackend::take_back(std::uint64_t token) noexcept {
  for (unsigned at = ring_.first_unsubmitted(); at != ring_.position(); ++at) {
    io_uring_sqe& entry = ring_.entry_at(at);
    if (entry.user_data != token) continue;
    io_uring_prep_nop(&entry);
    entry.user_data = 0;
    return true;
  }
  return false;
}

// When it returns the kernel has nothing of the port in this role any more. What had happened
// before is kept; the completions of other ports stay in the queue.
void RingBackend::stop(RingPort& port, Role role) noexcept {
  const std::uint64_t token = token_of(port, role);
  if (forked() || take_back(token) || mutated("T135")) return disarm(port, role);
  if (owner_ != current_thread()) return drop_ring();
  collect(port);
  bool asked = false;
  // The kernel does not find what it is about to give to a worker thread, and a send goes on there:
  // it is asked again until the completion is there.
  for (int attempt = 0; is_armed(port, role); ++attempt) {
    if (!asked && make_room(1)) {
      io_uring_sqe* entry = ring_.next_entry();
      io_uring_prep_cancel64(entry, token, 0);
      entry->user_data = 0;
      asked = true;
    }
    if (ring_.completions() == ring_.completions_max()) absorb_everything();
    const unsigned before = ring_.completions();
    const int error = enter_ring(before + 1, cancel_patience_ns);
    // That the time is over the kernel says only with an empty queue.
    if (ring_.completions() == before) asked = false;
    const bool again =
        error == 0 || error == -ETIME || error == -EINTR || error == -EBUSY || error == -EAGAIN;
    if (!again || attempt == cancel_attempts_max) return drop_ring();
    collect(port);
  }
}

// ---- Arming ----------------------------------------------------------------------------------

// Prepares what the operations of the port need now.
void RingBackend::arm(RingPort& port) noexcept {
  switch (port.source->kind) {
    case SourceKind::watched:
    case SourceKind::wake:
      return arm_poll(port);
    case SourceKind::stream:
      arm_out(port);
      break;
    case SourceKind::listener:
      break;
  }
  if (port.stop_due) {
    port.stop_due = false;
    if (port.in_armed && !port.stopping) {
      port.stopping = true;
      io_uring_sqe* entry = ring_.next_entry();
      io_uring_prep_cancel64(entry, token_of(port, Role::receive), 0);
      entry->user_data = 0;
    }
  }
  if (port.source->in != nullptr) arm_in(port);
}

// ---- Giving ----------------------------------------------------------------------------------

bool RingBackend::has_something(Source& source) noexcept {
  if (source.interest.generation == 0) return false;
  switch (source.kind) {
    case SourceKind::wake:
      return false;
    case SourceKind::watched:
      return first_pending(source.in, source.turn == turn_ ? all_bits : Ready::invalid) != nullptr;
    case SourceKind::stream:
    case SourceKind::listener:
      break;
  }
  const RingPort& port = port_of(source);
  return (source.in != nullptr && (port.has_kept() || port.in_done || port.has_connections)) ||
         (source.out != nullptr && port.out_done);
}

Op* RingBackend::give(Source& source) {
  switch (source.kind) {
    case SourceKind::wake:
    case SourceKind::watched:
      break;
    case SourceKind::listener:
      return give_connection(port_of(source));
    case SourceKind::stream: {
      RingPort& port = port_of(source);
      Op* op = source.in != nullptr ? give_received(port) : nullptr;
      return op != nullptr ? op : give_out(port);
    }
  }
  return nullptr;
}

}  // namespace evix::detail
