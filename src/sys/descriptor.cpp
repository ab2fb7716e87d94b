#include "sys/descriptor.hpp"

#include <errno.h>
#include <fcntl.h>

namespace evix::detail {

int check_open(Calls& calls, native_handle handle) noexcept {
  const int flags = calls.descriptor_flags(handle);
  if (flags < 0) return flags;
  return (flags & O_PATH) != 0 ? -EBADF : 0;
}

}  // namespace evix::detail
