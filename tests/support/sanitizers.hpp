#pragma once

/** @file
 * Which sanitizers the tests are built with. gcc defines a macro for each, clang has features.
 */
#if defined(__SANITIZE_ADDRESS__)
#define EVIX_TEST_ADDRESS_SANITIZED
#endif
#if defined(__SANITIZE_THREAD__)
#define EVIX_TEST_THREAD_SANITIZED
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EVIX_TEST_ADDRESS_SANITIZED
#endif
#if __has_feature(thread_sanitizer)
#define EVIX_TEST_THREAD_SANITIZED
#endif
#endif

namespace evix::test {

/** Under these sanitizers what was freed stays resident for a while. */
#if defined(EVIX_TEST_ADDRESS_SANITIZED) || defined(EVIX_TEST_THREAD_SANITIZED)
inline constexpr bool keeps_freed_memory = true;
#else
inline constexpr bool keeps_freed_memory = false;
#endif

}  // namespace evix::test
