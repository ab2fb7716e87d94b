#pragma once

#include <evix/native_handle.hpp>

#include "sys/calls.hpp"

/** @file
 * What is asked of a descriptor, whatever it is for.
 */
namespace evix::detail {

/** 0, or -EBADF for a descriptor that is not open or cannot do I/O (O_PATH, open(2)). */
int check_open(Calls& calls, native_handle handle) noexcept;

/**
 * Its close(2) throws away what is not sent and tells the peer by a reset (socket(7), SO_LINGER).
 * The option belongs to the socket, which a forked child shares with its parent.
 */
void reset_when_closed(Calls& calls, native_handle handle) noexcept;

}  // namespace evix::detail
