#pragma once

#include <evix/backend.hpp>

#include <cstdint>
#include <memory>

#include "backend/contract.hpp"

/** @file
 * The choice of a backend, and its explanation.
 */
namespace evix::detail {

struct ChosenBackend {
  /** Simulated system calls, when the backend brings its own. Outlives `backend`. */
  std::unique_ptr<Calls> own_calls;
  std::unique_ptr<Backend> backend;
  BackendReport report;
};

struct BackendWish {
  BackendKind kind = BackendKind::automatic;
  std::uint64_t sim_seed = 1;
};

/**
 * Tries, in order: epoll, poll; only the wanted one when it is named in the wish or, for an
 * automatic wish, in EVIX_BACKEND. Falls back only when the choice is automatic.
 */
Result<ChosenBackend> choose_backend(const BackendWish& wish, Calls& calls, BufferPool& pool);

}  // namespace evix::detail
