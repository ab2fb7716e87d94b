#pragma once

/** @file
 * Marks what the shared library exports; everything else is hidden.
 */
#if defined(__GNUC__)
#define EVIX_API __attribute__((visibility("default")))
#else
#define EVIX_API
#endif
