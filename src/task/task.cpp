#include <evix/task.hpp>

#include <system_error>

#include "base/check.hpp"
#include "base/mutation.hpp"
#include "loop/deadline_text.hpp"
#include "task/task_record.hpp"

namespace evix {
namespace detail {

constinit TaskLink whole_chain;

namespace {

void run_queued(Work* work);

/**
 * Innermost first: each awaited task is gone before the one that awaits it, as at the end of a
 * scope, and a chain of any length takes no stack. Up to the one that `link` awaits.
 */
void destroy_frames(TaskChain& chain, TaskLink& link) noexcept {
  while (TaskPromiseBase* const task = chain.innermost) {
    TaskLink* const awaited_by = task->link();
    chain.innermost = awaited_by == nullptr ? nullptr : awaited_by->parent;
    if (awaited_by != nullptr) awaited_by->child = nullptr;
    task->frame().destroy();
    if (awaited_by == &link) return;
  }
}

void end_wait(TaskRecord& record) noexcept {
  if (TaskWait* const wait = std::exchange(record.wait, nullptr)) (void)wait->kind->withdraw(*wait);
}

void queue(TaskRecord& record) noexcept {
  if (std::exchange(record.queued, true)) return;
  record.core->queue_resumed(record, record);
}

void leave_group(TaskRecord& record) noexcept {
  if (TaskGroup* const group = std::exchange(record.group, nullptr)) group->tasks.remove(record);
}

// Of the chain; false: it has ended that way.
bool destroy_cancelled(TaskRecord& record) noexcept {
  TaskLink& link = *std::exchange(record.cancelled, nullptr);
  if (&link == &whole_chain) record.cancelled = &link;  // what destructors await is not there
  destroy_frames(record, link);
  return record.innermost != nullptr;
}

void end_chain(TaskRecord& record, std::exception_ptr exception, bool stopped) {
  TaskGroup* const group = record.group;
  record.running = false;
  record.core->release_record(record);
  if (group != nullptr) {
    group->note_end(std::move(exception), stopped);
  } else if (exception != nullptr) {
    std::rethrow_exception(exception);
  }
}

// While it runs it does not keep a run() inside it from returning.
void resume(TaskRecord& record, bool stopped) {
  LoopCore& core = *record.core;
  core.set_active(record, false);
  record.running = true;
  record.wait = nullptr;
  TaskPromiseBase* task = nullptr;
  for (;;) {
    if (stopped && !destroy_cancelled(record)) return end_chain(record, nullptr, true);
    do {
      record.ready = false;
      task = record.innermost;
      task->frame().resume();
    } while (record.ready);
    if (record.innermost == nullptr) break;
    stopped = record.cancelled != nullptr && record.wait == nullptr && !record.queued;
    if (stopped) continue;
    record.running = false;
    core.set_active(record, true);
    return;
  }
  // The last one that ran is the first of the chain, at its end. It runs until its frame is gone:
  // it may own the scope that it belongs to.
  std::exception_ptr exception = task->take_exception();
  task->frame().destroy();
  end_chain(record, std::move(exception), false);
}

void run_queued(Work* work) {
  auto& record = static_cast<TaskRecord&>(*work);
  const WorkTaken taken(record);
  record.queued = false;
  const bool has_result = std::exchange(record.has_result, false);
  if (record.released) return;
  resume(record, record.cancelled != nullptr && (!has_result || mutated("T156")));
}

}  // namespace

// ---- Waits -----------------------------------------------------------------------------------

namespace {

Withdrawn withdraw_sleep(TaskWait& wait) noexcept {
  free_task_timer(*static_cast<SleepWait&>(wait).timer);
  return Withdrawn::ended;
}
constexpr TaskWaitKind sleep_kind{withdraw_sleep, "sleep"};

void run_sleep(TimerWork* work) {
  auto& timer = static_cast<TaskTimer&>(*work);
  TaskRecord& record = *timer.record;
  free_task_timer(timer);
  resume(record, false);
}

TaskTimer& begin_sleep(SleepWait& wait, TaskChain& chain) {
  TaskTimer& timer = make_task_timer(record_of(chain), run_sleep);
  wait.timer = &timer;
  chain.suspend(wait, sleep_kind);
  return timer;
}

// It stays in the queue, and is looked at when its turn comes.
Withdrawn withdraw_yield(TaskWait&) noexcept { return Withdrawn::ended; }
constexpr TaskWaitKind yield_kind{withdraw_yield, "its turn"};

}  // namespace

// ---- Record ----------------------------------------------------------------------------------

TaskRecord::TaskRecord() noexcept : HandleRecord(HandleKind::task) { run = run_queued; }

void TaskRecord::shut() noexcept {
  check(!running, "a task that runs was destroyed: its scope has to outlive it");
  leave_group(*this);  // a frame may own its scope
  end_wait(*this);
  cancelled = &whole_chain;
  destroy_frames(*this, whole_chain);
}

void TaskRecord::describe(HandleInfo& info) const {
  if (queued) {
    info.waits_for = "its turn";
  } else if (wait != nullptr && wait->kind == &sleep_kind) {
    info.waits_for = deadline_text(*core, *static_cast<SleepWait*>(wait)->timer);
  } else if (wait != nullptr) {
    info.waits_for = wait->kind->waits_for;
  }
}

TaskExtension& task_extension(LoopCore& core) {
  if (core.tasks == nullptr) core.tasks = std::make_unique<TaskExtension>();
  return static_cast<TaskExtension&>(*core.tasks);
}

TaskTimer& make_task_timer(TaskRecord& record, void (*run)(TimerWork*)) {
  LoopCore& core = *record.core;
  core.reserve_timer();
  TaskTimer& timer = *task_extension(core).timers.make();
  ++core.other_timers;
  timer.record = &record;
  timer.run = run;
  return timer;
}

void free_task_timer(TaskTimer& timer) noexcept {
  LoopCore& core = *timer.record->core;
  core.stop_timer(timer);
  --core.other_timers;
  task_extension(core).timers.free(&timer);
}

void fail_empty_task() noexcept { fail_check("an empty task was used"); }

void fail_run(const Loop& loop, int code) {
  if (code != 0) throw std::system_error(loop.error().code(), loop.error().operation());
  throw std::system_error(std::make_error_code(std::errc::operation_canceled), "run");
}

Loop& loop_of(TaskChain& chain) noexcept { return *record_of(chain).core->loop; }

void start_sleep(SleepWait& wait, TaskChain& chain, Duration delay) {
  TaskTimer& timer = begin_sleep(wait, chain);
  record_of(chain).core->start_timer(timer, delay.count());
}

void start_sleep(SleepWait& wait, TaskChain& chain, TimePoint deadline) {
  TaskTimer& timer = begin_sleep(wait, chain);
  record_of(chain).core->start_timer_at(timer, deadline.time_since_epoch().count());
}

void start_yield(TaskWait& wait, TaskChain& chain) noexcept {
  TaskRecord& record = record_of(chain);
  chain.suspend(wait, yield_kind);
  record.queued = true;
  record.core->queue_finished(record, record);
}

void resume_chain(TaskChain& chain) {
  TaskRecord& record = record_of(chain);
  record.core->check_usable("a task was resumed by a thread that does not run its loop");
  check(record.active && !record.queued, "a task was resumed that does not wait");
  resume(record, false);
}

void resume_later(TaskWait& wait, bool has_result) noexcept {
  TaskRecord& record = record_of(*wait.chain);
  record.wait = nullptr;
  record.has_result = has_result;
  queue(record);
}

// ---- Cancel ----------------------------------------------------------------------------------

namespace {

// Whether the frame of `link` goes with the frames that `outer` awaits.
bool is_inside(const TaskChain& chain, const TaskLink& link, const TaskLink& outer) noexcept {
  if (&link == &whole_chain) return false;
  if (&outer == &whole_chain) return true;
  for (TaskLink* each = chain.innermost->link(); each != nullptr; each = each->parent->link()) {
    if (each == &outer) return false;
    if (each == &link) return true;
  }
  return false;
}

}  // namespace

void cancel_chain(TaskRecord& record, TaskLink& link) noexcept {
  if (record.innermost == nullptr || record.released) return;
  if (mutated("T155") && record.queued) return;
  if (record.cancelled != nullptr && is_inside(record, link, *record.cancelled)) return;
  record.cancelled = &link;
  if (record.running || record.wait == nullptr) return;  // it sees that in its turn
  TaskWait& wait = *record.wait;
  if (wait.kind->withdraw(wait) == Withdrawn::later) return;
  record.wait = nullptr;
  queue(record);
}

// ---- Spawn -----------------------------------------------------------------------------------

TaskRecord* spawn_task(LoopCore& core, Task<void> task, std::source_location location) {
  if (!task) fail_empty_task();
  if (core.closing()) return nullptr;
  task_extension(core);
  auto* const record = core.make_record<TaskRecord>(HandleKind::task);
  record->location = location;
  task.release()->enter(*record);
  core.set_active(*record, true);
  queue(*record);
  return record;
}

}  // namespace detail

void Loop::spawn(Task<void> task, std::source_location location) {
  detail::LoopCore& core = this->core();
  core.check_usable("spawn() from a thread that does not run the loop");
  (void)detail::spawn_task(core, std::move(task), location);
}

}  // namespace evix
