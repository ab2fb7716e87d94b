#pragma once

/** @file
 * The cheapest identity of a thread: the address of a thread-local object.
 */
namespace evix::detail {

using ThreadId = const void*;

inline ThreadId current_thread() noexcept {
  static thread_local char marker;
  return &marker;
}

}  // namespace evix::detail
