#pragma once

#include <evix/callback.hpp>

#include <utility>

#include "base/mutation.hpp"
#include "loop/core.hpp"

/** @file
 * A callback that runs from the stack, so that it may end, restart or destroy its own handle.
 */
namespace evix::detail {

/** A callback of a record, and where it is while it runs. */
template <class Signature>
struct CallbackSlot {
  Callback<Signature> stored;
  Callback<Signature>* running = nullptr;  ///< of the outermost call that still has it

  /**
   * @return the callback from before. Whatever it owns goes with it, the last reference to its own
   * handle perhaps: so it has to die after the last use of the record.
   */
  [[nodiscard]] Callback<Signature> replace(Callback<Signature>&& callback) noexcept {
    return std::exchange(stored, std::move(callback));
  }
  /** A callback that is running goes when its call has returned. */
  void reset() noexcept { stored.reset(); }
};

/**
 * Calls it with `arguments`, if there is one. Afterwards it goes back to its place when `keep()`
 * says that it is still wanted and no other one was set. Inside a nested run the callback that is
 * running further out is called again, where it is.
 */
template <class Record, class Signature, class Keep, class... Arguments>
void call_slot(Record& record, CallbackSlot<Signature>& slot, Keep keep, Arguments... arguments) {
  if (mutated("T011")) return slot.stored(arguments...);
  LoopCore& core = *record.core;
  if (!slot.stored) {
    if (slot.running != nullptr) (*slot.running)(arguments...);
    return;
  }
  struct Call {
    Record& record;
    LoopCore& core;
    CallbackSlot<Signature>& slot;
    Keep& keep;
    Callback<Signature> callback;
    Callback<Signature>* outer;
    ~Call() {
      slot.running = outer;
      if (!slot.stored && !record.released && keep()) slot.stored = std::move(callback);
      core.work_taken(record);
    }
  } call{record, core, slot, keep, std::move(slot.stored), slot.running};
  slot.running = &call.callback;
  ++record.works_queued;
  call.callback(arguments...);
}

}  // namespace evix::detail
