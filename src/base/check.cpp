#include "base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace evix::detail {

void fail_check(const char* message, std::source_location location) noexcept {
  std::fprintf(stderr, "evix: %s (checked in %s)\n", message, location.function_name());
  std::abort();
}

}  // namespace evix::detail
