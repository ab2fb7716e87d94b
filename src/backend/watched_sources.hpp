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
};

/** From a number to its source; a source lives from its first watch operation to its last. */
class WatchedSources {
 public:
  explicit WatchedSources(PollerState& poller) noexcept : poller_(poller) {}

  /** Gives `op` its source, which is new or shared. 0 or the negative error. */
  int add(WatchOp& op) noexcept;
  /** Asks the poller for the union of what its operations want. 0 or the negative error. */
  int sync(WatchedSource& source) noexcept;
  /** Takes `op` out of its source. The source, when no operation is left, is to be dropped. */
  WatchedSource* remove(WatchOp& op) noexcept;
  void drop(WatchedSource& source) noexcept;

 private:
  WatchedSource* make(const WatchOp& op, int& error) noexcept;

  PollerState& poller_;
  Slab<WatchedSource> sources_;
  // The pool keeps the nodes, so that watching again and again allocates nothing.
  std::pmr::unsynchronized_pool_resource map_memory_;
  std::pmr::unordered_map<native_handle, WatchedSource*> by_handle_{&map_memory_};
};

}  // namespace evix::detail
