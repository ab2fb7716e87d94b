#include <evix/loop.hpp>
#include <evix/timer.hpp>

#include <string>

#include "base/mutation.hpp"
#include "loop/callback_slot.hpp"
#include "loop/core.hpp"

namespace evix {
namespace detail {
namespace {

struct TimerRecord;
void run_timer(Work* work);

// Laid out for a restart among many, which costs what its cache misses cost: the first two lines
// have all that it touches (docs/decisions/0002-timer-store.md).
struct alignas(64) TimerRecord : HandleRecord, TimerWork {
  std::int64_t period_ns = 0;  // 0: once
  std::int64_t first_ns = -1;  // the delay of the last start; -1: never started
  CallbackSlot<void()> callback;
  std::uint64_t missed = 0;
  MissedTicks policy = MissedTicks::skip;

  // Both bases have a member of that name; the slab's is the record's.
  using HandleRecord::slot;

  TimerRecord() noexcept : HandleRecord(HandleKind::timer) { run = run_timer; }
  void shut() noexcept {
    core->stop_timer(*this);
    callback.reset();
  }
  void describe(HandleInfo& info) const;
};

[[gnu::always_inline]] inline TimerRecord& record_of(const Timer& timer) noexcept {
  check(timer.record() != nullptr, "an empty timer was used");
  auto& record = static_cast<TimerRecord&>(*timer.record());
  record.core->check_usable("a timer was used by a thread that does not run its loop");
  return record;
}

void TimerRecord::describe(HandleInfo& info) const {
  if (!armed()) return;
  const std::int64_t left_ns =
      state == State::fresh ? delay_ns : subtract_saturating(deadline_ns, core->now_ns());
  info.waits_for = "deadline in " + std::to_string(left_ns < 0 ? 0 : left_ns / 1'000'000) + " ms";
}

// The next deadline of a repeating timer that has just fired; counts what was missed.
std::int64_t next_deadline(TimerRecord& record, std::int64_t now_ns) noexcept {
  const std::int64_t planned = add_saturating(record.deadline_ns, record.period_ns);
  record.missed = 0;
  if (planned > now_ns || record.policy == MissedTicks::burst || mutated("T090")) return planned;
  const std::int64_t late_ns = subtract_saturating(now_ns, record.deadline_ns);
  record.missed = static_cast<std::uint64_t>(late_ns / record.period_ns);
  if (record.policy == MissedTicks::delay) return add_saturating(now_ns, record.period_ns);
  const std::int64_t phase_ns = late_ns % record.period_ns;
  return add_saturating(now_ns, record.period_ns - phase_ns);
}

void run_timer(Work* work) {
  auto& record = static_cast<TimerRecord&>(*static_cast<TimerWork*>(work));
  LoopCore& core = *record.core;
  if (record.period_ns != 0) {
    core.start_timer_at(record, next_deadline(record, core.now_ns()));
  } else {
    core.set_active(record, false);
  }
  call_slot(record, record.callback, [&] { return !record.core->dead(); });
}

// Returns the callback from before, which must outlive the use of the record.
[[nodiscard]] Callback<void()> prepare(TimerRecord& record, std::int64_t first_ns,
                                       std::int64_t period_ns, MissedTicks missed,
                                       Callback<void()>&& callback,
                                       std::source_location location) noexcept {
  if (record.core->dead()) return std::move(callback);
  record.location = location;
  record.period_ns = period_ns;
  record.first_ns = first_ns < 0 ? 0 : first_ns;
  record.policy = missed;
  record.missed = 0;
  record.core->set_active(record, true);
  return record.callback.replace(std::move(callback));
}

}  // namespace
}  // namespace detail

Timer::Timer(Loop& loop)
    : Handle(loop.core().make_record<detail::TimerRecord>(HandleKind::timer)) {}

void Timer::start(Duration delay, Duration period, MissedTicks missed, Callback<void()> callback,
                  std::source_location location) {
  detail::TimerRecord& record = detail::record_of(*this);
  const Callback<void()> before =
      detail::prepare(record, delay.count(), period.count(), missed, std::move(callback), location);
  if (record.active) record.core->start_timer(record, record.first_ns);
}

void Timer::at(TimePoint deadline, Callback<void()> callback, std::source_location location) {
  detail::TimerRecord& record = detail::record_of(*this);
  const std::int64_t deadline_ns = deadline.time_since_epoch().count();
  const std::int64_t delay_ns =
      record.core->dead() ? 0 : detail::subtract_saturating(deadline_ns, record.core->now_ns());
  const Callback<void()> before =
      detail::prepare(record, delay_ns, 0, MissedTicks::skip, std::move(callback), location);
  if (record.active) record.core->start_timer_at(record, deadline_ns);
}

void Timer::again() noexcept {
  detail::TimerRecord& record = detail::record_of(*this);
  if (record.core->dead() || record.first_ns < 0) return;
  record.core->set_active(record, true);
  record.core->start_timer(record, record.period_ns != 0 ? record.period_ns : record.first_ns);
}

void Timer::stop() noexcept {
  detail::TimerRecord& record = detail::record_of(*this);
  if (record.core->dead()) return;
  record.core->stop_timer(record);
  record.core->set_active(record, false);
}

Duration Timer::remaining() const noexcept {
  detail::TimerRecord& record = detail::record_of(*this);
  if (record.core->dead() || !record.armed()) return Duration::zero();
  if (record.state == detail::TimerWork::State::fresh) return Duration(record.delay_ns);
  if (record.deadline_ns == detail::never_ns) return forever;
  const std::int64_t left_ns =
      detail::subtract_saturating(record.deadline_ns, record.core->now_ns());
  return Duration(left_ns < 0 ? 0 : left_ns);
}

std::uint64_t Timer::missed_ticks() const noexcept { return detail::record_of(*this).missed; }

}  // namespace evix
