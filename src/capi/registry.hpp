#pragma once

#include <atomic>
#include <cstdint>

/** @file
 * The table behind the opaque pointers of the C API.
 *
 * A pointer that C code holds is no address but an id: kind, slot and generation. Its slot has an
 * entry here that remembers the id it was given out with; any other value finds nothing. Entries
 * are never freed, so that every thread may look at every entry at any time. The lowest bit of an
 * id is set: no address of an object equals one.
 */
namespace evix::detail::capi {

struct LoopState;

enum class Kind : std::uint8_t {
  none,
  loop,
  timer,
  io,
  signal,
  waker,
  listener,
  stream,
  poster,
  loop_thread,
  poller,
  timer_queue,
};

using Id = std::uintptr_t;

inline Id to_id(const void* pointer) noexcept { return reinterpret_cast<Id>(pointer); }

constexpr Kind kind_of(Id id) noexcept { return static_cast<Kind>(id >> 1 & 0xfU); }

/** One slot. Who may write: the thread that took it; `pins` any. */
struct Entry {
  std::atomic<Id> id{0};  ///< 0: free, or not yet published
  std::atomic<void*> object{nullptr};
  std::atomic<LoopState*> loop{nullptr};  ///< null: belongs to no loop
  std::atomic<std::uint32_t> pins{0};     ///< threads that use the object now; see Pin
  std::uint32_t slot = 0;
  Id generation = 0;  ///< of the last id
  Entry* next_free = nullptr;
};

/**
 * Entries that one thread at a time takes from and gives back to without a lock; it gets more from
 * the common list in batches.
 */
class EntryCache {
 public:
  EntryCache() = default;
  EntryCache(const EntryCache&) = delete;
  EntryCache& operator=(const EntryCache&) = delete;
  ~EntryCache() { give_back(); }

  /** Throws std::bad_alloc when there is no memory or no slot left. */
  Entry& take();
  void free(Entry& entry) noexcept;
  /** Everything to the common list. */
  void give_back() noexcept;

 private:
  Entry* free_ = nullptr;
};

/** Makes the entry findable. @return the id that it now has. */
Id publish(Entry& entry, Kind kind, LoopState* loop, void* object) noexcept;

/** Null for an id that is not published now. Any thread, and signal handlers. */
Entry* find(Id id) noexcept;

/** Nobody finds the entry any more. @return false when somebody else has retracted this id. */
bool retract(Entry& entry, Id id) noexcept;

/** Waits until no pin is held. Pins are held during one call only, never across user code. */
void wait_for_pins(const Entry& entry) noexcept;

/**
 * Keeps the object of an id from being freed while another thread uses it: whoever frees it first
 * retracts the id (or marks the object as dying) and then waits for the pins.
 */
class Pin {
 public:
  Pin(Id id, Kind kind) noexcept;
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  ~Pin();
  /** Null when the id is stale or of another kind. */
  void* object() const noexcept { return object_; }

 private:
  Entry* entry_ = nullptr;
  void* object_ = nullptr;
};

}  // namespace evix::detail::capi
