#pragma once

#include <cerrno>
#include <memory>
#include <type_traits>
#include <utility>

#include "capi/error.hpp"
#include "capi/state.hpp"
#include "loop/core.hpp"

/** @file
 * How every function of the C API is built: find what the pointer stands for, check that this
 * thread may use it now, run the body, and turn whatever happens into a code.
 *
 * `function` is the __func__ of the C function; errors name it.
 */
namespace evix::detail::capi {

/** 0, or why this thread may not use the loop now. `id` is what `entry` was found by. */
int check_access(const LoopState& state, const Entry& entry, Id id, const char* function) noexcept;

/** What a body gives when it fails, by the type that the C function returns. */
template <class R>
R failed(int code) noexcept {
  if constexpr (std::is_pointer_v<R>) {
    (void)code;
    return nullptr;
  } else if constexpr (std::is_unsigned_v<R>) {
    (void)code;
    return 0;
  } else {
    return code;
  }
}

/** Runs a body; no exception leaves it. */
template <class Body>
auto guarded(const char* function, Body&& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return failed<decltype(body())>(fail_thrown(function));
  }
}

/** Null when `id` is of no loop that exists. */
inline const Entry* find_loop(Id id) noexcept {
  return kind_of(id) == Kind::loop ? find(id) : nullptr;
}
inline LoopState& loop_of(const Entry& entry) noexcept {
  return *static_cast<LoopState*>(entry.object.load(std::memory_order_relaxed));
}

/** For the owner's functions of a loop: `body(LoopState&)` runs when this thread may use it. */
template <class Body>
auto with_loop(const void* loop, const char* function, Body&& body) noexcept
    -> decltype(body(std::declval<LoopState&>())) {
  using R = decltype(body(std::declval<LoopState&>()));
  const Id id = to_id(loop);
  const Entry* entry = find_loop(id);
  if (entry == nullptr) return failed<R>(fail(Errc::stale_handle, function));
  LoopState& state = loop_of(*entry);
  if (const int code = check_access(state, *entry, id, function)) return failed<R>(code);
  return guarded(function, [&] { return body(state); });
}

/** For functions that any thread may call: the loop is not destroyed while `body` runs. */
template <class Body>
int with_shared_loop(const void* loop, const char* function, Body&& body) noexcept {
  const Pin pin(to_id(loop), Kind::loop);
  auto* state = static_cast<LoopState*>(pin.object());
  if (state == nullptr || state->phase.load(std::memory_order_seq_cst) != LoopState::Phase::live) {
    return fail(Errc::stale_handle, function);
  }
  return guarded(function, [&]() -> int { return body(*state); });
}

/** For the owner's functions of a handle of type T. */
template <class T, class Body>
auto with_handle(const void* pointer, const char* function, Body&& body) noexcept
    -> decltype(body(std::declval<T&>())) {
  using R = decltype(body(std::declval<T&>()));
  const Id id = to_id(pointer);
  bool fits = kind_of(id) >= Kind::timer && kind_of(id) <= Kind::stream;
  if constexpr (!std::is_same_v<T, HandleState>) fits = kind_of(id) == T::kind;
  const Entry* entry = fits ? find(id) : nullptr;
  const LoopState* loop = entry != nullptr ? entry->loop.load(std::memory_order_relaxed) : nullptr;
  if (loop == nullptr) return failed<R>(fail(Errc::stale_handle, function));
  if (const int code = check_access(*loop, *entry, id, function)) return failed<R>(code);
  auto* state = static_cast<HandleState*>(entry->object.load(std::memory_order_relaxed));
  return guarded(function, [&] { return body(static_cast<T&>(*state)); });
}

/** As with_handle(), for functions that are given the loop too. */
template <class T, class Body>
int with_handle_of(const void* loop, const void* pointer, const char* function,
                   Body&& body) noexcept {
  return with_loop(loop, function, [&](LoopState& owner) {
    return with_handle<T>(pointer, function, [&](T& state) -> int {
      if (state.loop != &owner) return fail_errno(EINVAL, function, "handle of another loop");
      return body(state);
    });
  });
}

/**
 * Makes a handle of type T: `start(T&)` gives 0 or a code, and then there is no handle.
 * @return the pointer for C.
 */
template <class T, class Start>
typename T::CType* make_handle(LoopState& loop, Start&& start) {
  auto state = std::make_unique<T>(*loop.loop);
  take_place(*state);
  add_handle(loop, *state, T::kind);
  // Also when it throws: nobody could free what has no pointer.
  const auto undo = [](T* made) { delete_handle(made); };
  std::unique_ptr<T, decltype(undo)> handle(state.release());
  if (start(*handle) != 0) return nullptr;
  return static_cast<typename T::CType*>(handle.release()->pointer());
}

}  // namespace evix::detail::capi
