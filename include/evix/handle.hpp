#pragma once

#include <cstdint>
#include <source_location>
#include <string_view>
#include <utility>

#include "evix/error.hpp"
#include "evix/export.hpp"

/** @file
 * What all handles have in common.
 */
namespace evix {

class Loop;

namespace detail {
struct HandleRecord;
class LoopCore;
EVIX_API void release_handle(HandleRecord* record) noexcept;
}  // namespace detail

/**
 * Base of every handle: one pointer to a record that the loop owns. Handles are move-only; a
 * handle may be moved, stopped, restarted or destroyed at any time, in any callback, its own
 * included. Destroying one stops and closes what it stands for, and none of its callbacks runs any
 * more: what was in flight ends without being told.
 *
 * A handle may outlive its loop: then every operation that returns a result returns Errc::closed,
 * and one that would report through its callback destroys it uncalled, for nothing runs any more.
 * Threads: only the thread that runs the loop may use a handle; while nobody runs it, any one
 * thread at a time. Anything else aborts with a message.
 */
class EVIX_API Handle {
 public:
  Handle(Handle&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      detail::HandleRecord* before = std::exchange(record_, std::exchange(other.record_, nullptr));
      if (before != nullptr) detail::release_handle(before);
    }
    return *this;
  }
  ~Handle() {
    if (record_ != nullptr) detail::release_handle(record_);
  }

  /** False for a default-made or moved-from handle, on which nothing else may be called. */
  explicit operator bool() const noexcept { return record_ != nullptr; }

  /** Whether something is started and not finished; this is what keeps run() from returning. */
  bool active() const noexcept;

  /** A name for Loop::handles() and messages; copied. Empty: none. */
  void set_name(std::string_view name);
  /** Valid until the name changes or the handle dies. */
  std::string_view name() const noexcept;

  /** A referenced handle (the default) keeps run() from returning while it is active. */
  void reference() noexcept;
  void unreference() noexcept;
  bool referenced() const noexcept;

  /** For evix. */
  detail::HandleRecord* record() const noexcept { return record_; }

 protected:
  Handle() noexcept = default;
  explicit Handle(detail::HandleRecord* record) noexcept : record_(record) {}
  detail::HandleRecord* record_ = nullptr;
};

}  // namespace evix
