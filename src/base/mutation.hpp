#pragma once

#ifdef EVIX_MUTATIONS
#include <cstdlib>
#include <cstring>
#endif

/** @file
 * Switches that put a known mistake back in, so that a test is seen failing without its fix
 * (tests/mutations). Only the objects of the target evix_mutants have them.
 */
namespace evix::detail {

#ifdef EVIX_MUTATIONS
/** Whether the environment variable EVIX_MUTATION names this mistake. */
inline bool mutated(const char* trap) noexcept {
  static const char* const active = std::getenv("EVIX_MUTATION");
  return active != nullptr && std::strcmp(active, trap) == 0;
}
#else
consteval bool mutated(const char* /*trap*/) noexcept { return false; }
#endif

}  // namespace evix::detail
