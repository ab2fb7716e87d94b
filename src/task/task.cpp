#include <evix/task.hpp>

#include <system_error>

#include "base/check.hpp"
#include "loop/core.hpp"
#include "loop/deadline_text.hpp"
#include "task/frame_pool.hpp"

namespace evix {
namespace detail {
namespace {

void run_queued(Work* work);
void run_timer(TimerWork* timer);

/** A spawned task: its chain, its place in the loop's queue, and the timer of its sleeps. */
struct TaskRecord : HandleRecord, Work, TimerWork, TaskChain {
  TaskRecord() noexcept : HandleRecord(HandleKind::task) {
    Work::run = run_queued;
    TimerWork::run = run_timer;
  }
  void shut() noexcept;
  void describe(HandleInfo& info) const;
};

TaskRecord& record_of(TaskChain& chain) noexcept { return static_cast<TaskRecord&>(chain); }

/**
 * Innermost first: each awaited task is gone before the one that awaits it, as at the end of a
 * scope, and a chain of any length takes no stack.
 */
void destroy_frames(TaskChain& chain) noexcept {
  while (TaskPromiseBase* const task = chain.innermost) {
    TaskLink* const link = task->link();
    chain.innermost = link == nullptr ? nullptr : link->parent;
    if (link != nullptr) link->child = nullptr;
    task->frame().destroy();
  }
}

void TaskRecord::shut() noexcept {
  core->stop_timer(*this);
  destroy_frames(*this);
}

void TaskRecord::describe(HandleInfo& info) const {
  if (works_queued != 0) info.waits_for = "its turn";
  if (armed()) info.waits_for = deadline_text(*core, *this);
}

// While it runs it does not keep a run() inside it from returning.
void resume(TaskRecord& record) {
  LoopCore& core = *record.core;
  core.set_active(record, false);
  TaskPromiseBase* task = nullptr;
  do {
    record.ready = false;
    task = record.innermost;
    task->frame().resume();
  } while (record.ready);
  if (record.innermost != nullptr) {
    core.set_active(record, true);
    return;
  }
  // The last one that ran is the first of the chain, at its end.
  const std::exception_ptr exception = task->take_exception();
  task->frame().destroy();
  core.release_record(record);
  if (exception != nullptr) std::rethrow_exception(exception);
}

void run_queued(Work* work) {
  auto& record = static_cast<TaskRecord&>(*work);
  const WorkTaken taken(record);
  if (!record.released) resume(record);
}

void run_timer(TimerWork* timer) { resume(static_cast<TaskRecord&>(*timer)); }

}  // namespace

void fail_empty_task() noexcept { fail_check("an empty task was used"); }

void fail_run(const Loop& loop, int code) {
  if (code != 0) throw std::system_error(loop.error().code(), loop.error().operation());
  throw std::system_error(std::make_error_code(std::errc::operation_canceled), "run");
}

Loop& loop_of(TaskChain& chain) noexcept { return *record_of(chain).core->loop; }

void start_sleep(TaskChain& chain, Duration delay) noexcept {
  TaskRecord& record = record_of(chain);
  record.core->start_timer(record, delay.count());
}

void start_sleep(TaskChain& chain, TimePoint deadline) noexcept {
  TaskRecord& record = record_of(chain);
  record.core->start_timer_at(record, deadline.time_since_epoch().count());
}

void start_yield(TaskChain& chain) noexcept {
  TaskRecord& record = record_of(chain);
  record.core->queue_finished(record, record);
}

void resume_chain(TaskChain& chain) {
  TaskRecord& record = record_of(chain);
  record.core->check_usable("a task was resumed by a thread that does not run its loop");
  check(record.active, "a task was resumed that does not wait");
  resume(record);
}

}  // namespace detail

void Loop::spawn(Task<void> task, std::source_location location) {
  detail::LoopCore& core = this->core();
  core.check_usable("spawn() from a thread that does not run the loop");
  if (!task) detail::fail_empty_task();
  if (core.closing()) return;
  if (core.tasks == nullptr) core.tasks = std::make_unique<detail::FramePool>();
  core.reserve_timer();
  auto* const record = core.make_record<detail::TaskRecord>(HandleKind::task);
  record->location = location;
  task.release()->enter(*record);
  core.set_active(*record, true);
  core.queue_finished(*record, *record);
}

}  // namespace evix
