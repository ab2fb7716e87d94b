#pragma once

#include <evix/handle.hpp>
#include <evix/loop.hpp>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/thread_id.hpp"
#include "capi/registry.hpp"
#include "evix.h"

/** @file
 * What the C API keeps for each loop and each handle, beside the C++ object.
 */
namespace evix::detail::capi {

class CustomDriver;
struct HandleState;

/**
 * One loop. Its memory is reused for other loops and never freed: a thread that holds a stale
 * handle may look at `runner` at any time. Everything but the atomics is the owner's.
 */
struct LoopState {
  enum class Phase : std::uint8_t { unused, creating, live, destroying };

  std::atomic<ThreadId> runner{nullptr};  ///< thread inside a run function; null: nobody runs it
  std::atomic<Phase> phase{Phase::unused};

  Entry* entry = nullptr;
  Id id = 0;
  std::optional<Loop> loop;  ///< there while `phase` is live
  EntryCache entries;        ///< for the handles
  HandleState* handles = nullptr;

  void* data = nullptr;
  void* backend_data = nullptr;
  CustomDriver* driver = nullptr;  ///< of a program's own backend
  bool in_backend = false;         ///< inside one of its five functions
  bool in_hook = false;
  bool in_callback = false;  ///< of a function that does not run the loop

  evix_callback_fn before_wait = nullptr;
  evix_callback_fn after_wait = nullptr;
  void* hook_data = nullptr;

  std::uint64_t keep_alive_count = 0;
  KeepAlive keep_alive;

  LoopState* next_unused = nullptr;
  LoopState* next_made = nullptr;  ///< all that were ever made

  evix_loop_t* pointer() const noexcept { return reinterpret_cast<evix_loop_t*>(id); }
};

/** One handle: what a pointer that C code holds stands for. Belongs to a loop. */
struct HandleState {
  HandleState() = default;
  HandleState(const HandleState&) = delete;
  HandleState& operator=(const HandleState&) = delete;
  virtual ~HandleState() = default;
  virtual Handle& handle() noexcept = 0;

  LoopState* loop = nullptr;
  Entry* entry = nullptr;
  Id id = 0;
  HandleState* next = nullptr;  ///< in LoopState::handles
  HandleState* previous = nullptr;
  void* data = nullptr;
  const char* file = nullptr;  ///< where the program made it
  int line = 0;

  void* pointer() const noexcept { return reinterpret_cast<void*>(id); }
};

/** While a callback runs outside of the run functions: the loop may not be destroyed. */
class InCallback {
 public:
  explicit InCallback(LoopState& state) noexcept
      : state_(state), before_(std::exchange(state.in_callback, true)) {}
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;
  ~InCallback() { state_.in_callback = before_; }

 private:
  LoopState& state_;
  const bool before_;
};

/** Takes the place that evix_here() left on this thread. */
void take_place(HandleState& state) noexcept;

/** Gives the handle an id and puts it in the list of its loop. Throws std::bad_alloc. */
void add_handle(LoopState& loop, HandleState& state, Kind kind);
/** The id becomes stale; the handle stays in the list of its loop until delete_handle(). */
void retract_handle(HandleState& state) noexcept;
/** Retracts it if that is to be done, and frees it. */
void delete_handle(HandleState* state) noexcept;
/** All that the loop still has. */
void delete_handles(LoopState& loop) noexcept;

}  // namespace evix::detail::capi
