// recv and send without the C library between: its wrappers (thread cancellation, errno, the jump
// through the linkage table) make 46 instructions per echo out of 29. read and write have shorter
// wrappers, but cost more in the kernel: see bench/README.md. Both return what the kernel returns:
// a length, or the errno negated.
#pragma once

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace raw {

#if defined(__x86_64__)
inline ssize_t system_call(long number, long descriptor, void* bytes, std::size_t length,
                           long flags) {
  register long r10 asm("r10") = flags;
  register long r8 asm("r8") = 0;  // no address
  register long r9 asm("r9") = 0;
  ssize_t result;
  asm volatile("syscall"
               : "=a"(result)
               : "0"(number), "D"(descriptor), "S"(bytes), "d"(length), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}
#else
inline ssize_t system_call(long number, long descriptor, void* bytes, std::size_t length,
                           long flags) {
  const long result = syscall(number, descriptor, bytes, length, flags, nullptr, 0);
  return result < 0 ? -errno : result;
}
#endif

inline ssize_t receive(int descriptor, char* bytes, std::size_t length) {
  return system_call(SYS_recvfrom, descriptor, bytes, length, 0);
}

inline ssize_t send(int descriptor, char* bytes, std::size_t length) {
  return system_call(SYS_sendto, descriptor, bytes, length, MSG_NOSIGNAL);
}

}  // namespace raw
