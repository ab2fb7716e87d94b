#pragma once

/** @file
 * The type of a descriptor of the operating system.
 */
namespace evix {

/** A descriptor as the operating system numbers it; -1 is none. */
using native_handle = int;

inline constexpr native_handle no_handle = -1;

}  // namespace evix
