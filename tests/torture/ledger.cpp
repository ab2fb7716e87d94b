#include "torture/ledger.hpp"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>

#include "loop/core.hpp"
#include "torture/session.hpp"

namespace evix::test {
namespace {

using detail::Op;
using detail::OpKind;
using detail::Started;

// What is idle so long waits for time alone, and the loop's clock is put forward to where its wait
// ends: a test of five seconds takes milliseconds. Other threads of the test get more.
constexpr std::int64_t slice_ns = 4'000'000;
constexpr std::int64_t slice_with_threads_ns = 25'000'000;
// After the fault a test may wait for what cannot come: its patience is over sooner.
constexpr std::int64_t ahead_after_fault_ns = 1'000'000'000;
// Without a limit and without anything in sight the test waits for what the fault has prevented.
constexpr int idle_waits_max = 50;
constexpr int failed_waits_max = 2000;
constexpr int suspicious_waits = 4;
constexpr int fruitless_max = 3000;

std::atomic<std::int64_t> clock_ahead_ns = 0;

const char* name_of(OpKind kind) {
  constexpr const char* names[] = {"watch", "accept", "connect", "receive", "receive_into", "send"};
  return names[static_cast<std::size_t>(kind)];
}

bool injected() {
  Session* const session = Session::current();
  return session != nullptr && session->report().injected;
}

[[noreturn]] void violation(const std::string& what) { Session::current()->violation(what); }

bool judged() {
  Session* const session = Session::current();
  if (session == nullptr || !session->active()) return false;
  session->step();
  return true;
}

}  // namespace

LedgerBackend::~LedgerBackend() {
  if (!judged() || in_flight_.empty()) return;
  violation(std::string("the loop ended while an operation was in flight: ") +
            name_of(in_flight_.begin()->second.kind));
}

std::int64_t LedgerBackend::now() noexcept {
  return inner_->now() + clock_ahead_ns.load(std::memory_order_relaxed);
}

int LedgerBackend::attach(detail::Source& source) {
  if (judged()) Session::current()->loop_used();
  return inner_->attach(source);
}

void LedgerBackend::detach(detail::Source& source) noexcept {
  if (judged()) {
    for (const auto& [op, entry] : in_flight_) {
      if (entry.source != &source) continue;
      violation(std::string("a descriptor was detached with this in flight: ") +
                name_of(entry.kind));
    }
  }
  inner_->detach(source);
}

Started LedgerBackend::start(Op& op) {
  if (!judged()) return inner_->start(op);
  Session::current()->loop_used();
  if (in_flight_.contains(&op)) {
    violation(std::string("an operation in flight was started: ") + name_of(op.kind));
  }
  const Started started = inner_->start(op);
  if ((started == Started::in_flight) != op.in_flight()) {
    violation(std::string("start() and the operation's state differ: ") + name_of(op.kind));
  }
  if (started == Started::done) return started;
  const native_handle handle =
      op.kind == OpKind::watch ? static_cast<detail::WatchOp&>(op).handle : op.source->handle;
  in_flight_[&op] = {op.kind, op.source, handle};
  return started;
}

void LedgerBackend::ended(Op& op, const char* how) {
  if (in_flight_.erase(&op) == 0) {
    violation(std::string(name_of(op.kind)) + " ended twice, or was never started: " + how);
  }
}

void LedgerBackend::cancel(Op& op) noexcept {
  const bool in_flight = op.in_flight();
  if (judged() && in_flight) ended(op, "cancel()");
  inner_->cancel(op);
  if (!judged() || !in_flight) return;
  if (op.in_flight()) violation(std::string("still in flight after cancel(): ") + name_of(op.kind));
  if (op.kind == OpKind::accept && op.result >= 0 && inner_->kind() != BackendKind::sim) {
    descriptor_made(op.result);
  }
}

Op* LedgerBackend::next() {
  Op* const op = inner_->next();
  if (op == nullptr || !judged()) return op;
  fruitless_ = 0;
  const auto found = in_flight_.find(op);
  if (found == in_flight_.end()) {
    violation(std::string("next() gave what was not in flight: ") + name_of(op->kind));
  }
  found->second.ready_waits = 0;
  if (op->in_flight() && !op->multishot) {
    violation(std::string("next() gave it and it stays in flight: ") + name_of(op->kind));
  }
  if (op->in_flight() && op->result < 0) {
    violation(std::string("it failed and stays in flight: ") + name_of(op->kind));
  }
  if (op->kind == OpKind::accept && op->result >= 0 && inner_->kind() != BackendKind::sim) {
    descriptor_made(op->result);
  }
  if (!op->in_flight()) ended(*op, "next()");
  return op;
}

bool LedgerBackend::has_leftovers() const noexcept {
  said_leftovers_ = inner_->has_leftovers();
  return said_leftovers_;
}

// At most a slice of the time that is asked for.
int LedgerBackend::wait_a_while(std::int64_t timeout_ns, std::int64_t& passed_ns) {
  const std::int64_t longest_ns = has_other_threads() ? slice_with_threads_ns : slice_ns;
  const bool cut = timeout_ns < 0 || timeout_ns > longest_ns;
  const bool simulated = inner_->kind() == BackendKind::sim;
  if (!cut || (simulated && timeout_ns >= 0)) {
    const int error = inner_->wait(timeout_ns);
    passed_ns = timeout_ns;
    return error;
  }
  const std::int64_t begin_ns = true_time_ns();
  // Simulated time passes at once, and what other threads do needs the real one.
  if (simulated) poll(nullptr, 0, static_cast<int>(longest_ns / 1'000'000));
  const int error = inner_->wait(longest_ns);
  passed_ns = true_time_ns() - begin_ns;
  if (error == 0 && passed_ns >= longest_ns && timeout_ns > passed_ns) {
    const std::int64_t least_ns = injected() ? ahead_after_fault_ns : 0;
    clock_ahead_ns.fetch_add(std::max(timeout_ns - passed_ns, least_ns), std::memory_order_relaxed);
    passed_ns = timeout_ns;
  }
  return error;
}

int LedgerBackend::wait(std::int64_t timeout_ns) {
  if (!judged()) return inner_->wait(timeout_ns);
  Session::current()->loop_used();
  const bool leftovers = said_leftovers_ && timeout_ns == 0;
  if (timeout_ns == 0) {
    look_whether_it_spins(leftovers, false);
    return inner_->wait(0);
  }
  if (failed_waits_ > 0) {
    if (++failed_waits_ > failed_waits_max) {
      Session::current()->leave_waiting("the test does not look at what run() returns");
    }
    return -EIO;
  }
  std::int64_t passed_ns = 0;
  const std::int64_t begin_ns = true_time_ns();
  const int error = wait_a_while(timeout_ns, passed_ns);
  const bool idle = error == 0 && true_time_ns() - begin_ns >= slice_ns;
  look_whether_it_spins(error == 0 && !idle && inner_->kind() != BackendKind::sim, idle);
  if (!idle) {
    idle_waits_ = 0;
    return error;
  }
  look_idle();
  look_for_lost_handles();
  if (timeout_ns < 0 && injected() && ++idle_waits_ > idle_waits_max) {
    failed_waits_ = 1;
    return -EIO;
  }
  return 0;
}

// The kernel says that an operation could go on, and yet the wait has slept, again and again.
void LedgerBackend::look_idle() {
  if (inner_->kind() == BackendKind::sim || Session::current()->fault().lies) return;
  for (auto& [op, entry] : in_flight_) {
    if (entry.kind == OpKind::send && entry.source->out != op) continue;
    short bits = POLLIN;
    if (entry.kind == OpKind::send || entry.kind == OpKind::connect) bits = POLLOUT;
    if (entry.kind == OpKind::watch) {
      bits = static_cast<short>(static_cast<detail::WatchOp*>(op)->interest) &
             (POLLIN | POLLOUT | POLLPRI);
    }
    pollfd asked{entry.handle, bits, 0};
    const bool ready = poll(&asked, 1, 0) == 1 && (asked.revents & bits) != 0;
    entry.ready_waits = ready ? entry.ready_waits + 1 : 0;
    if (entry.ready_waits < suspicious_waits) continue;
    if (Session::current()->fault().kind == FaultKind::none) {
      Session::current()->report().sleeps = true;  // a fault of the test's own, or no buffers
      return;
    }
    violation(std::string("the loop sleeps although this could go on: ") + name_of(entry.kind) +
              " of descriptor " + std::to_string(entry.handle));
  }
}

// A handle says that it waits, and no operation, timer or queued work of it exists.
void LedgerBackend::look_for_lost_handles() {
  detail::LoopCore* const core = detail::LoopCore::here();
  if (core == nullptr || &core->backend() != this) return;
  if (core->counters().timers_armed != 0) return;
  for (const HandleInfo& info : core->list_handles()) {
    const bool kind = info.kind == HandleKind::stream || info.kind == HandleKind::listener ||
                      info.kind == HandleKind::watcher;
    if (!kind || !info.active || info.waits_for.empty()) continue;
    bool found = false;
    for (const auto& [op, entry] : in_flight_) found = found || entry.handle == info.handle;
    if (found) continue;
    if (++lost_waits_ < suspicious_waits) return;
    violation("a handle waits and nothing of it is in flight: " +
              std::string(to_string(info.kind)) + ", " + info.waits_for);
  }
  lost_waits_ = 0;
}

void LedgerBackend::look_whether_it_spins(bool fruitless, bool idle) {
  detail::LoopCore* const core = detail::LoopCore::here();
  if (core == nullptr || &core->backend() != this) return;
  const std::uint64_t callbacks = core->counters().callbacks;
  if (!fruitless || idle || callbacks != callbacks_seen_) {
    callbacks_seen_ = callbacks;
    if (idle || fruitless) fruitless_ = 0;
    return;
  }
  if (Session::current()->fault().lies) return;
  if (++fruitless_ > fruitless_max) violation("the loop spins: its waits end and nothing is done");
}

}  // namespace evix::test
