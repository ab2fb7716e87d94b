#pragma once

#include <cstddef>

/** @file
 * For a thread-local variable of the library: no function is called to find it.
 */

// glibc has room for a few such words also in libraries that are loaded later; musl has not.
#if defined(__ELF__) && defined(__GLIBC__)
#define EVIX_STATIC_TLS [[gnu::tls_model("initial-exec")]]
#else
#define EVIX_STATIC_TLS
#endif
