#pragma once

#include <evix/backend.hpp>

#include "evix.h"

namespace evix::detail::capi {

/** Which built-in backend this is; custom for one of the program's own, automatic for null. */
BackendKind builtin_kind(const evix_backend_t* backend) noexcept;

}  // namespace evix::detail::capi
