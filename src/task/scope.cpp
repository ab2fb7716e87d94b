#include <evix/scope.hpp>

#include <atomic>
#include <new>

#include "base/check.hpp"
#include "task/task_record.hpp"

namespace evix::detail {

// ---- Groups ----------------------------------------------------------------------------------

void TaskGroup::note_end(std::exception_ptr exception, bool stopped) noexcept {
  stopped_some = stopped_some || stopped;
  if (exception != nullptr && failure == nullptr) {
    failure = std::move(exception);
    cancel_group(*this);
  }
  // Its wait is over with the first time: others may have been spawned until it goes on.
  if (!tasks.empty() || join == nullptr || join->chain->wait != join) return;
  const auto& wait = static_cast<JoinWait&>(*join);
  const bool has_result = failure != nullptr || !stopped_some || wait.sees_results;
  resume_later(*join, has_result);
}

void open_group(TaskGroup& group, LoopCore* core) noexcept {
  group.core = core != nullptr ? core : LoopCore::here();
  check(group.core != nullptr, "a scope was made by a thread that runs no loop");
  group.core->check_usable("a scope was made by a thread that does not run its loop");
  group.core->acquire();
}

void spawn_into(TaskGroup& group, Task<void> task, std::source_location location) {
  group.core->check_usable("spawn() from a thread that does not run the loop");
  TaskRecord* const record = spawn_task(*group.core, std::move(task), location);
  if (record == nullptr) return;
  record->group = &group;
  group.tasks.push(*record);
  if (group.cancelled) record->cancelled = &whole_chain;
}

// Withdrawing calls nobody, so the list stays as it is. Only once: what is spawned later knows it,
// and tasks that wait for each other's scopes would be told for ever.
void cancel_group(TaskGroup& group) noexcept {
  group.core->check_usable("cancel() from a thread that does not run the loop");
  if (std::exchange(group.cancelled, true)) return;
  for (TaskRecord* each = group.tasks.first(); each != nullptr; each = group.tasks.after(*each)) {
    cancel_chain(*each, whole_chain);
  }
}

// A destructor in a frame may spawn another.
void destroy_group(TaskGroup& group) noexcept {
  group.core->check_usable("a scope was destroyed by a thread that does not run its loop");
  group.cancelled = true;
  while (TaskRecord* const record = group.tasks.first()) record->core->release_record(*record);
  check(group.join == nullptr, "a scope was destroyed while a task waits in its join()");
  group.core->release();
}

namespace {

// Its tasks are cancelled; what becomes of the one that waits is known when they have ended.
Withdrawn withdraw_join(TaskWait& wait) noexcept {
  cancel_group(*static_cast<JoinWait&>(wait).group);
  return Withdrawn::later;
}
constexpr TaskWaitKind join_kind{withdraw_join, "the tasks of its scope"};

}  // namespace

// Also of a task that was cancelled: it is the tasks' end that it waits for, not their success.
void start_join(JoinWait& wait, TaskChain& chain) noexcept {
  TaskGroup& group = *wait.group;
  check(record_of(chain).core == group.core, "a task waits in join() of another loop's scope");
  check(group.join == nullptr, "two tasks wait in join() of one scope");
  check(record_of(chain).group != &group, "a task waits in join() of its own scope");
  chain.suspend(wait, join_kind);
  group.join = &wait;
  if (chain.stopped()) cancel_group(group);
}

void finish_join(TaskGroup& group) {
  if (group.tasks.empty()) group.cancelled = group.stopped_some = false;
  if (group.failure != nullptr) std::rethrow_exception(std::exchange(group.failure, nullptr));
}

// The task that waits goes on, or is destroyed.
void forget_join(JoinWait& wait) noexcept {
  if (wait.group->join == &wait) wait.group->join = nullptr;
}

void stop_chain(TaskChain& chain) noexcept {
  if (!chain.stopped()) chain.cancelled = &whole_chain;
}

// ---- Cancelling from elsewhere ---------------------------------------------------------------

namespace {

// What `link` awaits is stopped; its parent goes on behind it.
void cancel_link(TaskLink& link) noexcept { cancel_chain(record_of(link.parent->chain()), link); }

}  // namespace

struct CancelState {
  Poster poster;
  const LoopCore* core = nullptr;  ///< only to be compared, for it may be gone
  std::atomic<bool> cancelled = false;
  LinkedList<CancelHook> hooks;

  void tell() noexcept {
    for (CancelHook* hook = hooks.first(); hook != nullptr; hook = hooks.after(*hook)) {
      cancel_link(*hook->link);
    }
  }
};

std::shared_ptr<CancelState> make_cancel_state(Loop& loop) {
  auto state = std::make_shared<CancelState>();
  state->poster = loop.poster();
  state->core = &loop.core();
  return state;
}

// Through the loop's queue in any case: so the caller need not be the loop's thread, and nothing
// happens inside this call.
void cancel_state(const std::shared_ptr<CancelState>& state) noexcept {
  check(state != nullptr, "a cancel source that was moved from was used");
  if (state->cancelled.exchange(true)) return;
  try {
    (void)state->poster.post([state] { state->tell(); });
  } catch (const std::bad_alloc&) {
    state->cancelled = false;  // the caller can see that, and try again
  }
}

bool is_cancelled(const CancelState& state) noexcept { return state.cancelled; }

void join_state(CancelState& state, CancelHook& hook) noexcept {
  check(state.core == record_of(hook.link->parent->chain()).core,
        "a token was used by a task of another loop than its source's");
  state.hooks.push(hook);
  if (state.cancelled) cancel_link(*hook.link);
}

void leave_state(CancelState& state, CancelHook& hook) noexcept { state.hooks.remove(hook); }

// ---- Deadlines -------------------------------------------------------------------------------

namespace {

void run_deadline(TimerWork* work) { cancel_link(*static_cast<TaskTimer*>(work)->link); }

TaskTimer& make_deadline(TaskLink& link) {
  TaskTimer& timer = make_task_timer(record_of(link.parent->chain()), run_deadline);
  timer.link = &link;
  return timer;
}

}  // namespace

TaskTimer* start_deadline(TaskLink& link, Duration delay) {
  TaskTimer& timer = make_deadline(link);
  timer.record->core->start_timer(timer, delay.count());
  return &timer;
}

TaskTimer* start_deadline(TaskLink& link, TimePoint deadline) {
  TaskTimer& timer = make_deadline(link);
  timer.record->core->start_timer_at(timer, deadline.time_since_epoch().count());
  return &timer;
}

void stop_deadline(TaskTimer& timer) noexcept { free_task_timer(timer); }

void forget_cancel(TaskLink& link) noexcept {
  TaskChain& chain = link.parent->chain();
  if (chain.cancelled == &link) chain.cancelled = nullptr;
}

Error interrupted_error(std::errc code) noexcept {
  return Error(std::make_error_code(code), "task");
}

}  // namespace evix::detail
