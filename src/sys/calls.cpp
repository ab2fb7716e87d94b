#include "sys/calls.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/mutation.hpp"

#if defined(__has_feature)
#define EVIX_CLANG_SANITIZED                                              \
  (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
   __has_feature(memory_sanitizer))
#define EVIX_THREAD_SANITIZED __has_feature(thread_sanitizer)
#else
#define EVIX_CLANG_SANITIZED 0
#ifdef __SANITIZE_THREAD__
#define EVIX_THREAD_SANITIZED 1
#else
#define EVIX_THREAD_SANITIZED 0
#endif
#endif

namespace evix::detail {
namespace {

constexpr std::int64_t nanoseconds_per_second = 1'000'000'000;

template <class T>
T or_errno(T result) noexcept {
  return result < 0 ? static_cast<T>(-errno) : result;
}

timespec to_timespec(std::int64_t duration_ns) noexcept {
  timespec value{};
  value.tv_sec = static_cast<time_t>(duration_ns / nanoseconds_per_second);
  value.tv_nsec = static_cast<long>(duration_ns % nanoseconds_per_second);
  return value;
}

}  // namespace

Calls& Calls::kernel() noexcept {
  static Calls calls;
  return calls;
}

std::int64_t Calls::clock_now() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * nanoseconds_per_second + now.tv_nsec;
}

int Calls::socket(int domain, int type, int protocol) noexcept {
  return or_errno(::socket(domain, type, protocol));
}

int Calls::bind(int fd, const sockaddr* address, socklen_t size) noexcept {
  return or_errno(::bind(fd, address, size));
}

int Calls::listen(int fd, int backlog) noexcept { return or_errno(::listen(fd, backlog)); }

int Calls::accept(int fd) noexcept {
  return or_errno(::accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

int Calls::connect(int fd, const sockaddr* address, socklen_t size) noexcept {
  return or_errno(::connect(fd, address, size));
}

// The two calls of every message. Hot: what runs for a message lies together in the program, on two
// pages instead of eight; under some hypervisors every system call empties the TLB. The C library's
// wrappers set errno and look for cancellation of the thread: 14 of 21 instructions. The sanitizers
// want to see the wrappers.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !EVIX_CLANG_SANITIZED
namespace {

inline std::int64_t socket_call(long number, int fd, const void* bytes, std::size_t size,
                                long flags) noexcept {
  std::int64_t result = number;
  // Named registers throughout: with constraint letters gcc 12 goes through a saved one.
  register long rdi asm("rdi") = fd;
  register const void* rsi asm("rsi") = bytes;
  register std::size_t rdx asm("rdx") = size;
  register long r10 asm("r10") = flags;
  register long r8 asm("r8") = 0;
  register long r9 asm("r9") = 0;
  asm volatile("syscall"
               : "+a"(result)
               : "r"(rdi), "r"(rsi), "r"(rdx), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

}  // namespace

[[gnu::hot]] std::int64_t Calls::receive(int fd, void* bytes, std::size_t size) noexcept {
  return socket_call(SYS_recvfrom, fd, bytes, size, 0);
}

[[gnu::hot]] std::int64_t Calls::send(int fd, const void* bytes, std::size_t size) noexcept {
  return socket_call(SYS_sendto, fd, bytes, size, mutated("T071") ? 0 : MSG_NOSIGNAL);
}
#else
std::int64_t Calls::receive(int fd, void* bytes, std::size_t size) noexcept {
  return or_errno(static_cast<std::int64_t>(::recv(fd, bytes, size, 0)));
}

std::int64_t Calls::send(int fd, const void* bytes, std::size_t size) noexcept {
  return or_errno(static_cast<std::int64_t>(::send(fd, bytes, size, MSG_NOSIGNAL)));
}
#endif

int Calls::shutdown(int fd, int how) noexcept { return or_errno(::shutdown(fd, how)); }

int Calls::close(int fd) noexcept { return or_errno(::close(fd)); }

int Calls::local_name(int fd, sockaddr* address, socklen_t* size) noexcept {
  return or_errno(::getsockname(fd, address, size));
}

int Calls::peer_name(int fd, sockaddr* address, socklen_t* size) noexcept {
  return or_errno(::getpeername(fd, address, size));
}

int Calls::get_option(int fd, int level, int name, void* value, socklen_t* size) noexcept {
  return or_errno(::getsockopt(fd, level, name, value, size));
}

int Calls::set_option(int fd, int level, int name, const void* value, socklen_t size) noexcept {
  return or_errno(::setsockopt(fd, level, name, value, size));
}

int Calls::duplicate(int fd) noexcept { return or_errno(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

int Calls::descriptor_flags(int fd) noexcept { return or_errno(::fcntl(fd, F_GETFL)); }

int Calls::set_nonblocking(int fd, int flags) noexcept {
  return or_errno(::fcntl(fd, F_SETFL, flags | O_NONBLOCK));
}

int Calls::epoll_create() noexcept { return or_errno(::epoll_create1(EPOLL_CLOEXEC)); }

int Calls::epoll_control(int epoll_fd, int operation, int fd, epoll_event* event) noexcept {
  return or_errno(::epoll_ctl(epoll_fd, operation, fd, event));
}

int Calls::epoll_wait_ns(int epoll_fd, epoll_event* events, int count_max,
                         std::int64_t timeout_ns) noexcept {
#if EVIX_THREAD_SANITIZED
  // ThreadSanitizer (19) keeps a signal back until a call that it knows, and this is none: the
  // handler that is to end the wait would run after it.
  (void)epoll_fd, (void)events, (void)count_max, (void)timeout_ns;
  return -ENOSYS;
#else
  const timespec timeout = to_timespec(timeout_ns < 0 ? 0 : timeout_ns);
  return or_errno(static_cast<int>(::syscall(SYS_epoll_pwait2, epoll_fd, events, count_max,
                                             timeout_ns < 0 ? nullptr : &timeout, nullptr, 0)));
#endif
}

int Calls::epoll_wait_ms(int epoll_fd, epoll_event* events, int count_max,
                         int timeout_ms) noexcept {
  return or_errno(::epoll_wait(epoll_fd, events, count_max, timeout_ms));
}

int Calls::poll(pollfd* entries, std::size_t count, std::int64_t timeout_ns) noexcept {
  const timespec timeout = to_timespec(timeout_ns < 0 ? 0 : timeout_ns);
  return or_errno(::ppoll(entries, count, timeout_ns < 0 ? nullptr : &timeout, nullptr));
}

int Calls::event_create() noexcept {
  const int inherited = mutated("T039") ? 0 : EFD_CLOEXEC;
  return or_errno(::eventfd(0, inherited | EFD_NONBLOCK));
}

int Calls::event_read(int fd) noexcept {
  std::uint64_t value = 0;
  return or_errno(static_cast<int>(::read(fd, &value, sizeof value)));
}

int Calls::event_write(int fd) noexcept {
  const int errno_before = errno;  // a signal handler must leave errno as it was
  const std::uint64_t one = 1;
  const int result = or_errno(static_cast<int>(::write(fd, &one, sizeof one)));
  errno = errno_before;
  return result;
}

int Calls::signal_action(int signal, const struct sigaction* action,
                         struct sigaction* before) noexcept {
  return or_errno(::sigaction(signal, action, before));
}

int Calls::ring_setup(unsigned entries, void* parameters) noexcept {
  return or_errno(static_cast<int>(::syscall(SYS_io_uring_setup, entries, parameters)));
}

int Calls::ring_enter(int fd, unsigned submit_count, unsigned wait_count, unsigned flags,
                      const void* argument, std::size_t argument_size) noexcept {
#if EVIX_THREAD_SANITIZED
  // As with epoll_wait_ns(); there is no other call to wait with, so at least the signals that came
  // before it are handed over.
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
#endif
  return or_errno(static_cast<int>(
      ::syscall(SYS_io_uring_enter, fd, submit_count, wait_count, flags, argument, argument_size)));
}

int Calls::ring_register(int fd, unsigned operation, void* argument, unsigned count) noexcept {
  return or_errno(
      static_cast<int>(::syscall(SYS_io_uring_register, fd, operation, argument, count)));
}

int Calls::memory_map(int fd, std::size_t size, std::uint64_t offset, void** memory) noexcept {
  const int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE;
  void* const mapped =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, kind, fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return -errno;
  *memory = mapped;
  return 0;
}

int Calls::memory_unmap(void* memory, std::size_t size) noexcept {
  return or_errno(::munmap(memory, size));
}

int Calls::memory_keep_from_children(void* memory, std::size_t size) noexcept {
  return or_errno(::madvise(memory, size, MADV_DONTFORK));
}

}  // namespace evix::detail
