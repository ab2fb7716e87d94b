#include <evix/loop.hpp>
#include <evix/watcher.hpp>

#include "base/mutation.hpp"
#include "loop/callback_slot.hpp"
#include "loop/core.hpp"
#include "sys/error.hpp"

namespace evix {
namespace detail {
namespace {

void run_watch(Work* work);

struct WatcherRecord : HandleRecord, WatchOp {
  CallbackSlot<void(Ready)> callback;

  WatcherRecord() noexcept : HandleRecord(HandleKind::watcher) { run = run_watch; }
  WatchOp& op() noexcept { return *this; }
  const WatchOp& op() const noexcept { return *this; }
  void stop() noexcept {
    if (mutated("T013") && core->running() && !released) return core->post([this] { end(); });
    end();
  }
  void end() noexcept {
    core->backend().cancel(*this);
    core->set_active(*this, false);
  }
  void shut() noexcept {
    stop();
    callback.reset();
  }
  void describe(HandleInfo& info) const {
    if (!in_flight()) return;
    info.handle = handle;
    if (any(interest, Ready::readable)) info.waits_for += "readable ";
    if (any(interest, Ready::writable)) info.waits_for += "writable ";
    if (any(interest, Ready::priority)) info.waits_for += "priority ";
    if (!info.waits_for.empty()) info.waits_for.pop_back();
  }
};

WatcherRecord& record_of(const Watcher& watcher) noexcept {
  check(watcher.record() != nullptr, "an empty watcher was used");
  auto& record = static_cast<WatcherRecord&>(*watcher.record());
  record.core->check_usable("a watcher was used by a thread that does not run its loop");
  return record;
}

void run_watch(Work* work) {
  auto& record = static_cast<WatcherRecord&>(*static_cast<WatchOp*>(work));
  LoopCore& core = *record.core;
  if (!record.op().in_flight()) core.set_active(record, false);
  call_slot(record, record.callback, [&] { return record.op().in_flight(); }, record.op().ready);
}

Result<void> start(WatcherRecord& record, native_handle handle, Ready interest, bool once,
                   Watcher::ReadyCallback&& callback, std::source_location location) {
  if (record.core->dead()) return failure(Errc::closed, "watch", Subject::descriptor(handle));
  if (record.core->forked()) return failure(Errc::forked, "watch", Subject::descriptor(handle));
  record.stop();
  record.location = location;
  record.op().handle = handle;
  record.op().interest = interest & (Ready::readable | Ready::writable | Ready::priority);
  record.op().multishot = !once;
  const bool started = record.core->backend().start(record.op()) == Started::in_flight;
  record.core->set_active(record, started);
  const int error = started ? 0 : -record.op().result;
  // Last, for what it owns may be the watcher.
  const Watcher::ReadyCallback before =
      record.callback.replace(started ? std::move(callback) : Watcher::ReadyCallback());
  if (!started) return failure(error, "watch", Subject::descriptor(handle));
  return {};
}

}  // namespace
}  // namespace detail

Watcher::Watcher(Loop& loop)
    : Handle(loop.core().make_record<detail::WatcherRecord>(HandleKind::watcher)) {}

Result<void> Watcher::start(native_handle handle, Ready interest, ReadyCallback callback,
                            std::source_location location) {
  return detail::start(detail::record_of(*this), handle, interest, false, std::move(callback),
                       location);
}

Result<void> Watcher::once(native_handle handle, Ready interest, ReadyCallback callback,
                           std::source_location location) {
  return detail::start(detail::record_of(*this), handle, interest, true, std::move(callback),
                       location);
}

Result<void> Watcher::set_interest(Ready interest) {
  detail::WatcherRecord& record = detail::record_of(*this);
  const Subject subject = Subject::descriptor(record.op().handle);
  if (record.core->dead() || !record.op().in_flight()) {
    return detail::failure(Errc::closed, "watch", subject);
  }
  const int error = record.core->backend().change_interest(
      record.op(), interest & (Ready::readable | Ready::writable | Ready::priority));
  if (error < 0) return detail::failure(-error, "watch", subject);
  return {};
}

void Watcher::stop() noexcept {
  detail::WatcherRecord& record = detail::record_of(*this);
  if (!record.core->dead()) record.stop();
}

native_handle Watcher::handle() const noexcept {
  const detail::WatcherRecord& record = detail::record_of(*this);
  return record.op().in_flight() ? record.op().handle : no_handle;
}

}  // namespace evix
