#pragma once

#include <evix/native_handle.hpp>

#include "sys/calls.hpp"

/** @file
 * Questions about a descriptor.
 */
namespace evix::detail {

/** 0, or -EBADF for a descriptor that is not open or cannot do I/O (O_PATH, open(2)). */
int check_open(Calls& calls, native_handle handle) noexcept;

}  // namespace evix::detail
