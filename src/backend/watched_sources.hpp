#pragma once

#include <cstdint>
#include <memory_resource>
#include <unordered_map>

#include "base/slab.hpp"
#include "op/op.hpp"
#include "poll/poller_state.hpp"

/** @file
 * Somebody else's descriptors, as a readiness backend keeps them.
 */
namespace evix::detail {

inline std::uint64_t token_of(Source& source) noexcept {
  return reinterpret_cast<std::uint64_t>(&source);
}

/** A watched descriptor, shared by all watch operations on its number. */
struct WatchedSource : Source {
  std::uint32_t slot = 0;
  bool resting = false;  ///< in the list of those that end with the turn if nobody watches them
  WatchedSource* next_resting = nullptr;
};

/**
 * From a number to its source; a source lives from its first watch operation to its last. One whose
 * last operation was a one-shot that has fired rests until the next wait: most are watched again
 * at once, and then their registration serves again.
 */
class WatchedSources {
 public:
  explicit WatchedSources(PollerState& poller) noexcept : poller_(poller) {}

  /** Gives `op` its source, which is new or shared. 0 or the negative error. */
  int add(WatchOp& op) noexcept;
  /** Asks the poller for the union of what its operations want. 0 or the negative error. */
  int sync(WatchedSource& source) noexcept;
  /** Takes `op` out of its source. The source, when no operation is left, is to be dropped. */
  WatchedSource* remove(WatchOp& op) noexcept;
  /** Takes it out of the kernel's set before it returns. */
  void drop(WatchedSource& source) noexcept;
  void rest(WatchedSource& source) noexcept;
  /** Before a wait: drops those that rest. */
  void end_rest() noexcept;

 private:
  void unregister(WatchedSource& source) noexcept;
  WatchedSource* make(const WatchOp& op, int& error) noexcept;

  PollerState& poller_;
  WatchedSource* resting_ = nullptr;
  Slab<WatchedSource> sources_;
  // The pool keeps the nodes, so that watching again and again allocates nothing.
  std::pmr::unsynchronized_pool_resource map_memory_;
  std::pmr::unordered_map<native_handle, WatchedSource*> by_handle_{&map_memory_};
};

}  // namespace evix::detail
