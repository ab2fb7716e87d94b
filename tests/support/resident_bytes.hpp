#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>

/** @file
 * How much memory this process has.
 */
namespace evix::test {

/** Resident, proc(5). Signed, for it may shrink. */
inline std::int64_t resident_bytes() {
  std::int64_t pages = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%*u %ld", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * sysconf(_SC_PAGESIZE);
}

}  // namespace evix::test
