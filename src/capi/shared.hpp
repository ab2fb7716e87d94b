#pragma once

#include "capi/error.hpp"
#include "capi/registry.hpp"

/** @file
 * Objects of the C API that belong to no loop.
 */
namespace evix::detail::capi {

/** Has an entry from its birth, so that publishing it cannot fail. */
struct SharedState {
  SharedState() : entry(EntryCache().take()) {}
  SharedState(const SharedState&) = delete;
  SharedState& operator=(const SharedState&) = delete;
  ~SharedState() { EntryCache().free(entry); }

  void* pointer() const noexcept { return reinterpret_cast<void*>(id); }

  Entry& entry;
  Id id = 0;
};

/** Gives it to C. */
template <class T>
void* publish_shared(std::unique_ptr<T> state) noexcept {
  state->id = publish(state->entry, T::kind, nullptr, state.get());
  return state.release()->pointer();
}

/** `body(T&)` runs while no thread can free the object. */
template <class T, class Body>
int with_shared(const void* pointer, const char* function, Body&& body) noexcept {
  const Pin pin(to_id(pointer), T::kind);
  auto* state = static_cast<T*>(pin.object());
  if (state == nullptr) return fail(Errc::stale_handle, function);
  return guarded(function, [&]() -> int { return body(*state); });
}

/** Takes it back: nobody finds or uses it any more. Null when it is stale. */
template <class T>
std::unique_ptr<T> take_back(const void* pointer) noexcept {
  const Id id = to_id(pointer);
  Entry* entry = kind_of(id) == T::kind ? find(id) : nullptr;
  if (entry == nullptr) return nullptr;
  void* object = entry->object.load(std::memory_order_relaxed);
  if (!retract(*entry, id)) return nullptr;
  wait_for_pins(*entry);
  return std::unique_ptr<T>(static_cast<T*>(object));
}

}  // namespace evix::detail::capi
