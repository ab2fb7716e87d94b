#pragma once

#include "capi/state.hpp"
#include "evix.h"

/** @file
 * Making, running and ending a loop of the C API, for its functions and for its loop threads.
 */
namespace evix::detail::capi {

/** Null: see evix_last_error(). Throws std::bad_alloc. */
LoopState* create_loop(const evix_loop_options_t& options, const char* function);

/** The state is not to be used afterwards. 0, or EVIX_EBUSY inside a callback. */
int destroy_loop(LoopState& state, const char* function) noexcept;

/** As evix_loop_run(), but a stop from before it counts. */
int run_until_stopped(LoopState& state, const char* function) noexcept;

}  // namespace evix::detail::capi
