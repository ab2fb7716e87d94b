#pragma once

#include <evix/scope.hpp>
#include <evix/task.hpp>

#include <cstdint>
#include <exception>

#include "base/slab.hpp"
#include "loop/core.hpp"
#include "task/frame_pool.hpp"

/** @file
 * What is behind a spawned task, and what the tasks of a loop share.
 */
namespace evix::detail {

/**
 * A spawned task: its chain, its place in the loop's queues, and the frame that it belongs to.
 *
 *     due ──its turn──► running ──await──► waiting ──resume_chain()──► running ──end──► released
 *      ▲                                      │
 *      └──resume_later(), cancel_chain()──────┘
 *
 * due: `queued`, and nothing is waited for, but for a yield.
 */
struct TaskRecord : HandleRecord, Work, TaskChain, Linked {
  TaskGroup* group = nullptr;  ///< whose list it is in; null: it is the loop's
  bool running = false;
  bool queued = false;      ///< in one of the loop's queues
  bool has_result = false;  ///< of what it waited for, while queued: it comes before a cancel

  TaskRecord() noexcept;
  void shut() noexcept;
  void describe(HandleInfo& info) const;
};

inline TaskRecord& record_of(TaskChain& chain) noexcept { return static_cast<TaskRecord&>(chain); }

/** Ends a sleep, or cancels what `link` awaits. */
struct TaskTimer : TimerWork {
  TaskRecord* record = nullptr;
  TaskLink* link = nullptr;
  std::uint32_t slot = 0;
};

/** What the tasks of a loop share. */
struct TaskExtension : LoopCore::Extension {
  FramePool frames;
  Slab<TaskTimer> timers;
};

TaskExtension& task_extension(LoopCore& core);
TaskTimer& make_task_timer(TaskRecord& record, void (*run)(TimerWork*));
void free_task_timer(TaskTimer& timer) noexcept;

/** Null: it was destroyed at once, as the loop is closing. */
TaskRecord* spawn_task(LoopCore& core, Task<void> task, std::source_location location);
/**
 * The wait is over; the chain goes on in this turn or the next, not inside this call. Without a
 * result it is stopped there if it was cancelled.
 */
void resume_later(TaskWait& wait, bool has_result = true) noexcept;
/**
 * Frames inside of `link` are destroyed, innermost first, in a turn, as soon as the chain waits;
 * then it goes on behind the await of `link`. &whole_chain: all of them, and it ends.
 */
void cancel_chain(TaskRecord& record, TaskLink& link) noexcept;
extern TaskLink whole_chain;

}  // namespace evix::detail
