#include "base/check.hpp"

#include <evix/callback.hpp>

#include <cstdio>
#include <cstdlib>

namespace evix::detail {

void fail_check(const char* message) noexcept {
  std::fprintf(stderr, "evix: %s\n", message);
  std::abort();
}

void fail_empty_callback() noexcept { fail_check("an empty callback was called"); }

}  // namespace evix::detail
