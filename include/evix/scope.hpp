#pragma once

#include <chrono>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "evix/error.hpp"
#include "evix/export.hpp"
#include "evix/linked_list.hpp"
#include "evix/loop.hpp"
#include "evix/task.hpp"
#include "evix/time.hpp"

/** @file
 * Tasks that run beside each other and end together: scopes, when_all, race, deadlines, cancelling.
 *
 * A task that is cancelled is stopped at the await that it waits in, or at its next one: that await
 * does not return. Its frames are destroyed, the innermost first, so what a task has to put in
 * order it leaves to destructors, as for an exception. Nothing is lost: what an await has got
 * already it gives first, and the task stops at the await after that. A task that ends before its
 * next await has ended as if it had not been cancelled.
 *
 * docs/decisions/0011-coroutines.md has the reasons. Threads: as in evix/task.hpp; a CancelSource
 * may be used from any thread.
 */
namespace evix {

namespace detail {

struct TaskRecord;
struct TaskTimer;

/** The tasks of a scope. */
struct TaskGroup {
  LoopCore* core = nullptr;
  LinkedList<TaskRecord> tasks;  ///< empty: all have ended
  TaskWait* join = nullptr;      ///< of the one that waits for that
  std::exception_ptr failure;    ///< the first one
  bool cancelled = false;
  bool stopped_some = false;  ///< not all tasks have come to their end

  void note_end(std::exception_ptr exception, bool stopped) noexcept;
};

struct JoinWait : TaskWait {
  TaskGroup* group = nullptr;
  /** Goes on also when it was cancelled and some tasks were stopped: to see what others have got.
   */
  bool sees_results = false;
};

/** Null: of the loop that this thread runs. */
EVIX_API void open_group(TaskGroup& group, LoopCore* core) noexcept;
EVIX_API void spawn_into(TaskGroup& group, Task<void> task, std::source_location location);
EVIX_API void cancel_group(TaskGroup& group) noexcept;
EVIX_API void destroy_group(TaskGroup& group) noexcept;
EVIX_API void start_join(JoinWait& wait, TaskChain& chain) noexcept;
EVIX_API void finish_join(TaskGroup& group);
EVIX_API void forget_join(JoinWait& wait) noexcept;
EVIX_API void stop_chain(TaskChain& chain) noexcept;

class [[nodiscard("a join has to be awaited")]] Join : public TaskAwaitable {
 public:
  explicit Join(TaskGroup& group, bool sees_results = false) noexcept {
    wait_.group = &group;
    wait_.sees_results = sees_results;
  }
  // Only before it is awaited.
  Join(Join&& other) noexcept : Join(*other.wait_.group, other.wait_.sees_results) {}
  Join& operator=(Join&&) = delete;
  ~Join() {
    if (wait_.chain != nullptr) forget_join(wait_);
  }
  bool await_ready() const noexcept { return wait_.group->tasks.empty(); }
  template <std::derived_from<TaskPromiseBase> Promise>
  void await_suspend(std::coroutine_handle<Promise> task) noexcept {
    start_join(wait_, task.promise().chain());
  }
  void await_resume() {
    if (std::exchange(wait_.chain, nullptr) != nullptr) forget_join(wait_);
    finish_join(*wait_.group);
  }

 private:
  JoinWait wait_;
};

/** Does not return: the task is cancelled, or its loop is going. */
class [[nodiscard("it has to be awaited")]] Stop : public TaskAwaitable {
 public:
  template <std::derived_from<TaskPromiseBase> Promise>
  void await_suspend(std::coroutine_handle<Promise> task) const noexcept {
    stop_chain(task.promise().chain());
  }
  void await_resume() const noexcept {}
};

}  // namespace detail

/**
 * Owns tasks that run beside the one that made it, and outlives them.
 *
 *     evix::Scope scope;
 *     scope.spawn(reads(peer));
 *     scope.spawn(writes(peer));
 *     co_await scope.join();
 *
 * The first exception that leaves one of its tasks cancels the others, and join() throws it.
 * When the task that waits in join() is cancelled, so are the scope's; when they have ended it is
 * stopped there, unless all of them came to their end all the same. The destructor, also by an
 * exception or a cancel, destroys the tasks that are left where they wait; what has come for them
 * by then is lost with them, and so is their exception: join() is the end that loses nothing. A
 * scope that is destroyed by one of its own tasks, or while one of them is inside a nested run(),
 * or while a task waits in its join(), ends the process with a message. It may outlive its loop.
 * Scopes in tasks of scopes nest as deep as the stack allows, some thousands.
 *
 * Threads: the thread that runs the loop, or any thread while nobody does.
 */
class Scope {
 public:
  /** Of the loop that this thread runs now; without one the process ends with a message. */
  Scope() noexcept { detail::open_group(group_, nullptr); }
  explicit Scope(Loop& loop) noexcept { detail::open_group(group_, &loop.core()); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() { detail::destroy_group(group_); }

  /** Begins the task in a turn, not inside this call; not at all if the scope was cancelled. */
  void spawn(Task<void> task, std::source_location location = std::source_location::current()) {
    detail::spawn_into(group_, std::move(task), location);
  }
  /** Cancels every task of the scope, and those to come until a join() has returned. */
  void cancel() noexcept { detail::cancel_group(group_); }
  /** `co_await scope.join()`: until all have ended; then the scope may be used again. */
  detail::Join join() noexcept { return detail::Join(group_); }
  /** For evix: goes on also when it was cancelled. */
  detail::Join join_for_results() noexcept { return detail::Join(group_, true); }
  bool empty() const noexcept { return group_.tasks.empty(); }

 private:
  detail::TaskGroup group_;
};

// ---- Cancelling from elsewhere ------------------------------------------------------------------

namespace detail {

struct CancelState;
/** One with_cancel() that is on its way; in the awaiter's frame. */
struct CancelHook : Linked {
  TaskLink* link = nullptr;
};

EVIX_API std::shared_ptr<CancelState> make_cancel_state(Loop& loop);
EVIX_API void cancel_state(const std::shared_ptr<CancelState>& state) noexcept;
EVIX_API bool is_cancelled(const CancelState& state) noexcept;
EVIX_API void join_state(CancelState& state, CancelHook& hook) noexcept;
EVIX_API void leave_state(CancelState& state, CancelHook& hook) noexcept;

}  // namespace detail

/** Says whether its source was cancelled; see with_cancel(). Copies cost a reference count. */
class CancelToken {
 public:
  /** Never cancelled. */
  CancelToken() noexcept = default;
  /** Any thread. */
  bool cancelled() const noexcept { return state_ != nullptr && detail::is_cancelled(*state_); }

  /** For evix. */
  const std::shared_ptr<detail::CancelState>& state() const noexcept { return state_; }

 private:
  friend class CancelSource;
  explicit CancelToken(std::shared_ptr<detail::CancelState> state) noexcept
      : state_(std::move(state)) {}
  std::shared_ptr<detail::CancelState> state_;
};

/**
 * Cancels what runs under with_cancel() with its tokens. Destroying it cancels nothing; it may
 * outlive the loop, and then does nothing.
 */
class CancelSource {
 public:
  /** The loop whose tasks get the tokens. The thread that runs it, or any while nobody does. */
  explicit CancelSource(Loop& loop) : state_(detail::make_cancel_state(loop)) {}

  CancelToken token() const noexcept { return CancelToken(state_); }
  /**
   * Once and for all; what begins under a token later is stopped at its first await. Any thread: on
   * another one than the loop's the tasks are told by a post, for which there must be memory.
   */
  void cancel() noexcept { detail::cancel_state(state_); }
  /** Any thread. */
  bool cancelled() const noexcept { return token().cancelled(); }

 private:
  std::shared_ptr<detail::CancelState> state_;
};

// ---- Deadlines ----------------------------------------------------------------------------------

namespace detail {

EVIX_API TaskTimer* start_deadline(TaskLink& link, Duration delay);
EVIX_API TaskTimer* start_deadline(TaskLink& link, TimePoint deadline);
EVIX_API void stop_deadline(TaskTimer& timer) noexcept;
/** `link` was left: a cancel of it that was on its way is over. */
EVIX_API void forget_cancel(TaskLink& link) noexcept;
EVIX_API Error interrupted_error(std::errc code) noexcept;

template <class Time>
class DeadlineLimit {
 public:
  static constexpr std::errc error = std::errc::timed_out;
  explicit DeadlineLimit(Time time) noexcept : time_(time) {}
  void prepare(TaskLink& link) { timer_ = start_deadline(link, time_); }
  void begin() const noexcept {}
  void stop() noexcept {
    if (timer_ != nullptr) stop_deadline(*std::exchange(timer_, nullptr));
  }

 private:
  Time time_;
  TaskTimer* timer_ = nullptr;
};

class TokenLimit {
 public:
  static constexpr std::errc error = std::errc::operation_canceled;
  explicit TokenLimit(CancelToken token) noexcept : token_(std::move(token)) {}
  void prepare(TaskLink& link) noexcept { hook_.link = &link; }
  void begin() noexcept {
    if (token_.state() != nullptr) join_state(*token_.state(), hook_);
  }
  void stop() noexcept {
    if (hook_.link != nullptr && token_.state() != nullptr) leave_state(*token_.state(), hook_);
    hook_.link = nullptr;
  }

 private:
  CancelToken token_;
  CancelHook hook_;
};

/** What a task of type T gives when it may be stopped: a Result in any case. */
template <class T>
struct InterruptedResult {
  using Type = Result<T>;
};
template <class T>
struct InterruptedResult<Result<T>> {
  using Type = Result<T>;
};

/** Awaits a task that the limit may stop before its end. */
template <class T, class Limit>
class [[nodiscard("it has to be awaited")]] Interruptible : public TaskAwaitable {
 public:
  using Outcome = typename InterruptedResult<T>::Type;

  Interruptible(Task<T> task, Limit limit) noexcept
      : task_(std::move(task)), limit_(std::move(limit)) {}
  // Only before it is awaited.
  Interruptible(Interruptible&& other) noexcept
      : task_(std::move(other.task_)), limit_(std::move(other.limit_)) {}
  Interruptible& operator=(Interruptible&&) = delete;
  ~Interruptible() { leave(); }

  template <std::derived_from<TaskPromiseBase> Promise>
  void await_suspend(std::coroutine_handle<Promise> parent) {
    link_.parent = &parent.promise();
    limit_.prepare(link_);
    link_.child = task_.release();
    link_.child->enter(link_);
    limit_.begin();
  }
  Outcome await_resume() {
    limit_.stop();
    forget_cancel(link_);
    if (link_.child == nullptr) return Failure(interrupted_error(Limit::error));
    auto* const child = static_cast<TaskPromise<T>*>(link_.child);
    if constexpr (std::is_void_v<T>) {
      child->take();
      return {};
    } else {
      return child->take();
    }
  }

 private:
  void leave() noexcept {
    limit_.stop();
    if (link_.parent == nullptr) return;
    forget_cancel(link_);
    if (TaskPromiseBase* const child = std::exchange(link_.child, nullptr)) {
      child->frame().destroy();
    }
  }

  Task<T> task_;
  Limit limit_;
  TaskLink link_;
};

/** What `co_await` gives for an awaitable. */
template <class Awaitable>
using AwaitedBy = decltype(std::declval<Awaitable&>().await_resume());

template <class T>
Task<T> as_task(Task<T> task) noexcept {
  return task;
}
template <std::derived_from<TaskAwaitable> Awaitable>
Task<AwaitedBy<Awaitable>> as_task(Awaitable awaitable) {
  co_return co_await std::move(awaitable);
}

template <class Operation>
struct TaskResult;
template <class T>
struct TaskResult<Task<T>> {
  using Type = T;
};
/** What the task of a task or awaitable gives. */
template <class Operation>
using ResultOf =
    typename TaskResult<decltype(as_task(std::declval<std::remove_cvref_t<Operation>>()))>::Type;

template <class Operation>
concept TaskOperation = requires(Operation operation) { as_task(std::move(operation)); };

}  // namespace detail

/**
 * Awaits a task, or an operation, for `timeout` at most, and gives its result; if it has none by
 * then it is stopped, with all that it awaits, and the error is std::errc::timed_out. The type is
 * that of the operation if that is a Result, else a Result of it; exceptions pass. What has come
 * when the time is over is given: it is not lost. Deadlines nest: the earliest one counts.
 */
template <class Rep, class Period, detail::TaskOperation Operation>
auto with_timeout(std::chrono::duration<Rep, Period> timeout, Operation operation) {
  using Limit = detail::DeadlineLimit<Duration>;
  return detail::Interruptible<detail::ResultOf<Operation>, Limit>(
      detail::as_task(std::move(operation)), Limit(saturate(timeout)));
}

/** As with_timeout(), up to `deadline` of the loop's clock. */
template <detail::TaskOperation Operation>
auto with_deadline(TimePoint deadline, Operation operation) {
  using Limit = detail::DeadlineLimit<TimePoint>;
  return detail::Interruptible<detail::ResultOf<Operation>, Limit>(
      detail::as_task(std::move(operation)), Limit(deadline));
}

/** As with_timeout(), until the token's source is cancelled: std::errc::operation_canceled. */
template <detail::TaskOperation Operation>
auto with_cancel(CancelToken token, Operation operation) {
  return detail::Interruptible<detail::ResultOf<Operation>, detail::TokenLimit>(
      detail::as_task(std::move(operation)), detail::TokenLimit(std::move(token)));
}

// ---- Several at once ----------------------------------------------------------------------------

/** How a race() ended. What others than the first one had got by then is there too. */
template <class... T>
struct RaceResult {
  std::size_t first = sizeof...(T);  ///< the index of the one that ended first
  std::tuple<std::optional<T>...> results;

  /** Empty: that one was stopped. */
  template <std::size_t index>
  auto& get() noexcept {
    return std::get<index>(results);
  }
};

namespace detail {

template <class T>
Task<void> store_result(Task<T> task, std::optional<ValueOf<T>>& result) {
  if constexpr (std::is_void_v<T>) {
    co_await std::move(task);
    result.emplace();
  } else {
    result.emplace(co_await std::move(task));
  }
}

template <class T>
Task<void> store_first(Task<T> task, std::optional<ValueOf<T>>& result, Scope& scope,
                       std::size_t& first, std::size_t index, std::size_t none) {
  co_await store_result(std::move(task), result);
  if (first == none) first = index;
  scope.cancel();
}

template <class... T>
Task<std::tuple<ValueOf<T>...>> await_all(std::tuple<Task<T>...> tasks) {
  std::tuple<std::optional<ValueOf<T>>...> results;
  Scope scope;
  const auto spawn_all = [&]<std::size_t... index>(std::index_sequence<index...>) {
    (scope.spawn(store_result(std::move(std::get<index>(tasks)), std::get<index>(results))), ...);
  };
  spawn_all(std::index_sequence_for<T...>());
  co_await scope.join_for_results();
  const auto have_all = [](const auto&... result) { return (result.has_value() && ...); };
  if (!std::apply(have_all, results)) co_await Stop();
  co_return std::apply(
      [](auto&... result) { return std::tuple<ValueOf<T>...>(std::move(*result)...); }, results);
}

template <class... T>
Task<RaceResult<ValueOf<T>...>> await_first(std::tuple<Task<T>...> tasks) {
  RaceResult<ValueOf<T>...> race;
  Scope scope;
  const auto spawn_all = [&]<std::size_t... index>(std::index_sequence<index...>) {
    (scope.spawn(store_first(std::move(std::get<index>(tasks)), std::get<index>(race.results),
                             scope, race.first, index, sizeof...(T))),
     ...);
  };
  spawn_all(std::index_sequence_for<T...>());
  co_await scope.join_for_results();
  if (race.first == sizeof...(T)) co_await Stop();
  co_return std::move(race);
}

}  // namespace detail

/**
 * Runs all beside each other and gives a std::tuple of their results (NoValue for nothing) when
 * all have ended. The first exception cancels the others and is thrown when they have ended.
 */
template <detail::TaskOperation... Operation>
auto when_all(Operation... operations) {
  return detail::await_all(
      std::tuple<Task<detail::ResultOf<Operation>>...>(detail::as_task(std::move(operations))...));
}

/**
 * Runs all beside each other until the first one ends; cancels the others, waits until they have
 * ended, and gives a RaceResult. A result that another one had got all the same is in it, so that
 * nothing is lost. An exception is thrown, whoever was first.
 */
template <detail::TaskOperation... Operation>
  requires(sizeof...(Operation) > 0)
auto race(Operation... operations) {
  return detail::await_first(
      std::tuple<Task<detail::ResultOf<Operation>>...>(detail::as_task(std::move(operations))...));
}

}  // namespace evix
