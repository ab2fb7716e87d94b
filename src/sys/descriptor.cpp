#include "sys/descriptor.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

namespace evix::detail {

int check_open(Calls& calls, native_handle handle) noexcept {
  const int flags = calls.descriptor_flags(handle);
  if (flags < 0) return flags;
  return (flags & O_PATH) != 0 ? -EBADF : 0;
}

void reset_when_closed(Calls& calls, native_handle handle) noexcept {
  const linger reset{1, 0};
  (void)calls.set_option(handle, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

}  // namespace evix::detail
