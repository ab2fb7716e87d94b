#pragma once

#include <dirent.h>

#include <cstddef>

/** @file
 * How many descriptors this process has open.
 */
namespace evix::test {

/** For comparisons; without operator new, whose next call a test may have made fail. */
inline std::size_t entries_of(const char* path) {
  std::size_t count = 0;
  DIR* directory = opendir(path);
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

inline std::size_t open_descriptors() { return entries_of("/proc/self/fd"); }

}  // namespace evix::test
