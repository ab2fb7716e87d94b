#include "base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace evix::detail {

void fail_check(const char* message) noexcept {
  std::fprintf(stderr, "evix: %s\n", message);
  std::abort();
}

}  // namespace evix::detail
