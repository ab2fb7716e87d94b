#include "backend/io_uring.hpp"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/mutation.hpp"
#include "sys/descriptor.hpp"
#include "sys/static_tls.hpp"

namespace evix::detail {
namespace {

// Calls of one run after which the ring's descriptor is registered: two calls that pay off slowly,
// and each thread has room for 16 rings only.
constexpr unsigned enters_before_registering = 64;

// What arm() needs at most for one port: a cancel, a receive, a poll for urgent data, a send.
constexpr unsigned entries_per_port = 4;

// Listeners take what has come: an accepted connection is cheap.
constexpr std::uint8_t accepts_per_turn_max = 64;

// The innermost run of this thread over a ring; the others through outer_run_.
EVIX_STATIC_TLS constinit thread_local RingBackend* running_here = nullptr;

// With the first run, so that the handler comes before the destructors of what was made before it.
constinit std::atomic<bool> flushing_at_exit = false;

}  // namespace

// ---- The ring's life -------------------------------------------------------------------------

RingBackend::RingBackend(Calls& calls, BufferPool& pool)
    : calls_(calls), pool_(pool), ring_(calls), buffers_(calls, pool) {
  wake_.kind = SourceKind::wake;
}

RingBackend::~RingBackend() {
  leave_run();
  if (forked()) {
    ring_.abandon();
    abandon_lingering();
  } else {
    end_all_lingering();
    ring_.close();
  }
  buffers_.close(forked());
}

int RingBackend::open() {
  if (const int error = ring_.open(); error < 0) {
    why_ = ring_.why();
    return error;
  }
  if (const int error = buffers_.open(ring_); error < 0) {
    if (error == -EINVAL) why_ = "the kernel refuses IORING_REGISTER_PBUF_RING (Linux 5.19)";
    ring_.close();
    return error;
  }
  owner_ = ring_.is_disabled() ? nullptr : current_thread();
  return 0;
}

// A ring belongs to the thread that enables it (io_uring_setup(2), SINGLE_ISSUER).
int RingBackend::bind_to_this_thread() {
  if (owner_ != nullptr && owner_ != current_thread() && !mutated("T144")) drop_ring();
  if (!ring_.is_open()) {
    if (const int error = open(); error < 0) return error;
  }
  if (const int error = ring_.enable(); error < 0) return error;
  owner_ = current_thread();
  return 0;
}

// What the kernel has not finished is as if it had never been started; the next ring starts it
// again. Closing a ring ends what is in flight: nothing is written to our memory any more, for that
// is done by the thread that owns the ring, in a call. The descriptors are let go of a little
// later.
void RingBackend::drop_ring() noexcept {
  if (dropping_) return;
  dropping_ = true;
  absorb_everything();
  keep_unsent_batches();
  ring_.close();
  buffers_.close(false);
  owner_ = nullptr;
  ports_.for_each([this](RingPort& port) {
    disarm_all(port);
    list(port);
  });
  dropping_ = false;
}

int RingBackend::after_fork() {
  ring_.abandon();
  buffers_.close(true);
  owner_ = nullptr;
  leave_run();
  abandon_lingering();
  for (const Connection& connection : connections_) (void)calls_.close(connection.handle);
  connections_.clear();
  // What the parent has received is the parent's.
  ports_.for_each([this](RingPort& port) {
    disarm_all(port);
    port.has_connections = port.in_done = false;
    drop_kept(port);
    port.unsent = port.batched = false;
    list(port);
  });
  unsent_.clear();
  batches_.reset();
  if (const int error = open(); error < 0) return error;
  fork_generation_ = fork_generation();
  return 0;
}

int RingBackend::rebuild() {
  drop_ring();
  return open();
}

void RingBackend::begin_run() noexcept {
  collecting_ = true;
  outer_run_ = std::exchange(running_here, this);
  if (flushing_at_exit.load(std::memory_order_relaxed)) [[likely]]
    return;
  if (!flushing_at_exit.exchange(true)) (void)std::atexit(&RingBackend::flush_at_exit);
}

// Runs of several loops in one thread are nested and end in turn, except where one is destroyed.
void RingBackend::leave_run() noexcept {
  if (!std::exchange(collecting_, false)) return;
  RingBackend** run = &running_here;
  while (*run != nullptr && *run != this) run = &(*run)->outer_run_;
  if (*run == this) *run = outer_run_;
}

// exit(3) in a callback: what the program sent in this turn goes out, as it would have done at once
// elsewhere; nothing else is begun. Only what this thread's loops have: others go on running.
void RingBackend::flush_at_exit() noexcept {
  for (RingBackend* run = running_here; run != nullptr; run = run->outer_run_) {
    if (run->forked() || run->owner_ != current_thread()) continue;
    run->arm_sends();
    (void)run->hand_over();
    run->ports_.for_each([run](RingPort& port) {
      if (port.unsent) reset_when_closed(run->calls_, port.source->handle);
    });
  }
}

void RingBackend::end_run() noexcept {
  leave_run();
  if (forked() || !ring_.is_open() || owner_ != current_thread()) return;
  enters_ = 0;
  if (has_batches()) (void)hand_over();
  ring_.unregister_self();
}

// ---- Waiting ---------------------------------------------------------------------------------

int RingBackend::wait(std::int64_t timeout_ns) {
  if (lingering_.size() != 0) [[unlikely]]
    timeout_ns = limit_lingering(timeout_ns);  // may drop the ring
  if (owner_ != current_thread() || !ring_.is_open()) {
    if (const int error = bind_to_this_thread(); error < 0) return error;
  }
  if (!collecting_) begin_run();
  if (ring_.completions() != 0) renew_leftovers();
  ++turn_;
  if (queue_overflowed_) find_unqueued();
  feed_starved();
  arm_listed();
  const int error = enter(has_leftovers() ? 0 : timeout_ns);
  visits_left_ = ready_sources_.size();
  return error;
}

int RingBackend::enter(std::int64_t timeout_ns) {
  for (;;) {
    if (timeout_ns == 0 && !ring_.has_work()) return 0;
    const unsigned before = ring_.unsubmitted();
    const int error = enter_ring(timeout_ns == 0 ? 0 : 1, timeout_ns);
    if (++enters_ == enters_before_registering) ring_.register_self();
    switch (error) {
      case 0:
        break;
      case -ETIME:
      case -EBUSY:  // the completions have to be taken first
      case -EAGAIN:
        return 0;
      case -EEXIST:  // the thread that owned the ring is gone, and this one has its address
        if (mutated("T144")) return error;
        drop_ring();
        if (const int failed = bind_to_this_thread(); failed < 0) return failed;
        arm_listed();
        continue;
      default:
        return error;
    }
    // The rest of what was handed over, when the kernel stopped at an entry.
    if (ring_.unsubmitted() == 0 || ring_.unsubmitted() == before || mutated("T148")) return 0;
  }
}

int RingBackend::enter_ring(unsigned completion_count, std::int64_t timeout_ns) noexcept {
  const int error = ring_.enter(completion_count, timeout_ns);
  if (has_batches()) settle_batches();
  return error;
}

// What is prepared goes to the kernel now. 0 or -errno.
int RingBackend::hand_over() noexcept {
  while (ring_.unsubmitted() != 0) {
    const unsigned before = ring_.unsubmitted();
    const int error = enter_ring(0, 0);
    if (error < 0 && error != -EINTR) return error;
    if (error == 0 && ring_.unsubmitted() == before) return -EAGAIN;
  }
  return 0;
}

bool RingBackend::make_room(unsigned entries) noexcept {
  return ring_.room() >= entries || (hand_over() == 0 && ring_.room() >= entries);
}

void RingBackend::arm_listed() noexcept {
  if (list_overflowed_) arm_all();
  while (!pending_.empty()) {
    if (!make_room(entries_per_port)) return;
    if (RingPort* port = pop_listed(pending_, RingPort::Listed::pending)) arm(*port);
  }
}

// The sends alone of what is listed; the rest is not looked for any more.
void RingBackend::arm_sends() noexcept {
  while (!pending_.empty() && make_room(entries_per_port)) {
    RingPort* port = pop_listed(pending_, RingPort::Listed::pending);
    if (port != nullptr && port->source->kind == SourceKind::stream) arm_out(*port);
  }
}

// Some port found no place in a list.
void RingBackend::arm_all() noexcept {
  list_overflowed_ = false;
  ports_.for_each([this](RingPort& port) {
    if (port.listed != RingPort::Listed::no) return;
    if (make_room(entries_per_port)) {
      arm(port);
    } else {
      list_overflowed_ = true;
    }
  });
}

// As many as there are buffers for, in the order in which they found none; more would come back
// at once.
void RingBackend::feed_starved() noexcept {
  if (starved_.empty() && buffers_.available() == 0) return;  // nobody has received yet
  const bool has_memory = buffers_.refill(kept_count_);
  unsigned left = buffers_.available();
  const bool hopeless = !has_memory && left == 0 && kept_count_ == 0;
  for (std::size_t count = starved_.size(); count > 0 && (left > 0 || hopeless); --count) {
    RingPort* port = pop_listed(starved_, RingPort::Listed::starved);
    if (port == nullptr) continue;
    if (hopeless) {
      port->keep_end(-ENOMEM);
      enqueue(*port->source);
    } else {
      --left;
      list(*port);
    }
  }
}

// Completions that a stop, an exception or the turn's bound left over. What a poll said then may
// not be true any more, and it is asked for again before all others.
void RingBackend::renew_leftovers() noexcept {
  const unsigned count = ring_.completions();
  for (unsigned index = 0; index < count; ++index) {
    io_uring_cqe& completion = ring_.completion(index);
    if (role_of(completion.user_data) != Role::poll) continue;
    RingPort* port = find(completion.user_data);
    if (port == nullptr || port->source->kind != SourceKind::watched) continue;
    if (completion.res < 0 || !make_room(entries_per_port)) continue;
    if ((completion.flags & IORING_CQE_F_MORE) != 0) {
      port->stop_due = true;
    } else {
      disarm(*port, Role::poll);
    }
    completion.user_data = 0;
    arm(*port);
  }
}

// ---- Completions -----------------------------------------------------------------------------

// The path of nearly all bytes: a part of a multishot receive for a source that has nothing kept.
Op* RingBackend::next() {
  while (ring_.completions() != 0) {
    const io_uring_cqe completion = ring_.completion(0);
    ring_.pop_completion();
    constexpr unsigned plain_flags = IORING_CQE_F_BUFFER | IORING_CQE_F_MORE;
    constexpr unsigned other_flags = 0xffffU & ~plain_flags & ~unsigned{IORING_CQE_F_SOCK_NONEMPTY};
    const bool plain =
        (completion.flags & (plain_flags | other_flags)) == plain_flags && completion.res > 0;
    RingPort* port = plain ? find(completion.user_data) : nullptr;
    if (port == nullptr || !port->source->plain || !visit(*port->source)) [[unlikely]] {
      if (Op* op = take(completion)) return op;
      continue;
    }
    multishot_seen_ = true;
    auto& op = static_cast<ReceiveOp&>(*port->source->in);
    op.block = buffers_.take(completion.flags >> IORING_CQE_BUFFER_SHIFT);
    op.result = completion.res;
    return &op;
  }
  return next_leftover();
}

// Any other completion. What it brings is given now, or kept when its source has had its share.
Op* RingBackend::take(const io_uring_cqe& completion) {
  Source* source = absorb(completion);
  if (source == nullptr) return nullptr;
  if (source->kind == SourceKind::watched) return give_watched(*source);
  Op* op = nullptr;
  if (visit(*source)) {
    op = give(*source);
  } else {
    throttle(port_of(*source));
  }
  if (has_something(*source)) enqueue(*source);
  return op;
}

Source* RingBackend::absorb(const io_uring_cqe& completion) noexcept {
  if (completion.user_data == 0) return nullptr;
  RingPort* port = find(completion.user_data);
  if (port == nullptr) {
    absorb_stale(completion);
    return nullptr;
  }
  switch (role_of(completion.user_data)) {
    case Role::receive:
      return absorb_receive(*port, completion);
    case Role::accept:
      return absorb_accept(*port, completion);
    case Role::out:
      return absorb_out(*port, completion.res);
    case Role::batch:
      return absorb_batch(*port, completion.res);
    case Role::poll:
      return absorb_poll(*port, completion.res, (completion.flags & IORING_CQE_F_MORE) != 0);
    case Role::urgent:
      return absorb_urgent(*port, completion.res);
    case Role::ignored:
      break;
  }
  return nullptr;
}

// Of a port that is gone: what it brings goes back.
void RingBackend::absorb_stale(const io_uring_cqe& completion) noexcept {
  if ((completion.flags & IORING_CQE_F_BUFFER) != 0) {
    BufferPool::release(buffers_.take(completion.flags >> IORING_CQE_BUFFER_SHIFT));
  }
  if (role_of(completion.user_data) == Role::accept && completion.res >= 0) {
    refuse_connection(completion.res);
  }
}

// Takes the port's completions out of the queue, where the others stay.
void RingBackend::collect(const RingPort& port) noexcept {
  for (unsigned index = 0; index < ring_.completions(); ++index) {
    io_uring_cqe& completion = ring_.completion(index);
    if (find(completion.user_data) != &port) continue;
    Source* source = absorb(completion);
    completion.user_data = 0;
    if (source != nullptr) enqueue(*source);
  }
}

// Makes room in a queue that is full of completions of others.
void RingBackend::absorb_everything() noexcept {
  while (ring_.completions() != 0) {
    const io_uring_cqe completion = ring_.completion(0);
    ring_.pop_completion();
    if (Source* source = absorb(completion)) enqueue(*source);
  }
}

Op* RingBackend::next_leftover() {
  while (visits_left_ > 0) {
    --visits_left_;
    Source* source = ready_sources_.pop();
    if (source == nullptr) break;
    source->queued = false;
    Op* op = nullptr;
    if (source->kind == SourceKind::watched) {
      op = give_watched(*source);  // may be the end of it
    } else {
      op = visit(*source) ? give(*source) : nullptr;
      if (has_something(*source)) {
        if (op != nullptr) ++visits_left_;
        enqueue(*source);
      }
    }
    if (op != nullptr) return op;
  }
  return nullptr;
}

// Whether the source may give one more result in this turn.
bool RingBackend::visit(Source& source) noexcept {
  if (source.turn != turn_) {
    source.turn = turn_;
    source.visits = 0;
  }
  const std::uint8_t most = source.kind == SourceKind::listener ? accepts_per_turn_max : visits_max;
  if (source.visits == most) return false;
  ++source.visits;
  return true;
}

std::unique_ptr<Backend> make_io_uring_backend(Calls& calls, BufferPool& pool, int& error,
                                               std::string& why) {
  auto backend = std::make_unique<RingBackend>(calls, pool);
  error = backend->open();
  why = backend->why();
  if (error < 0) return nullptr;
  return backend;
}

}  // namespace evix::detail
