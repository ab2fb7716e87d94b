#include <evix/loop.hpp>
#include <evix/signal.hpp>

#include <cerrno>

#include "loop/callback_slot.hpp"
#include "loop/core.hpp"
#include "sys/error.hpp"
#include "sys/signal_hub.hpp"

namespace evix {
namespace detail {
namespace {

void run_signal(Work* work);

void note(void* mailbox, int signal) noexcept {
  static_cast<Mailbox*>(mailbox)->note_signal(signal);
}

struct SignalRecord : HandleRecord, Work {
  std::unique_ptr<SignalReceiver> receiver;
  CallbackSlot<void(int)> callback;
  int signal = 0;
  int caught = 0;  ///< queued and not yet told; 0 after a stop
  bool once = false;

  SignalRecord() noexcept : HandleRecord(HandleKind::signal) { run = run_signal; }
  void stop() noexcept {
    if (receiver != nullptr) SignalHub::leave(core->calls(), *receiver);
    receiver.reset();
    signal = caught = 0;
    core->set_active(*this, false);
  }
  void shut() noexcept {
    stop();
    callback.reset();
  }
  void describe(HandleInfo& info) const {
    if (signal == 0) return;
    info.handle = signal;
    info.waits_for = "signal " + std::to_string(signal);
  }
};

SignalRecord& record_of(const SignalWatcher& watcher) noexcept {
  check(watcher.record() != nullptr, "an empty signal watcher was used");
  auto& record = static_cast<SignalRecord&>(*watcher.record());
  record.core->check_usable("a signal watcher was used by a thread that does not run its loop");
  return record;
}

// What was queued for a signal runs only if the watcher still watches it, since before it came.
void run_signal(Work* work) {
  auto& record = static_cast<SignalRecord&>(*work);
  LoopCore& core = *record.core;
  const WorkTaken taken(record);
  record.op_queued = false;
  const int signal = std::exchange(record.caught, 0);
  if (record.released || core.discarding() || signal == 0) return;
  if (record.once) record.stop();
  call_slot(record, record.callback, [&] { return record.signal != 0; }, signal);
}

void queue_signals(LoopCore& core, std::uint64_t bits) {
  struct Context {
    LoopCore& core;
    std::uint64_t bits;
  } context{core, bits};
  core.store(HandleKind::signal)
      ->for_each(
          [](HandleRecord& each, void* pointer) {
            auto& [owner, pending] = *static_cast<Context*>(pointer);
            auto& record = static_cast<SignalRecord&>(each);
            if (record.signal == 0) return;
            if ((pending >> (record.signal - 1) & 1U) == 0) return;
            record.caught = record.signal;
            if (record.op_queued) return;
            record.op_queued = true;
            owner.queue_finished(record, record);
          },
          &context);
}

Result<void> start(SignalRecord& record, int signal, bool once,
                   SignalWatcher::SignalCallback&& callback, std::source_location location) {
  LoopCore& core = *record.core;
  const Subject subject = Subject::text("signal " + std::to_string(signal));
  if (core.dead()) return failure(Errc::closed, "watch", subject);
  if (core.forked()) return failure(Errc::forked, "watch", subject);
  record.stop();
  const SignalWatcher::SignalCallback before = record.callback.replace({});
  // A program's own backend is told of the wake descriptor now: a signal can end a wait from here.
  int error = core.ensure_wake();
  if (error == 0) {
    auto receiver = std::make_unique<SignalReceiver>(note, &core.mailbox());
    // What was caught before is for those who watched then: they are told, this one is not.
    queue_signals(core, core.mailbox().take_signals());
    error = SignalHub::join(core.calls(), *receiver, signal);
    if (error == 0) record.receiver = std::move(receiver);
  }
  if (error < 0) return failure(-error, "watch", subject);
  core.set_signals_hook(queue_signals);
  record.location = location;
  record.callback.stored = std::move(callback);
  record.signal = signal;
  record.once = once;
  core.set_active(record, true);
  return {};
}

}  // namespace
}  // namespace detail

SignalWatcher::SignalWatcher(Loop& loop)
    : Handle(loop.core().make_record<detail::SignalRecord>(HandleKind::signal)) {}

Result<void> SignalWatcher::start(int signal, SignalCallback callback,
                                  std::source_location location) {
  return detail::start(detail::record_of(*this), signal, false, std::move(callback), location);
}

Result<void> SignalWatcher::once(int signal, SignalCallback callback,
                                 std::source_location location) {
  return detail::start(detail::record_of(*this), signal, true, std::move(callback), location);
}

void SignalWatcher::stop() noexcept {
  detail::SignalRecord& record = detail::record_of(*this);
  if (!record.core->dead()) record.stop();
}

int SignalWatcher::signal() const noexcept { return detail::record_of(*this).signal; }

}  // namespace evix
