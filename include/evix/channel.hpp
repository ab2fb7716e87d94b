#pragma once

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "evix/error.hpp"
#include "evix/sync.hpp"
#include "evix/task.hpp"

/** @file
 * A bounded queue from some tasks of a loop to others of it.
 */
namespace evix {

namespace detail {
EVIX_API Error closed_channel_error() noexcept;
}

/**
 * Up to `capacity` values (0 is 1), first in, first out, between tasks of one loop. push() waits
 * while it is full, pop() while it is empty; both in the order of the calls.
 *
 * A task that is cancelled while it waits has pushed, or popped, nothing. A value stays in the
 * channel until the task that it is for goes on, so none is lost with a task that is destroyed.
 * Destroying a channel while tasks wait for it ends the process with a message: close() it, and let
 * them end. Not for two threads.
 *
 * @tparam T an object that can be moved without an exception.
 */
template <class T>
class Channel {
  static_assert(std::is_nothrow_move_constructible_v<T>,
                "a value that cannot be moved for certain could be lost on its way");

 public:
  /** Takes all memory that it will need. */
  explicit Channel(std::size_t capacity) : values_(capacity == 0 ? 1 : capacity) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() {
    detail::check_nobody_waits(pushers_);
    detail::check_nobody_waits(poppers_, promised_);
  }

  std::size_t size() const noexcept { return size_; }
  bool closed() const noexcept { return closed_; }

  /**
   * Nothing more comes: pop() gives what is left and then nothing, push() fails with Errc::closed,
   * also one that waits. Twice does nothing.
   */
  void close() noexcept {
    closed_ = true;
    while (!pushers_.empty()) detail::resume_first(pushers_);
    while (!poppers_.empty()) detail::resume_first(poppers_);
  }

  /** False, and `value` is as it was: it is full, or closed. */
  [[nodiscard]] bool try_push(T& value) noexcept {
    if (closed_ || size_ == values_.size()) return false;
    put(std::move(value));
    return true;
  }
  /** Empty: there is none but for those that wait already. */
  [[nodiscard]] std::optional<T> try_pop() noexcept {
    if (size_ == promised_) return std::nullopt;
    return take(promised_);
  }

  class [[nodiscard("a push has to be awaited")]] Push : public detail::TaskAwaitable {
   public:
    Push(Channel& channel, T&& value) noexcept : channel_(&channel) {
      wait_.value.emplace(std::move(value));
    }
    // Only before it is awaited.
    Push(Push&& other) noexcept : Push(*other.channel_, std::move(*other.wait_.value)) {}
    Push& operator=(Push&&) = delete;
    ~Push() = default;

    template <std::derived_from<detail::TaskPromiseBase> Promise>
    bool await_suspend(std::coroutine_handle<Promise> task) noexcept {
      detail::TaskChain& chain = task.promise().chain();
      if (chain.stopped()) return true;
      if (channel_->try_push(*wait_.value)) {
        wait_.value.reset();
        return false;
      }
      if (channel_->closed_) return false;
      detail::enqueue_wait(channel_->pushers_, wait_, chain);
      return true;
    }
    Result<void> await_resume() const noexcept {
      if (wait_.value) return Failure(detail::closed_channel_error());
      return {};
    }

   private:
    friend class Channel;
    struct Wait : detail::QueueWait {
      std::optional<T> value;  ///< empty: it is in the channel
    };
    Channel* channel_;
    Wait wait_;
  };

  class [[nodiscard("a pop has to be awaited")]] Pop : public detail::TaskAwaitable {
   public:
    explicit Pop(Channel& channel) noexcept : channel_(&channel) {}
    // Only before it is awaited.
    Pop(Pop&& other) noexcept : channel_(other.channel_) {}
    Pop& operator=(Pop&&) = delete;
    ~Pop() {
      if (wait_.promised) channel_->break_promise();
    }

    template <std::derived_from<detail::TaskPromiseBase> Promise>
    bool await_suspend(std::coroutine_handle<Promise> task) noexcept {
      detail::TaskChain& chain = task.promise().chain();
      if (chain.stopped()) return true;
      wait_.value = channel_->try_pop();
      if (wait_.value || channel_->closed_) return false;
      detail::enqueue_wait(channel_->poppers_, wait_, chain);
      return true;
    }
    std::optional<T> await_resume() noexcept {
      if (!std::exchange(wait_.promised, false)) return std::exchange(wait_.value, std::nullopt);
      --channel_->promised_;
      return channel_->take(0);
    }

   private:
    friend class Channel;
    struct Wait : detail::QueueWait {
      bool promised = false;   ///< one of the values in the channel
      std::optional<T> value;  ///< that was there at once
    };
    Channel* channel_;
    Wait wait_;
  };

  /** `co_await channel.push(value)`: success, or Errc::closed. */
  Push push(T value) noexcept { return Push(*this, std::move(value)); }
  /** `co_await channel.pop()`: a value; empty when it is closed and nothing is left. */
  Pop pop() noexcept { return Pop(*this); }

 private:
  void promise(typename Pop::Wait& wait) noexcept {
    wait.promised = true;
    ++promised_;
  }
  void promise_to_first() noexcept {
    if (poppers_.empty() || size_ == promised_) return;
    promise(static_cast<typename Pop::Wait&>(detail::resume_first(poppers_)));
  }
  void break_promise() noexcept {
    --promised_;
    promise_to_first();
  }
  void put(T&& value) noexcept {
    at(size_).emplace(std::move(value));
    ++size_;
    promise_to_first();
  }
  std::optional<T>& at(std::size_t index) noexcept {
    return values_[(begin_ + index) % values_.size()];
  }
  // The value behind `index` others, which are promised; the first that waits to push has its
  // place.
  std::optional<T> take(std::size_t index) noexcept {
    std::optional<T> value(std::exchange(at(index), std::nullopt));
    for (; index != 0; --index) at(index).emplace(*std::exchange(at(index - 1), std::nullopt));
    begin_ = (begin_ + 1) % values_.size();
    --size_;
    if (!pushers_.empty()) {
      auto& push = static_cast<typename Push::Wait&>(detail::resume_first(pushers_));
      put(std::move(*push.value));
      push.value.reset();
    }
    return value;
  }

  std::vector<std::optional<T>> values_;
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
  std::size_t promised_ = 0;  ///< of them, to tasks that go on soon
  bool closed_ = false;
  detail::WaitQueue pushers_;
  detail::WaitQueue poppers_;
};

}  // namespace evix
