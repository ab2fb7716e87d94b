#include <cerrno>
#include <cstdint>
#include <memory>

#include "backend/contract.hpp"
#include "backend/source_ops.hpp"
#include "backend/watched_sources.hpp"
#include "base/check.hpp"
#include "base/mutation.hpp"
#include "base/ring_queue.hpp"
#include "poll/poller_state.hpp"
#include "sys/calls.hpp"

namespace evix::detail {
namespace {

// Send calls in a row for one op; the rest follows in the next turn. A reader on another core can
// otherwise keep one send alive for as long as it reads.
constexpr int send_attempts_max = 8;

// Connections in a row that are gone again before they are accepted; the rest in the next turn.
constexpr int accept_attempts_max = 64;

// Events that one wait takes from the kernel; the rest comes with the next. 16 KiB of table.
constexpr std::size_t events_max = 1024;

// A short read leaves nothing behind only where none of these was seen (Linux loses the edge of
// urgent data otherwise).
constexpr Ready not_drained_bits = Ready::priority | Ready::read_closed | ends;

constexpr Ready read_bits = Ready::readable | Ready::read_closed | ends;
constexpr Ready write_bits = Ready::writable | ends;

/** The backend over any poll driver: try, wait until ready, try again. */
class ReadinessBackend final : public Backend {
 public:
  ReadinessBackend(std::unique_ptr<PollDriver> driver, Calls& calls, BufferPool& pool);

  BackendKind kind() const noexcept override { return poller_.driver().kind(); }
  std::int64_t now() noexcept override { return calls_.clock_now(); }
  int attach(Source& source) override;
  void detach(Source& source) noexcept override;
  Started start(Op& op) override;
  void cancel(Op& op) noexcept override;
  [[gnu::hot]] std::int64_t try_send(Source& source,
                                     std::span<const std::byte> bytes) noexcept override;
  int change_interest(WatchOp& op, Ready interest) override;
  int wait(std::int64_t timeout_ns) override;
  [[gnu::hot]] Op* next() override;
  bool has_leftovers() const noexcept override {
    return !ready_sources_.empty() || queue_overflowed_ || poller_.has_events();
  }
  int watch_wake(native_handle event) override;
  int after_fork() override;
  int rebuild() override;
  BufferPool& buffers() noexcept override { return pool_; }
  std::vector<std::string> fallbacks() const override;

 private:
  int sync(Source& source) noexcept;
  int stay_registered(Source& source);
  void take_failures();
  Ready wanted(const Source& source) const noexcept;
  Trigger trigger_of(const Source& source) const noexcept;
  void enqueue(Source& source) noexcept {
    if (source.queued) return;
    source.queued = ready_sources_.push(&source, source.queue_position);
    if (!source.queued) queue_overflowed_ = true;
  }
  void find_unqueued() noexcept;
  void dequeue(Source& source) noexcept;
  void note_event(Source& source, Ready ready);
  void keep_unwalked();

  [[gnu::noinline]] Op* next_other();
  [[gnu::noinline]] Op* next_readable(Source& source);
  [[gnu::noinline]] Op* next_unusual(Source& source, ReceiveOp& op, BufferBlock* block,
                                     std::int64_t count);
  Op* next_leftover();
  Op* next_of(Source& source);
  Op* next_of_stream(Source& source);
  Op* next_of_out(Source& source);
  Op* after_receive(Source& source, ReceiveOp& op, BufferBlock* block, std::int64_t count);
  Op* next_of_watched(WatchedSource& source);
  Op* next_of_listener(Source& source);
  // Each tries the system call for a parked op; true: the op has a result.
  bool receive_into(Source& source, ReceiveIntoOp& op);
  bool send(Source& source, SendOp& op);
  bool finish_connect(Source& source, ConnectOp& op);
  void note_received(Source& source, std::size_t count, std::size_t capacity) noexcept;
  void continue_later(Source& source);

  Started start_connect(ConnectOp& op);
  Started start_watch(WatchOp& op);
  Started park_in(Op& op);
  Started park_out(Op& op);
  void unpark(Op& op) noexcept;
  void unpark_watch(WatchOp& op) noexcept;
  void end_watch(WatchedSource& source) noexcept;
  void drop_watched(WatchedSource& source) noexcept;

  PollerState poller_;
  Calls& calls_;
  BufferPool& pool_;
  const std::size_t block_size_ = pool_.block_size();
  const bool edge_;
  Source wake_;
  RingQueue<Source*> ready_sources_;
  std::size_t visits_left_ = 0;  // of ready sources in this turn
  std::uint8_t turn_ = 0;
  bool queue_overflowed_ = false;  // some ready source found no room in ready_sources_
  WatchedSources watched_{poller_};
};

ReadinessBackend::ReadinessBackend(std::unique_ptr<PollDriver> driver, Calls& calls,
                                   BufferPool& pool)
    : poller_(std::move(driver), events_max),
      calls_(calls),
      pool_(pool),
      edge_(poller_.driver().supports_edge()) {
  wake_.kind = SourceKind::wake;
}

// ---- Registration ----------------------------------------------------------------------------

int ReadinessBackend::attach(Source& source) {
  // Registered when the first operation has to wait: an accepted connection that is closed at once
  // never costs a call.
  check(source.interest.generation == 0, "a source was attached twice");
  return source.duplicable ? 0 : poller_.evict(source.handle);
}

void ReadinessBackend::detach(Source& source) noexcept {
  check(source.in == nullptr && source.out == nullptr, "detach with operations in flight");
  dequeue(source);
  if (source.interest.generation != 0) {
    if (source.duplicable) {
      (void)poller_.remove(source.interest);
    } else {
      (void)poller_.forget(source.interest);
    }
    source.interest = {};
  }
  source.registered = source.ready = Ready::none;
}

Ready ReadinessBackend::wanted(const Source& source) const noexcept {
  Ready interest = Ready::none;
  if (source.in != nullptr) interest |= Ready::readable;
  if (source.out != nullptr) interest |= Ready::writable;
  // An edge-triggered interest in writing costs nothing while nobody waits for it, and taking it
  // out and in again would cost two calls for each full socket buffer.
  if (edge_ && source.kind == SourceKind::stream && any(interest)) {
    interest |= source.registered & Ready::writable;
    // Urgent data ends a receive early; only its bit tells that more is there (epoll(7), edges).
    if (source.in != nullptr) interest |= Ready::priority;
  }
  return interest;
}

Trigger ReadinessBackend::trigger_of(const Source& source) const noexcept {
  return edge_ && source.kind == SourceKind::stream ? Trigger::edge : Trigger::level;
}

// Brings the poller's interest up to what the parked operations want. Changes of a registered
// interest are collected by the poller, so a pause within one turn costs no call.
int ReadinessBackend::sync(Source& source) noexcept {
  source.plain = edge_ && source.kind == SourceKind::stream && !source.splits &&
                 source.out == nullptr && source.in != nullptr &&
                 source.in->kind == OpKind::receive && source.in->multishot;
  const Ready interest = wanted(source);
  if (interest == source.registered) return 0;
  if (source.interest.generation == 0) {
    if (!any(interest)) return 0;
    const int error = poller_.add_now(source.handle, interest, trigger_of(source), token_of(source),
                                      source.interest);
    if (error < 0) return error;
    source.ready &= ~Ready::invalid;
  } else if (const int error = poller_.modify(source.interest, interest, trigger_of(source));
             error < 0) {
    return error;
  }
  source.registered = interest;
  return 0;
}

// Before an operation goes on waiting: a batched registration may have been refused, and then
// nothing would ever come. 0, or the negative errno with which the operation ends.
int ReadinessBackend::stay_registered(Source& source) {
  return source.interest.generation != 0 ? 0 : sync(source);
}

// What the poller could not register: each operation finds out when it is tried.
void ReadinessBackend::take_failures() {
  for (const ChangeFailure& failure : poller_.failures()) {
    Source& source = *reinterpret_cast<Source*>(failure.token);
    note_event(source, Ready::invalid);
    if (source.in != nullptr || source.out != nullptr) enqueue(source);
  }
}

// ---- Ready sources ---------------------------------------------------------------------------

void ReadinessBackend::dequeue(Source& source) noexcept {
  if (!source.queued) return;
  source.queued = false;
  ready_sources_.erase(source.queue_position);
}

void ReadinessBackend::continue_later(Source& source) {
  if (source.turn != turn_) {
    source.turn = turn_;
    source.visits = 0;
  }
  if (++source.visits < (mutated("T097") ? 100 : visits_max)) ++visits_left_;
  enqueue(source);
}

// Without memory for a longer queue the rest is found anew, turn by turn, as places become free.
void ReadinessBackend::find_unqueued() noexcept {
  queue_overflowed_ = false;
  poller_.for_each_token([this](std::uint64_t token) {
    Source& source = *reinterpret_cast<Source*>(token);
    if (source.kind == SourceKind::watched) {
      if (first_pending(source.in, all_bits) != nullptr) enqueue(source);
    } else if (any(source.ready) && (source.in != nullptr || source.out != nullptr)) {
      enqueue(source);
    }
  });
}

int ReadinessBackend::wait(std::int64_t timeout_ns) {
  if (poller_.has_events() && !mutated("T021")) keep_unwalked();
  if (queue_overflowed_) find_unqueued();
  watched_.end_rest();
  const bool leftovers = !ready_sources_.empty() || queue_overflowed_;
  const int count = poller_.wait(leftovers ? 0 : timeout_ns);
  ++turn_;
  if (count < 0 && count != -EINTR) return count;
  take_failures();
  visits_left_ = ready_sources_.size();
  return count < 0 ? count : 0;
}

// What a driver's event says about a source; the attempt on it follows.
void ReadinessBackend::note_event(Source& source, Ready ready) {
  if (mutated("T051") && any(ready, Ready::error) && any(ready, Ready::hangup)) return;
  if (mutated("T052")) ready &= ~Ready::hangup;
  if (any(ready, Ready::invalid)) {
    source.interest = {};
    source.registered = Ready::none;
  }
  switch (source.kind) {
    case SourceKind::wake:
      calls_.event_read(source.handle);
      break;
    case SourceKind::watched:
      source.turn = turn_;
      for (auto* op = static_cast<WatchOp*>(source.in); op != nullptr; op = op->next_watch) {
        op->pending = ready & reportable(op->interest);
      }
      break;
    case SourceKind::stream:
      source.ready = edge_ ? source.ready | ready : ready;
      // No event will come: what is there is found by trying, up to the attempt that finds nothing.
      if (any(ready, Ready::invalid)) source.ready |= Ready::readable | Ready::writable;
      break;
    case SourceKind::listener:
      source.ready = ready;
      break;
  }
}

// Events that a stop, an exception or the turn's bound left over; an edge comes only once.
void ReadinessBackend::keep_unwalked() {
  for (;;) {
    const auto [token, ready] = poller_.next_ready();
    if (!any(ready)) return;
    Source& source = *reinterpret_cast<Source*>(token);
    note_event(source, ready);
    if (source.in != nullptr || source.out != nullptr) enqueue(source);
  }
}

// The path of nearly all bytes: an edge, a leased multishot receive, a short read. Whatever is
// different goes to a function of its own, which keeps this one to three saved registers.
Op* ReadinessBackend::next() {
  auto* source = reinterpret_cast<Source*>(poller_.take_plain(Ready::readable));
  if (source == nullptr) [[unlikely]]
    return next_other();
  const bool plain = source->plain && source->ready == Ready::none;
  BufferBlock* block = plain ? pool_.acquire_at_hand() : nullptr;
  if (block == nullptr) [[unlikely]]
    return next_readable(*source);
  const std::int64_t count = calls_.receive(source->handle, block->bytes(), block_size_);
  auto& op = static_cast<ReceiveOp&>(*source->in);
  // One comparison for an error, the end of the stream and a full buffer.
  if (static_cast<std::uint64_t>(count - 1) >= block_size_ - 1) [[unlikely]] {
    return next_unusual(*source, op, block, count);
  }
  op.result = static_cast<std::int32_t>(count);
  op.block = block;
  return &op;
}

// As next(), for any event.
Op* ReadinessBackend::next_other() {
  for (;;) {
    const auto [token, ready] = poller_.next_ready();
    if (!any(ready)) return next_leftover();
    Source& source = *reinterpret_cast<Source*>(token);
    note_event(source, ready);
    if (Op* op = next_of(source)) return op;
  }
}

// An event that was taken turned out to be for a source that is not plain.
Op* ReadinessBackend::next_readable(Source& source) {
  note_event(source, Ready::readable);
  Op* op = next_of(source);
  return op != nullptr ? op : next_other();
}

// A receive of the short path gave something else than a short read.
Op* ReadinessBackend::next_unusual(Source& source, ReceiveOp& op, BufferBlock* block,
                                   std::int64_t count) {
  source.ready |= Ready::readable;
  Op* finished = after_receive(source, op, block, count);
  return finished != nullptr ? finished : next_other();
}

Op* ReadinessBackend::next_leftover() {
  while (visits_left_ > 0) {
    --visits_left_;
    Source* source = ready_sources_.pop();
    if (source == nullptr) break;
    source->queued = false;
    if (Op* op = next_of(*source)) return op;
  }
  return nullptr;
}

Op* ReadinessBackend::next_of(Source& source) {
  switch (source.kind) {
    case SourceKind::stream:
      break;
    case SourceKind::listener:
      return next_of_listener(source);
    case SourceKind::watched:
      return next_of_watched(static_cast<WatchedSource&>(source));
    case SourceKind::wake:
      return nullptr;
  }
  return next_of_stream(source);
}

// What follows a receive into `block`: data, the end of the operation, more to do for this source,
// or waiting.
Op* ReadinessBackend::after_receive(Source& source, ReceiveOp& op, BufferBlock* block,
                                    std::int64_t count) {
  while (count == -EINTR) {
    count = calls_.receive(source.handle, block->bytes(), pool_.block_size());
  }
  if (count > 0) {
    op.block = block;
    note_received(source, static_cast<std::size_t>(count), pool_.block_size());
  } else if (block != nullptr) {
    BufferPool::release(block);
  }
  if (count == -EAGAIN) {
    source.ready &= ~Ready::readable;
    count = stay_registered(source);
    if (count == 0) return next_of_out(source);
  }
  op.result = static_cast<std::int32_t>(count);
  if (count <= 0 || !op.multishot) unpark(op);
  const bool more = source.in != nullptr && any(source.ready, Ready::readable);
  const bool out_too = source.out != nullptr && any(source.ready, write_bits);
  if (more || out_too) continue_later(source);
  return &op;
}

Op* ReadinessBackend::next_of_stream(Source& source) {
  if (source.in == nullptr || !any(source.ready, read_bits)) return next_of_out(source);
  if (source.in->kind == OpKind::receive) {
    auto& op = static_cast<ReceiveOp&>(*source.in);
    BufferBlock* block = pool_.acquire();
    const std::int64_t count =
        block == nullptr ? -ENOMEM
                         : calls_.receive(source.handle, block->bytes(), pool_.block_size());
    return after_receive(source, op, block, count);
  }
  auto& op = static_cast<ReceiveIntoOp&>(*source.in);
  if (!receive_into(source, op)) return next_of_out(source);
  if (source.out != nullptr && any(source.ready, write_bits)) continue_later(source);
  return &op;
}

Op* ReadinessBackend::next_of_out(Source& source) {
  Op* out = source.out;
  const Ready awaited = mutated("T056") ? Ready::writable : write_bits;
  if (out == nullptr || !any(source.ready, awaited)) return nullptr;
  const bool finished = out->kind == OpKind::connect
                            ? finish_connect(source, static_cast<ConnectOp&>(*out))
                            : send(source, static_cast<SendOp&>(*out));
  if (!finished) return nullptr;
  if (source.out != nullptr) continue_later(source);
  return out;
}

Op* ReadinessBackend::next_of_listener(Source& source) {
  Op* op = source.in;
  if (op == nullptr) return nullptr;
  int result = 0;
  int attempts_left = accept_attempts_max;
  do {
    result = calls_.accept(source.handle);
    // The connection is gone, the next one may be there (accept(2), "Error handling").
  } while ((result == -EINTR || result == -ECONNABORTED || result == -EPROTO) &&
           --attempts_left > 0);
  if (attempts_left == 0) {
    continue_later(source);
    return nullptr;
  }
  if (result == -EAGAIN) {
    result = stay_registered(source);
    if (result == 0) return nullptr;
  }
  op->result = result;
  if (result < 0 || !op->multishot) {
    unpark(*op);
  } else {
    continue_later(source);
  }
  return op;
}

Op* ReadinessBackend::next_of_watched(WatchedSource& source) {
  // What a stop or an exception left over is old: level-triggered, it has come again if it is true.
  const Ready valid = source.turn == turn_ ? all_bits : Ready::invalid;
  WatchOp* op = first_pending(source.in, valid);
  if (op == nullptr) return nullptr;
  op->ready = op->pending & valid;
  op->pending = Ready::none;
  if (mutated("T003") && any(op->ready, Ready::writable)) {
    op->pending = op->ready & Ready::readable;
    op->ready &= ~op->pending;
  }
  op->result = 0;
  if (first_pending(op, valid) != nullptr) {
    ++visits_left_;
    enqueue(source);
  }
  if (any(op->ready, Ready::invalid)) {
    unpark(*op);
  } else if (!op->multishot) {
    op->state = OpState::idle;
    if (WatchedSource* unwatched = watched_.remove(*op)) end_watch(*unwatched);
  }
  return op;
}

// ---- Attempts --------------------------------------------------------------------------------

void ReadinessBackend::note_received(Source& source, std::size_t count,
                                     std::size_t capacity) noexcept {
  const bool drained = count < capacity && !source.splits && !any(source.ready, not_drained_bits);
  const bool comes_again = !edge_ && !any(source.ready, Ready::invalid);
  if (comes_again || drained) source.ready &= ~Ready::readable;
}

bool ReadinessBackend::receive_into(Source& source, ReceiveIntoOp& op) {
  const std::size_t capacity = op.size < transfer_size_max ? op.size : transfer_size_max;
  std::int64_t count = 0;
  do {
    count = calls_.receive(source.handle, op.bytes, capacity);
  } while (count == -EINTR);
  if (mutated("T053") && any(source.ready, Ready::read_closed)) count = 0;
  if (count == -EAGAIN) {
    source.ready &= ~Ready::readable;
    count = stay_registered(source);
    if (count == 0) return false;
  }
  op.result = static_cast<std::int32_t>(count);
  if (count > 0) note_received(source, static_cast<std::size_t>(count), capacity);
  unpark(op);
  return true;
}

bool ReadinessBackend::send(Source& source, SendOp& op) {
  for (int attempt = 0; op.done < op.size; ++attempt) {
    if (attempt == send_attempts_max) {
      continue_later(source);
      return false;
    }
    const std::size_t rest = op.size - op.done;
    const std::int64_t count = calls_.send(source.handle, op.bytes + op.done,
                                           rest < transfer_size_max ? rest : transfer_size_max);
    if (count == -EINTR) continue;
    if (count == -EAGAIN || (mutated("T057") && count < 0)) {
      source.ready &= ~Ready::writable;
      const int refused = stay_registered(source);
      if (refused == 0) return false;
      op.result = refused;
      unpark(op);
      return true;
    }
    if (count < 0) {
      op.result = static_cast<std::int32_t>(count);
      unpark(op);
      return true;
    }
    op.done += static_cast<std::size_t>(count);
  }
  op.result = 0;
  unpark(op);
  return true;
}

bool ReadinessBackend::finish_connect(Source& source, ConnectOp& op) {
  int result = connect_result(calls_, source.handle, source.ready);
  if (result == not_yet) {
    source.ready &= ~Ready::writable;
    result = stay_registered(source);
    if (result == 0) return false;
  }
  op.result = result;
  unpark(op);
  return true;
}

std::int64_t ReadinessBackend::try_send(Source& source, std::span<const std::byte> bytes) noexcept {
  if (source.out != nullptr) return -EAGAIN;
  std::size_t size = bytes.size() < transfer_size_max ? bytes.size() : transfer_size_max;
  if (mutated("T070")) size = static_cast<std::uint32_t>(bytes.size());
  return calls_.send(source.handle, bytes.data(), size);
}

// ---- Start and cancel ------------------------------------------------------------------------

Started ReadinessBackend::start(Op& op) {
  check(!op.in_flight(), "operation started twice");
  switch (op.kind) {
    case OpKind::watch:
      return start_watch(static_cast<WatchOp&>(op));
    case OpKind::connect:
      return start_connect(static_cast<ConnectOp&>(op));
    case OpKind::accept:
    case OpKind::receive:
    case OpKind::receive_into:
      return park_in(op);
    case OpKind::send:
      break;
  }
  auto& send_op = static_cast<SendOp&>(op);
  Source& source = *op.source;
  send_op.done = 0;
  if (source.out == nullptr) {
    std::int64_t count = 0;
    do {
      count = try_send(source, {send_op.bytes, send_op.size});
    } while (count == -EINTR);
    if (count < 0 && count != -EAGAIN) {
      finish(op, static_cast<std::int32_t>(count));
      return Started::done;
    }
    if (count > 0) send_op.done = static_cast<std::size_t>(count);
    if (send_op.done == send_op.size) {
      finish(op, 0);
      return Started::done;
    }
    if (count == -EAGAIN) source.ready &= ~Ready::writable;
  }
  const Started started = park_out(op);
  // Only EAGAIN promises an edge; one call takes 2 GiB at most, and a table of calls may take less.
  if (edge_ && started == Started::in_flight && send_op.done > 0) {
    source.ready |= Ready::writable;
    enqueue(source);
  }
  return started;
}

Started ReadinessBackend::start_connect(ConnectOp& op) {
  const int result = connect_now(calls_, op);
  // Already in progress: an interrupted call has gone on without us (connect(2), EINTR).
  if (result != -EINPROGRESS && result != -EALREADY) {
    finish(op, result);
    return Started::done;
  }
  return park_out(op);
}

Started ReadinessBackend::park_in(Op& op) {
  Source& source = *op.source;
  check(source.in == nullptr, "two readers on one stream");
  source.in = &op;
  op.state = OpState::in_flight;
  if (const int error = sync(source); error < 0) {
    source.in = nullptr;
    finish(op, error);
    return Started::done;
  }
  if (any(source.ready, read_bits)) enqueue(source);
  return Started::in_flight;
}

Started ReadinessBackend::park_out(Op& op) {
  Source& source = *op.source;
  const bool first = source.out == nullptr;
  push_out(source, op);
  if (!first) return Started::in_flight;
  if (const int error = sync(source); error < 0) {
    source.out = nullptr;
    finish(op, error);
    return Started::done;
  }
  return Started::in_flight;
}

void ReadinessBackend::cancel(Op& op) noexcept {
  if (!op.in_flight()) return;
  unpark(op);
  op.result = -ECANCELED;
}

void ReadinessBackend::unpark(Op& op) noexcept {
  op.state = OpState::idle;
  if (op.kind == OpKind::watch) {
    unpark_watch(static_cast<WatchOp&>(op));
    return;
  }
  Source& source = *op.source;
  if (op.kind == OpKind::send) {
    remove_send(static_cast<SendOp&>(op));
  } else if (op.kind == OpKind::connect) {
    source.out = nullptr;
  } else {
    source.in = nullptr;
  }
  // Taking an interest out cannot fail in a way that matters: a stale event finds no operation.
  (void)sync(source);
}

// ---- Watched descriptors ---------------------------------------------------------------------

Started ReadinessBackend::start_watch(WatchOp& op) {
  if (const int error = watched_.add(op); error < 0) {
    finish(op, error);
    return Started::done;
  }
  op.state = OpState::in_flight;
  if (const int error = watched_.sync(static_cast<WatchedSource&>(*op.source)); error < 0) {
    unpark(op);
    finish(op, error);
    return Started::done;
  }
  return Started::in_flight;
}

// A one-shot has fired. Only an epoll set costs a call to enter and to leave; a program's own
// backend expects to be told at once.
void ReadinessBackend::end_watch(WatchedSource& source) noexcept {
  if (kind() == BackendKind::epoll) {
    watched_.rest(source);
  } else {
    drop_watched(source);
  }
}

void ReadinessBackend::unpark_watch(WatchOp& op) noexcept {
  if (WatchedSource* unused = watched_.remove(op)) drop_watched(*unused);
}

void ReadinessBackend::drop_watched(WatchedSource& source) noexcept {
  dequeue(source);
  watched_.drop(source);
}

int ReadinessBackend::change_interest(WatchOp& op, Ready interest) {
  op.interest = interest;
  op.pending &= reportable(interest);
  return watched_.sync(static_cast<WatchedSource&>(*op.source));
}

// ---- The rest --------------------------------------------------------------------------------

int ReadinessBackend::watch_wake(native_handle event) {
  if (wake_.interest.generation != 0) (void)poller_.remove(wake_.interest);
  wake_.interest = {};
  wake_.handle = event;
  if (const int error = poller_.evict(event); error < 0) return error;
  return poller_.add_now(event, Ready::readable, Trigger::level, token_of(wake_), wake_.interest);
}

int ReadinessBackend::after_fork() {
  const int error = poller_.after_fork();
  if (error == 0) take_failures();
  return error;
}

int ReadinessBackend::rebuild() {
  const int error = poller_.rebuild();
  if (error == 0) take_failures();
  return error;
}

std::vector<std::string> ReadinessBackend::fallbacks() const {
  if (kind() != BackendKind::epoll || poller_.driver().waits_nanoseconds()) return {};
  return {"epoll_pwait2 is refused: waits are rounded up to milliseconds by epoll_wait"};
}

}  // namespace

std::unique_ptr<Backend> make_readiness_backend(std::unique_ptr<PollDriver> driver, Calls& calls,
                                                BufferPool& pool) {
  auto backend = std::make_unique<ReadinessBackend>(std::move(driver), calls, pool);
  // One look shows whether this kernel waits in nanoseconds, so that the report can say it. A
  // program's own backend is not called before its loop runs.
  if (backend->kind() == BackendKind::epoll) (void)backend->wait(0);
  return backend;
}

}  // namespace evix::detail
