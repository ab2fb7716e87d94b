#pragma once

#include <source_location>

#include "evix/callback.hpp"
#include "evix/error.hpp"
#include "evix/export.hpp"
#include "evix/handle.hpp"
#include "evix/native_handle.hpp"
#include "evix/ready.hpp"

/** @file
 * Readiness of any descriptor.
 */
namespace evix {

/**
 * Calls back when a descriptor is ready. Level-triggered on every backend: as long as it is ready
 * and the watcher is started, there is one call a turn, with all bits of that turn together.
 *
 * - Any number of watchers may watch one descriptor; each gets the bits it asked for.
 * - The bits are those of the end of the turn's wait: what one watcher has read, another one of the
 *   same descriptor may still be told of, so watched descriptors are best non-blocking.
 * - Hang-ups and errors go to every watcher, whatever it asked for.
 * - Regular files, directories and /dev/null are always ready while watched. A closed descriptor
 *   or one opened with O_PATH is an error at once (EBADF).
 * - The descriptor stays the caller's. stop() first, then close it: after stop() returns the kernel
 *   watches it no more. If it is closed while watched, poll reports Ready::invalid once and stops;
 *   epoll cannot see it and reports nothing; io_uring keeps the file open until stop(), so that the
 *   other end hears of the close only then.
 * - One registered by a stream or listener of the same loop: Errc::already_registered.
 */
class EVIX_API Watcher : public Handle {
 public:
  using ReadyCallback = Callback<void(Ready ready)>;

  /** An empty handle; assign one made with a loop before use. */
  Watcher() noexcept = default;
  explicit Watcher(Loop& loop);

  /** Watches until stop(). Starting a started watcher restarts it with what is given. */
  [[nodiscard]] Result<void> start(native_handle handle, Ready interest, ReadyCallback callback,
                                   std::source_location location = std::source_location::current());
  /** Watches until the first call; the watcher is stopped when its callback runs. */
  [[nodiscard]] Result<void> once(native_handle handle, Ready interest, ReadyCallback callback,
                                  std::source_location location = std::source_location::current());
  /** Watches for something else with the same callback. @return Errc::closed when not started. */
  [[nodiscard]] Result<void> set_interest(Ready interest);
  void stop() noexcept;

  /** The descriptor being watched; no_handle when stopped. */
  native_handle handle() const noexcept;
};

}  // namespace evix
