#include "capi/state.hpp"

#include "capi/call.hpp"

namespace evix::detail::capi {
namespace {

thread_local const char* place_file = nullptr;
thread_local int place_line = 0;

}  // namespace

void take_place(HandleState& state) noexcept {
  state.file = std::exchange(place_file, nullptr);
  state.line = std::exchange(place_line, 0);
}

void add_handle(LoopState& loop, HandleState& state, Kind kind) {
  state.entry = &loop.entries.take();
  state.loop = &loop;
  state.next = loop.handles;
  if (state.next != nullptr) state.next->previous = &state;
  loop.handles = &state;
  state.id = publish(*state.entry, kind, &loop, &state);
}

void retract_handle(HandleState& state) noexcept {
  if (!retract(*state.entry, state.id)) return;
  wait_for_pins(*state.entry);
}

void delete_handle(HandleState* state) noexcept {
  retract_handle(*state);
  (state->previous != nullptr ? state->previous->next : state->loop->handles) = state->next;
  if (state->next != nullptr) state->next->previous = state->previous;
  state->loop->entries.free(*state->entry);
  delete state;
}

void delete_handles(LoopState& loop) noexcept {
  while (HandleState* first = loop.handles) {
    retract_handle(*first);
    loop.handles = first->next;
    if (loop.handles != nullptr) loop.handles->previous = nullptr;
    loop.entries.free(*first->entry);
    delete first;
  }
}

int check_access(const LoopState& state, const Entry& entry, Id id, const char* function) noexcept {
  const ThreadId runner = state.runner.load(std::memory_order_acquire);
  if (runner != nullptr && runner != current_thread()) return fail(Errc::wrong_thread, function);
  // Only now is it certain that nobody else frees the handle: its loop is this thread's to use.
  if (entry.id.load(std::memory_order_relaxed) != id) return fail(Errc::stale_handle, function);
  if (state.in_backend || state.phase.load(std::memory_order_relaxed) != LoopState::Phase::live) {
    return fail(Errc::busy, function, "inside the backend");
  }
  if (!state.loop->core().usable_here()) return fail(Errc::wrong_thread, function);
  return 0;
}

}  // namespace evix::detail::capi

using namespace evix::detail::capi;

extern "C" void evix_here(const char* file, int line) {
  place_file = file;
  place_line = line;
}
