#pragma once

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <utility>

#include "evix/export.hpp"
#include "evix/linked_list.hpp"
#include "evix/task.hpp"

/** @file
 * What tasks of one loop wait for from each other: events, semaphores, mutexes.
 *
 * Nothing here is safe to use from two threads: tasks of a loop never run at once, and a mutex is
 * for what must not change while its holder waits. Who waits first goes on first. A task that is
 * cancelled while it waits leaves the queue; what had been given to it by then it gets, or, if it
 * is destroyed, gives back. Destroying one of these while tasks wait for it ends the process with
 * a message, for they would wait for ever.
 */
namespace evix {

namespace detail {

struct WaitQueue;

/** A task in a queue; in its frame. */
struct QueueWait : TaskWait, Linked {
  WaitQueue* queue = nullptr;  ///< null: not, or not any more
};

/** Its task was taken out of the queue to go on, and is destroyed before it did. */
inline bool was_given(const QueueWait& wait) noexcept {
  return wait.chain != nullptr && wait.queue == nullptr;
}

/** First in, first out. */
struct WaitQueue : LinkedList<QueueWait> {};

EVIX_API void enqueue_wait(WaitQueue& queue, QueueWait& wait, TaskChain& chain) noexcept;
/** The first one is out of the queue, and its task goes on in a turn. Not of an empty queue. */
EVIX_API QueueWait& resume_first(WaitQueue& queue) noexcept;
/** `promises`: tasks that go on soon and will use what is about to be destroyed. */
EVIX_API void check_nobody_waits(const WaitQueue& queue, std::size_t promises = 0) noexcept;
[[noreturn, gnu::cold]] EVIX_API void fail_permit() noexcept;

}  // namespace detail

/** A condition that tasks wait for until it is set; stays set until reset(). */
class Event {
 public:
  Event() noexcept = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { detail::check_nobody_waits(queue_); }

  bool is_set() const noexcept { return set_; }
  /** All that wait go on in a turn, also if it is reset before that. */
  void set() noexcept {
    set_ = true;
    while (!queue_.empty()) detail::resume_first(queue_);
  }
  void reset() noexcept { set_ = false; }

  class [[nodiscard("a wait has to be awaited")]] Wait : public detail::TaskAwaitable {
   public:
    explicit Wait(Event& event) noexcept : event_(&event) {}
    template <std::derived_from<detail::TaskPromiseBase> Promise>
    bool await_suspend(std::coroutine_handle<Promise> task) noexcept {
      detail::TaskChain& chain = task.promise().chain();
      if (chain.stopped()) return true;
      if (event_->set_) return false;
      detail::enqueue_wait(event_->queue_, wait_, chain);
      return true;
    }
    void await_resume() const noexcept {}

   private:
    Event* event_;
    detail::QueueWait wait_;
  };
  /** `co_await event.wait()`. */
  Wait wait() noexcept { return Wait(*this); }

 private:
  detail::WaitQueue queue_;
  bool set_ = false;
};

class Semaphore;

/** One permit of a semaphore, or the lock of a mutex; given back when it is destroyed. */
class [[nodiscard("it is given back at once")]] Permit {
 public:
  /** None. */
  Permit() noexcept = default;
  Permit(Permit&& other) noexcept : semaphore_(std::exchange(other.semaphore_, nullptr)) {}
  Permit& operator=(Permit&& other) noexcept {
    Permit moved(std::move(other));
    std::swap(semaphore_, moved.semaphore_);
    return *this;
  }
  inline ~Permit();

  explicit operator bool() const noexcept { return semaphore_ != nullptr; }
  /** Gives it back now; a second time does nothing. */
  inline void release() noexcept;

 private:
  friend class Semaphore;
  explicit Permit(Semaphore& semaphore) noexcept : semaphore_(&semaphore) {}
  Semaphore* semaphore_ = nullptr;
};

/** A number of permits; who finds none waits. */
class Semaphore {
 public:
  explicit Semaphore(std::size_t permits) noexcept : available_(permits), total_(permits) {}
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;
  /** All permits have been given back, and nobody waits; else the process ends with a message. */
  ~Semaphore() {
    detail::check_nobody_waits(queue_);
    if (available_ != total_) detail::fail_permit();
  }

  std::size_t available() const noexcept { return available_; }
  /** An empty permit: there is none. */
  Permit try_acquire() noexcept {
    if (available_ == 0) return {};
    --available_;
    return Permit(*this);
  }

  class [[nodiscard("an acquire has to be awaited")]] Acquire : public detail::TaskAwaitable {
   public:
    explicit Acquire(Semaphore& semaphore) noexcept : semaphore_(&semaphore) {}
    // Only before it is awaited.
    Acquire(Acquire&& other) noexcept : semaphore_(other.semaphore_) {}
    Acquire& operator=(Acquire&&) = delete;
    ~Acquire() {
      if (detail::was_given(wait_)) semaphore_->give_back();
    }

    template <std::derived_from<detail::TaskPromiseBase> Promise>
    bool await_suspend(std::coroutine_handle<Promise> task) noexcept {
      detail::TaskChain& chain = task.promise().chain();
      if (chain.stopped()) return true;
      if (semaphore_->available_ != 0) {
        --semaphore_->available_;
        return false;
      }
      detail::enqueue_wait(semaphore_->queue_, wait_, chain);
      return true;
    }
    Permit await_resume() noexcept {
      wait_.chain = nullptr;
      return Permit(*semaphore_);
    }

   private:
    Semaphore* semaphore_;
    detail::QueueWait wait_;
  };
  /** `Permit permit = co_await semaphore.acquire();` In the order of the calls. */
  Acquire acquire() noexcept { return Acquire(*this); }

 private:
  friend class Permit;
  // To the first that waits: whoever comes meanwhile comes after it.
  void give_back() noexcept {
    if (!queue_.empty()) {
      detail::resume_first(queue_);
    } else {
      ++available_;
    }
  }

  detail::WaitQueue queue_;
  std::size_t available_;
  std::size_t total_;
};

inline void Permit::release() noexcept {
  if (Semaphore* const semaphore = std::exchange(semaphore_, nullptr)) semaphore->give_back();
}
inline Permit::~Permit() { release(); }

/**
 * For what must not change while the one that changes it waits. Not recursive.
 *
 *     const evix::Permit lock = co_await mutex.lock();
 */
class Mutex {
 public:
  bool is_locked() const noexcept { return semaphore_.available() == 0; }
  Permit try_lock() noexcept { return semaphore_.try_acquire(); }
  Semaphore::Acquire lock() noexcept { return semaphore_.acquire(); }

 private:
  Semaphore semaphore_{1};
};

}  // namespace evix
