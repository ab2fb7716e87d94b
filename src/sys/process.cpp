#include "sys/process.hpp"

#include <pthread.h>
#include <stdlib.h>

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#endif

namespace evix::detail {

constinit std::atomic<std::uint32_t> fork_count = 1;

namespace {

[[maybe_unused]] const int counting_fork_handlers =
    around_forks(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

int around_forks(void (*before)(), void (*in_parent)(), void (*in_child)()) noexcept {
  return pthread_atfork(before, in_parent, in_child);
}

bool single_threaded() noexcept {
#if __has_include(<sys/single_threaded.h>)
  return __libc_single_threaded != 0;
#else
  return false;
#endif
}

const char* environment(const char* name) noexcept { return secure_getenv(name); }

}  // namespace evix::detail
