#pragma once

#include <signal.h>
#include <sys/epoll.h>
#include <sys/poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

/** @file
 * Every system call of the library, one thin function each, behind one replaceable table.
 *
 * Contract: a call returns what the kernel returns, or the negative errno; it never retries and
 * never converts. A failed one may leave its error in errno, as the C library does, except
 * event_write(), which signal handlers call. The base class is the real kernel; tests, the
 * simulator and degraded environments derive from it. The table belongs to a loop
 * (LoopOptions::system_calls) and must outlive it. The functions are called from the loop's thread,
 * except event_write(), which any thread and any signal handler may call.
 */
namespace evix::detail {

/** Names of the calls, for counting and for faults: `tests/support/fault_calls.hpp`. */
enum class CallId : std::uint8_t {
  clock_now,
  socket,
  bind,
  listen,
  accept,
  connect,
  receive,
  send,
  shutdown,
  close,
  local_name,
  peer_name,
  get_option,
  set_option,
  duplicate,
  descriptor_flags,
  set_nonblocking,
  epoll_create,
  epoll_control,
  epoll_wait_ns,
  epoll_wait_ms,
  poll,
  event_create,
  event_read,
  event_write,
  signal_action,
  ring_setup,
  ring_enter,
  ring_register,
  memory_map,
  memory_unmap,
  memory_keep_from_children,
  count
};

class Calls {
 public:
  virtual ~Calls() = default;

  /** The table of the real kernel; lives for ever. */
  static Calls& kernel() noexcept;

  /** clock_gettime(CLOCK_MONOTONIC), in nanoseconds. */
  virtual std::int64_t clock_now() noexcept;

  virtual int socket(int domain, int type, int protocol) noexcept;
  virtual int bind(int fd, const sockaddr* address, socklen_t size) noexcept;
  virtual int listen(int fd, int backlog) noexcept;
  /** accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC). */
  virtual int accept(int fd) noexcept;
  virtual int connect(int fd, const sockaddr* address, socklen_t size) noexcept;
  /** recv(2); the caller never asks for more than transfer_size_max. */
  virtual std::int64_t receive(int fd, void* bytes, std::size_t size) noexcept;
  /** send(2) with MSG_NOSIGNAL. */
  virtual std::int64_t send(int fd, const void* bytes, std::size_t size) noexcept;
  virtual int shutdown(int fd, int how) noexcept;
  virtual int close(int fd) noexcept;
  virtual int local_name(int fd, sockaddr* address, socklen_t* size) noexcept;
  virtual int peer_name(int fd, sockaddr* address, socklen_t* size) noexcept;
  virtual int get_option(int fd, int level, int name, void* value, socklen_t* size) noexcept;
  virtual int set_option(int fd, int level, int name, const void* value, socklen_t size) noexcept;
  /** fcntl(F_DUPFD_CLOEXEC). */
  virtual int duplicate(int fd) noexcept;
  /** fcntl(F_GETFL): -EBADF for a closed descriptor; O_PATH is in the result. */
  virtual int descriptor_flags(int fd) noexcept;
  /** fcntl(F_SETFL) with O_NONBLOCK added to `flags`, as descriptor_flags() gave them. */
  virtual int set_nonblocking(int fd, int flags) noexcept;

  virtual int epoll_create() noexcept;
  virtual int epoll_control(int epoll_fd, int operation, int fd, epoll_event* event) noexcept;
  /** epoll_pwait2(2), Linux 5.11: -ENOSYS before. `timeout_ns` below 0: no limit. */
  virtual int epoll_wait_ns(int epoll_fd, epoll_event* events, int count_max,
                            std::int64_t timeout_ns) noexcept;
  virtual int epoll_wait_ms(int epoll_fd, epoll_event* events, int count_max,
                            int timeout_ms) noexcept;
  /** ppoll(2) with no signal mask. `timeout_ns` below 0: no limit. */
  virtual int poll(pollfd* entries, std::size_t count, std::int64_t timeout_ns) noexcept;

  /** eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK). */
  virtual int event_create() noexcept;
  /** Takes the counter of an eventfd back to zero. */
  virtual int event_read(int fd) noexcept;
  /** Adds 1 to an eventfd. Async-signal-safe. */
  virtual int event_write(int fd) noexcept;

  virtual int signal_action(int signal, const struct sigaction* action,
                            struct sigaction* before) noexcept;

  /** io_uring_setup(2), with its `struct io_uring_params`; the descriptor is close-on-exec. */
  virtual int ring_setup(unsigned entries, void* parameters) noexcept;
  /** io_uring_enter2(2). @return how many entries the kernel took. */
  virtual int ring_enter(int fd, unsigned submit_count, unsigned wait_count, unsigned flags,
                         const void* argument, std::size_t argument_size) noexcept;
  /** io_uring_register(2). */
  virtual int ring_register(int fd, unsigned operation, void* argument, unsigned count) noexcept;
  /**
   * mmap(2), readable and writable: a ring's memory, shared, at `offset`; or, with fd -1, private
   * memory of zeros. 0 or -errno.
   */
  virtual int memory_map(int fd, std::size_t size, std::uint64_t offset, void** memory) noexcept;
  virtual int memory_unmap(void* memory, std::size_t size) noexcept;
  /** madvise(2), MADV_DONTFORK: a child has a hole there. */
  virtual int memory_keep_from_children(void* memory, std::size_t size) noexcept;
};

/** One transfer moves at most this many bytes (Linux: 0x7ffff000, read(2) NOTES). */
inline constexpr std::size_t transfer_size_max = 0x7ffff000;

}  // namespace evix::detail
