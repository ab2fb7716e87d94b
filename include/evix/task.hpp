#pragma once

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <source_location>
#include <type_traits>
#include <utility>

#include "evix/export.hpp"
#include "evix/loop.hpp"
#include "evix/time.hpp"

/** @file
 * Coroutines: tasks, which await each other, sleeps and yields on the loop that runs them.
 *
 * Threads: a task runs on the thread that runs its loop, in its turns, and no two of a loop at
 * once. A task that has not begun belongs to whoever holds it. docs/decisions/0011-coroutines.md
 * has the reasons.
 */
namespace evix {

namespace detail {

class TaskPromiseBase;
struct TaskChain;
struct TaskWait;

/** Base of what a task may await besides a task. */
struct TaskAwaitable {
  /** await_suspend() finds out: it has the chain, which may have been cancelled. */
  bool await_ready() const noexcept { return false; }
};

/** What became of a wait that was to end before its time. */
enum class Withdrawn : std::uint8_t {
  ended,  ///< nobody will resume the task
  later,  ///< it goes on waiting; the task is resumed as without this
};

/** A kind of wait. */
struct TaskWaitKind {
  Withdrawn (*withdraw)(TaskWait& wait) noexcept;
  const char* waits_for;  ///< for people
};

/** What a suspended task waits for; in its frame, until it goes on or the wait was withdrawn. */
struct TaskWait {
  const TaskWaitKind* kind = nullptr;
  TaskChain* chain = nullptr;
};

/** That one task awaits another; in the frame of the first. */
struct TaskLink {
  TaskPromiseBase* parent = nullptr;
  TaskPromiseBase* child = nullptr;  ///< null: its frame is gone
};

/**
 * A spawned task and those that it awaits, each awaited by the one before. One of them runs or is
 * suspended; resuming it is all that the loop does. Part of a record in src/task.
 */
struct TaskChain {
  TaskPromiseBase* innermost = nullptr;  ///< runs or is suspended; null: all have ended
  TaskWait* wait = nullptr;              ///< null: it runs, or its turn has come
  /** Cancelled: the frames inside of this one's parent go at the next await. Null: not. */
  TaskLink* cancelled = nullptr;
  bool ready = false;  ///< the innermost one is another, to be resumed next

  /**
   * For await_suspend, before anything is started: whether the task is to be suspended without
   * having started anything, because it was cancelled.
   */
  bool stopped() const noexcept { return cancelled != nullptr; }
  /** From await_suspend: the task waits. */
  void suspend(TaskWait& with, const TaskWaitKind& kind) noexcept {
    wait = &with;
    with.kind = &kind;
    with.chain = this;
  }
};

[[noreturn, gnu::cold]] EVIX_API void fail_empty_task() noexcept;
/** Throws what Loop::run() gave that ended before the task of evix::run() had. */
[[noreturn, gnu::cold]] EVIX_API void fail_run(const Loop& loop, int code);

/** Frames are kept for the next task of the loop that this thread runs. */
EVIX_API void* allocate_frame(std::size_t size);
EVIX_API void free_frame(void* frame, std::size_t size) noexcept;

EVIX_API Loop& loop_of(TaskChain& chain) noexcept;

/** The timer of a sleep or of a deadline; of src/task. */
struct TaskTimer;
struct SleepWait : TaskWait {
  TaskTimer* timer = nullptr;
};
EVIX_API void start_sleep(SleepWait& wait, TaskChain& chain, Duration delay);
EVIX_API void start_sleep(SleepWait& wait, TaskChain& chain, TimePoint deadline);
EVIX_API void start_yield(TaskWait& wait, TaskChain& chain) noexcept;
/**
 * Goes on with a chain that waits, until it waits again or has ended; rethrows what left it. On the
 * loop's thread, in a callback, never inside the chain itself.
 */
void resume_chain(TaskChain& chain);

/**
 * What the promises of all tasks have in common.
 *
 * No task resumes another: one that awaits a task, and one that ends, says in the chain who is next
 * and returns to resume_chain(), which is a loop. So the stack stays as deep as it is whatever
 * awaits what, also where the compiler makes no tail calls (gcc at -O0 and -O1, sanitizers).
 */
class TaskPromiseBase {
 public:
  TaskPromiseBase(const TaskPromiseBase&) = delete;
  TaskPromiseBase& operator=(const TaskPromiseBase&) = delete;

  static void* operator new(std::size_t size) { return allocate_frame(size); }
  static void operator delete(void* frame, std::size_t size) noexcept { free_frame(frame, size); }

  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    template <std::derived_from<TaskPromiseBase> Promise>
    void await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
      ended.promise().leave();
    }
    void await_resume() const noexcept {}
  };
  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  void unhandled_exception() noexcept { exception_ = std::current_exception(); }

  template <std::derived_from<TaskAwaitable> Awaitable>
  Awaitable await_transform(Awaitable awaitable) const noexcept {
    return awaitable;
  }
  template <class T>
  auto await_transform(Task<T>&& task) const noexcept;
  /** A task is awaited once: co_await std::move(task). */
  template <class T>
  void await_transform(Task<T>& task) const = delete;

  TaskChain& chain() const noexcept { return *chain_; }
  TaskLink* link() const noexcept { return link_; }
  std::coroutine_handle<> frame() const noexcept { return frame_; }
  std::exception_ptr take_exception() noexcept { return std::exchange(exception_, nullptr); }

  /** Becomes the first of a chain. */
  void enter(TaskChain& chain) noexcept {
    chain_ = &chain;
    chain.innermost = this;
  }
  /** Becomes the innermost of the chain of the task that awaits it. */
  void enter(TaskLink& link) noexcept {
    link_ = &link;
    enter(*link.parent->chain_);
    chain_->ready = true;
  }

 protected:
  explicit TaskPromiseBase(std::coroutine_handle<> frame) noexcept : frame_(frame) {}
  ~TaskPromiseBase() = default;

  void rethrow_exception() {
    if (exception_ != nullptr) [[unlikely]] {
      std::rethrow_exception(take_exception());
    }
  }

 private:
  void leave() noexcept {
    chain_->innermost = link_ != nullptr ? link_->parent : nullptr;
    chain_->ready = link_ != nullptr;
  }

  const std::coroutine_handle<> frame_;
  TaskChain* chain_ = nullptr;  ///< null: not started
  TaskLink* link_ = nullptr;    ///< null: nobody awaits it
  std::exception_ptr exception_;
};

template <class T>
class TaskPromise final : public TaskPromiseBase {
 public:
  static_assert(std::is_same_v<T, std::remove_cvref_t<T>> && std::is_move_constructible_v<T>,
                "a task's result is void or an object that can be moved: no reference, no const");
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__,
                "frames are aligned as operator new is; put what needs more on the heap");

  TaskPromise() noexcept
      : TaskPromiseBase(std::coroutine_handle<TaskPromise>::from_promise(*this)) {}
  ~TaskPromise() {
    if (has_value_) value_.~T();
  }

  Task<T> get_return_object() noexcept;

  template <class Value = T>
    requires std::constructible_from<T, Value&&>
  void return_value(Value&& value) noexcept(std::is_nothrow_constructible_v<T, Value&&>) {
    std::construct_at(std::addressof(value_), std::forward<Value>(value));
    has_value_ = true;
  }
  T take() {
    rethrow_exception();
    return std::move(value_);
  }

 private:
  union {
    T value_;
  };
  bool has_value_ = false;
};

template <>
class TaskPromise<void> final : public TaskPromiseBase {
 public:
  TaskPromise() noexcept
      : TaskPromiseBase(std::coroutine_handle<TaskPromise>::from_promise(*this)) {}

  Task<void> get_return_object() noexcept;
  void return_void() const noexcept {}
  void take() { rethrow_exception(); }
};

/** Owns the frame of the awaited task. It does not move, for the task points to it. */
template <class T>
class [[nodiscard]] TaskAwaiter {
 public:
  explicit TaskAwaiter(TaskPromise<T>* child) noexcept { link_.child = child; }
  TaskAwaiter(const TaskAwaiter&) = delete;
  TaskAwaiter& operator=(const TaskAwaiter&) = delete;
  ~TaskAwaiter() {
    if (link_.child != nullptr) link_.child->frame().destroy();
  }

  bool await_ready() const noexcept { return false; }
  template <std::derived_from<TaskPromiseBase> Promise>
  void await_suspend(std::coroutine_handle<Promise> parent) noexcept {
    link_.parent = &parent.promise();
    link_.child->enter(link_);
  }
  T await_resume() { return static_cast<TaskPromise<T>*>(link_.child)->take(); }

 private:
  TaskLink link_;
};

}  // namespace detail

/**
 * A coroutine that gives a T, or nothing, to the one that awaits it.
 *
 * Lazy: the body begins when the task is awaited, or spawned (Loop::spawn()), or run (evix::run()),
 * once: `co_await std::move(task)`, and awaiting a task that was moved from ends the process with a
 * message. An exception that leaves the body is thrown at the co_await. A task that is destroyed
 * before it began destroys its arguments; one that has begun belongs to the task that awaits it,
 * and when the loop is destroyed all frames of a chain are, the innermost first.
 *
 * Awaiting costs no stack, however deep tasks await each other and however many are done at once.
 * Arguments live in the frame as the function declares them: what a reference or a lambda's capture
 * refers to has to outlive the task. Tasks await tasks and what this header offers; awaitables of
 * other libraries do not compile, for they would resume the task outside the loop.
 *
 * gcc 12.2 compiles a coroutine wrongly whose body is one `if`, `while`, `do` or `switch` with a
 * co_await in its condition and that has no local variable outside of it: the frame is too small.
 * Give it a local variable: `const bool more = co_await ...; if (more) ...`.
 *
 * @tparam T void, or an object that can be moved: no reference, not const, aligned as operator new
 * aligns (16 bytes) at most. Locals and arguments of the coroutine with a greater alignment are not
 * supported either, and compilers do not tell.
 */
template <class T>
class [[nodiscard("a task does nothing unless it is awaited, spawned or run")]] Task {
 public:
  using promise_type = detail::TaskPromise<T>;

  /** Empty: it can only be assigned to and destroyed. */
  Task() noexcept = default;
  Task(Task&& other) noexcept : promise_(std::exchange(other.promise_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    Task moved(std::move(other));
    std::swap(promise_, moved.promise_);
    return *this;
  }
  ~Task() {
    if (promise_ != nullptr) promise_->frame().destroy();
  }

  /** False when it was moved from: awaited, spawned or run. */
  explicit operator bool() const noexcept { return promise_ != nullptr; }

  /** For evix: hands over the frame. */
  [[nodiscard]] promise_type* release() noexcept {
    if (promise_ == nullptr) [[unlikely]] {
      detail::fail_empty_task();
    }
    return std::exchange(promise_, nullptr);
  }

 private:
  friend promise_type;
  explicit Task(promise_type* promise) noexcept : promise_(promise) {}
  promise_type* promise_ = nullptr;
};

namespace detail {

template <class T>
auto TaskPromiseBase::await_transform(Task<T>&& task) const noexcept {
  return TaskAwaiter<T>(task.release());
}

template <class T>
Task<T> TaskPromise<T>::get_return_object() noexcept {
  return Task<T>(this);
}

inline Task<void> TaskPromise<void>::get_return_object() noexcept { return Task<void>(this); }

/** A relative Duration or an absolute TimePoint. */
template <class Time>
class [[nodiscard("a sleep has to be awaited")]] Sleep : public TaskAwaitable {
 public:
  explicit Sleep(Time time) noexcept : time_(time) {}

  template <std::derived_from<TaskPromiseBase> Promise>
  void await_suspend(std::coroutine_handle<Promise> task) {
    TaskChain& chain = task.promise().chain();
    if (!chain.stopped()) start_sleep(wait_, chain, time_);
  }
  void await_resume() const noexcept {}

 private:
  Time time_;
  SleepWait wait_;
};

class [[nodiscard("a yield has to be awaited")]] Yield : public TaskAwaitable {
 public:
  template <std::derived_from<TaskPromiseBase> Promise>
  void await_suspend(std::coroutine_handle<Promise> task) noexcept {
    TaskChain& chain = task.promise().chain();
    if (!chain.stopped()) start_yield(wait_, chain);
  }
  void await_resume() const noexcept {}

 private:
  TaskWait wait_;
};

class [[nodiscard("this_loop() has to be awaited")]] ThisLoop : public TaskAwaitable {
 public:
  template <std::derived_from<TaskPromiseBase> Promise>
  bool await_suspend(std::coroutine_handle<Promise> task) noexcept {
    chain_ = &task.promise().chain();
    return false;
  }
  Loop& await_resume() const noexcept { return loop_of(*chain_); }

 private:
  TaskChain* chain_ = nullptr;
};

struct NoValue {};
template <class T>
using ValueOf = std::conditional_t<std::is_void_v<T>, NoValue, T>;

template <class T>
Task<void> run_and_stop(Loop& loop, Task<T> task, std::optional<ValueOf<T>>& result) {
  if constexpr (std::is_void_v<T>) {
    co_await std::move(task);
    result.emplace();
  } else {
    result.emplace(co_await std::move(task));
  }
  loop.stop();
}

}  // namespace detail

/**
 * Goes on at least `delay` later: as Timer::after(), never early. No delay, or a negative one,
 * waits for the timers of the next turn; forever waits until the loop is destroyed.
 */
template <class Rep, class Period>
detail::Sleep<Duration> sleep_for(std::chrono::duration<Rep, Period> delay) noexcept {
  return detail::Sleep<Duration>(saturate(delay));
}

/** Goes on at `deadline` of the loop's clock; one in the past is due in the next phase of timers.
 */
inline detail::Sleep<TimePoint> sleep_until(TimePoint deadline) noexcept {
  return detail::Sleep<TimePoint>(deadline);
}

/** Goes on in the next turn: all that is ready now has its chance before. */
inline detail::Yield yield() noexcept { return {}; }

/** The loop that runs this task: `Loop& loop = co_await evix::this_loop();`. Does not suspend. */
inline detail::ThisLoop this_loop() noexcept { return {}; }

/**
 * Makes a loop, runs the task to its end on it and gives its result; rethrows what left the task.
 * Whatever else was started on the loop ends with it: other tasks are destroyed, the handles that
 * the result may have are closed.
 *
 * Throws what left another task or a callback before, std::system_error when the loop cannot be
 * made or its run() fails, and with std::errc::operation_canceled when somebody stopped the loop.
 */
template <class T>
T run(Task<T> task, const LoopOptions& options = {}) {
  Loop loop(options);
  std::optional<detail::ValueOf<T>> result;
  loop.spawn(detail::run_and_stop(loop, std::move(task), result));
  const int code = loop.run();
  if (!result) detail::fail_run(loop, code);
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace evix
