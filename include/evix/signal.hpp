#pragma once

#include <cstdint>
#include <source_location>

#include "evix/callback.hpp"
#include "evix/error.hpp"
#include "evix/export.hpp"
#include "evix/handle.hpp"

/** @file
 * Signals as events of a loop.
 */
namespace evix {

/**
 * Calls back in the loop after a signal was caught; never inside a signal handler. Any number of
 * watchers in any number of loops may watch one signal. Signals that arrive while one is pending
 * merge, as in the kernel. The first watcher of a signal in the process saves its disposition, the
 * last one to stop restores it whole (handler, flags, mask): sigaction(2). A watcher of an
 * unreferenced handle does not keep run() from returning.
 */
class EVIX_API SignalWatcher : public Handle {
 public:
  using SignalCallback = Callback<void(int signal)>;

  /** An empty handle; assign one made with a loop before use. */
  SignalWatcher() noexcept = default;
  explicit SignalWatcher(Loop& loop);

  /**
   * Watches until stop().
   * @param signal 1..64. @return EINVAL for numbers that cannot be caught or do not exist.
   */
  [[nodiscard]] Result<void> start(int signal, SignalCallback callback,
                                   std::source_location location = std::source_location::current());
  /** Watches until the first call. */
  [[nodiscard]] Result<void> once(int signal, SignalCallback callback,
                                  std::source_location location = std::source_location::current());
  void stop() noexcept;

  /** The signal being watched; 0 when stopped. */
  int signal() const noexcept;
};

}  // namespace evix
