#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "evix/export.hpp"

/** @file
 * A move-only callable with inline storage, which handles keep their callbacks in.
 */
namespace evix {

namespace detail {
[[noreturn, gnu::cold]] EVIX_API void fail_empty_callback() noexcept;
}

template <class Signature, std::size_t capacity_bytes = 3 * sizeof(void*)>
class Callback;

/**
 * A move-only callable. Captures of up to `capacity_bytes` live inside; larger ones, over-aligned
 * ones and those whose move may throw are put on the heap once, when the callback is set. Calling
 * never allocates. Calling an empty callback ends the process with a message; test it first.
 */
template <class R, class... Arguments, std::size_t capacity_bytes>
class Callback<R(Arguments...), capacity_bytes> {
 public:
  Callback() noexcept = default;
  Callback(std::nullptr_t) noexcept {}

  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, Callback> &&
             std::is_invocable_r_v<R, std::decay_t<F>&, Arguments...>)
  Callback(F&& function) {
    using Function = std::decay_t<F>;
    if constexpr (std::is_pointer_v<std::remove_cvref_t<F>>) {
      if (function == nullptr) return;
    }
    if constexpr (sizeof(Function) < capacity_bytes) {
      // A move copies the whole storage; gcc 12 warns in the user's program otherwise.
      __builtin_memset(storage_, 0, capacity_bytes);
    }
    if constexpr (fits<Function>) {
      ::new (static_cast<void*>(storage_)) Function(std::forward<F>(function));
      table_ = &inline_table<Function>;
    } else {
      ::new (static_cast<void*>(storage_)) Function*(new Function(std::forward<F>(function)));
      table_ = &heap_table<Function>;
    }
  }

  Callback(Callback&& other) noexcept { take(other); }
  /** What was held is destroyed last, so that its destructor may use this callback again. */
  Callback& operator=(Callback&& other) noexcept {
    if (this != &other) {
      const Callback held(std::move(*this));
      take(other);
    }
    return *this;
  }
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
  ~Callback() {
    if (table_ != nullptr && table_->destroy != nullptr) table_->destroy(storage_);
  }

  explicit operator bool() const noexcept { return table_ != nullptr; }

  R operator()(Arguments... arguments) {
    return checked_table().invoke(storage_, std::forward<Arguments>(arguments)...);
  }

  /** As the call, but what the callable leaves in the arguments stays with the caller. */
  R call_in_place(Arguments&&... arguments) {
    return checked_table().invoke(storage_, std::forward<Arguments>(arguments)...);
  }

  /** Destroys what is held; this callback is empty by then. */
  void reset() noexcept { const Callback held(std::move(*this)); }

 private:
  struct Table {
    R (*invoke)(void*, Arguments&&...);
    void (*relocate)(void* from, void* to) noexcept;  // null: copy the bytes
    void (*destroy)(void*) noexcept;                  // null: nothing to do
  };

  template <class F>
  static constexpr bool fits = sizeof(F) <= capacity_bytes && alignof(F) <= alignof(void*) &&
                               std::is_nothrow_move_constructible_v<F>;

  template <class F>
  static R call_inline(void* storage, Arguments&&... arguments) {
    return static_cast<R>((*static_cast<F*>(storage))(std::forward<Arguments>(arguments)...));
  }
  template <class F>
  static R call_heap(void* storage, Arguments&&... arguments) {
    return static_cast<R>((**static_cast<F**>(storage))(std::forward<Arguments>(arguments)...));
  }
  template <class F>
  static void relocate_inline(void* from, void* to) noexcept {
    F* source = static_cast<F*>(from);
    ::new (to) F(std::move(*source));
    source->~F();
  }
  template <class F>
  static void destroy_inline(void* storage) noexcept {
    static_cast<F*>(storage)->~F();
  }
  template <class F>
  static void destroy_heap(void* storage) noexcept {
    delete *static_cast<F**>(storage);
  }

  template <class F>
  static constexpr Table inline_table{
      &call_inline<F>, std::is_trivially_copyable_v<F> ? nullptr : &relocate_inline<F>,
      std::is_trivially_destructible_v<F> ? nullptr : &destroy_inline<F>};
  template <class F>
  static constexpr Table heap_table{&call_heap<F>, nullptr, &destroy_heap<F>};

  const Table& checked_table() const noexcept {
    if (table_ == nullptr) [[unlikely]]
      detail::fail_empty_callback();
    return *table_;
  }

  void take(Callback& other) noexcept {
    if (other.table_ == nullptr) return;
    table_ = std::exchange(other.table_, nullptr);
    if (table_->relocate != nullptr) {
      table_->relocate(other.storage_, storage_);
    } else {
      __builtin_memcpy(storage_, other.storage_, capacity_bytes);
    }
  }

  const Table* table_ = nullptr;
  alignas(void*) std::byte storage_[capacity_bytes];
};

}  // namespace evix
