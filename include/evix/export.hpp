#pragma once

/** @file
 * Marks what the shared library exports; everything else is hidden.
 */
#if __cplusplus < 202100L
#error "evix is C++23: compile with -std=c++23"
#endif

#if defined(__GNUC__)
#define EVIX_API __attribute__((visibility("default")))
#else
#define EVIX_API
#endif
