#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "evix/error.hpp"
#include "evix/export.hpp"

/** @file
 * Which backends exist, which one a loop uses, and why.
 */
namespace evix {

/** A way to wait for the kernel. `automatic` takes the best one that works here. */
enum class BackendKind : unsigned char {
  automatic,
  epoll,     ///< Linux, epoll(7)
  poll,      ///< poll(2); every POSIX system
  sim,       ///< simulated: virtual clock, sockets in memory, ready order from a seed
  io_uring,  ///< Linux, io_uring(7)
  kqueue,    ///< macOS and BSD; not part of this version
  custom,    ///< a program's own, through the C API
};

/** "epoll", "poll", "sim" …; "automatic" for automatic. */
EVIX_API std::string_view to_string(BackendKind kind) noexcept;

/** The backend with this name; Errc::backend_unknown lists the valid names. */
[[nodiscard]] EVIX_API Result<BackendKind> backend_kind(std::string_view name);

/** What was decided about one backend, and why. */
struct BackendChoice {
  BackendKind kind = BackendKind::automatic;
  bool available = false;  ///< works here, now; false as well when `reason` is "not tried"
  bool chosen = false;
  std::string reason;  ///< why it was chosen, or why not
};

/** How the backend of a loop was chosen. */
struct BackendReport {
  BackendKind chosen = BackendKind::automatic;
  /** Who decided: "automatic choice", "LoopOptions::backend", "EVIX_BACKEND". */
  std::string decided_by;
  /** Every backend in the order of preference. */
  std::vector<BackendChoice> choices;
  /** Optional calls that this kernel refuses, and what is used instead. */
  std::vector<std::string> fallbacks;
};

/**
 * Tries every backend without making a loop, as `evix doctor` prints it.
 * @param wanted as in LoopOptions::backend; the environment variable EVIX_BACKEND counts as there.
 */
EVIX_API BackendReport probe_backends(BackendKind wanted = BackendKind::automatic);

}  // namespace evix
