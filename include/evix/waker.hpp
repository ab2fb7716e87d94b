#pragma once

#include <memory>
#include <source_location>

#include "evix/callback.hpp"
#include "evix/export.hpp"
#include "evix/handle.hpp"

/** @file
 * Wake-ups from other threads that merge.
 */
namespace evix {

namespace detail {
struct WakeNode;
}

/** The sending half of a Waker: copyable, for any thread, valid after waker and loop have died. */
class EVIX_API WakeSender {
 public:
  WakeSender() noexcept = default;
  WakeSender(const WakeSender&) noexcept;
  WakeSender(WakeSender&&) noexcept;
  WakeSender& operator=(WakeSender) noexcept;
  ~WakeSender();
  /**
   * One call of the waker's callback will begin after this call; several before it merge into one.
   * What the sender wrote before is visible to the callback. Allocates nothing.
   * @return false when the waker or its loop is closed.
   */
  bool wake() const noexcept;

 private:
  friend class Waker;
  explicit WakeSender(detail::WakeNode* node) noexcept;
  detail::WakeNode* node_ = nullptr;
};

/** Calls back in the loop after any thread woke it. Started from birth, and unreferenced. */
class EVIX_API Waker : public Handle {
 public:
  Waker() noexcept = default;
  Waker(Loop& loop, Callback<void()> callback,
        std::source_location location = std::source_location::current());
  WakeSender sender() const;
  /** No call begins after this; senders get false. */
  void stop() noexcept;
};

}  // namespace evix
