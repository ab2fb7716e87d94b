#include <evix/loop.hpp>
#include <evix/timer.hpp>

#include <cstddef>

#include "base/mutation.hpp"
#include "loop/callback_slot.hpp"
#include "loop/core.hpp"
#include "loop/deadline_text.hpp"

namespace evix {
namespace detail {
namespace {

struct TimerRecord;
void run_timer(TimerWork* work);

constexpr std::int64_t never_started = -1;

/** What is seldom touched, in the line that HandleRecord's location ends. */
struct TimerTicks {
  std::uint64_t missed = 0;
  MissedTicks policy = MissedTicks::skip;
  std::byte unused[47];
};

// Laid out for what happens among many timers, which costs what its cache misses cost
// (docs/decisions/0002-timer-store.md): a restart and its placing touch the second line only, an
// expiry that one and the third.
struct alignas(64) TimerRecord : TimerTicks, HandleRecord, TimerWork {
  CallbackSlot<void()> callback;
  std::int64_t period_ns = 0;  // 0: once

  TimerRecord() noexcept : HandleRecord(HandleKind::timer) {
    run = run_timer;
    delay_ns = never_started;
  }
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

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
static_assert(offsetof(TimerRecord, location) + sizeof(std::source_location) == 64);
static_assert(offsetof(TimerRecord, core) == 64, "a restart touches from here");
static_assert(offsetof(TimerRecord, order) + sizeof(std::uint64_t) == 128, "to here");
static_assert(offsetof(TimerRecord, child) == 128, "an expiry touches from here");
static_assert(sizeof(TimerRecord) == 192, "to here");
#pragma GCC diagnostic pop

void TimerRecord::describe(HandleInfo& info) const {
  if (armed()) info.waits_for = deadline_text(*core, *this);
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

void run_timer(TimerWork* work) {
  auto& record = static_cast<TimerRecord&>(*work);
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
  record.delay_ns = first_ns < 0 ? 0 : first_ns;
  record.delay_is_first = period_ns != 0 && period_ns != first_ns;
  record.policy = missed;
  record.missed = 0;
  record.core->set_active(record, true);
  return record.callback.replace(std::move(callback));
}

}  // namespace
}  // namespace detail

Timer::Timer(Loop& loop)
    : Handle((loop.core().reserve_timer(),
              loop.core().make_record<detail::TimerRecord>(HandleKind::timer))) {}

void Timer::start(Duration delay, Duration period, MissedTicks missed, Callback<void()> callback,
                  std::source_location location) {
  detail::TimerRecord& record = detail::record_of(*this);
  const Callback<void()> before =
      detail::prepare(record, delay.count(), period.count(), missed, std::move(callback), location);
  if (record.active) record.core->start_timer(record, record.delay_ns);
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
  auto* const restarted = static_cast<detail::TimerRecord*>(record_);
  if (restarted != nullptr && restarted->core == detail::LoopCore::here() &&
      !restarted->delay_is_first && detail::LoopCore::here()->restart_timer(*restarted))
      [[likely]] {
    return;
  }
  detail::TimerRecord& record = detail::record_of(*this);
  detail::LoopCore& core = *record.core;
  if (core.dead() || record.delay_ns == detail::never_started) return;
  if (record.delay_is_first) [[unlikely]] {
    record.delay_ns = record.period_ns;
    record.delay_is_first = false;
  }
  core.set_active(record, true);
  core.start_timer(record, record.delay_ns);
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
  if (record.fresh()) return Duration(record.delay_ns);
  if (record.deadline_ns == detail::never_ns) return forever;
  const std::int64_t left_ns =
      detail::subtract_saturating(record.deadline_ns, record.core->now_ns());
  return Duration(left_ns < 0 ? 0 : left_ns);
}

std::uint64_t Timer::missed_ticks() const noexcept { return detail::record_of(*this).missed; }

}  // namespace evix
