#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "support/ring_faults.hpp"
#include "sys/calls.hpp"

/** @file
 * A table of system calls that counts, and that fails where a test wants it to.
 */
namespace evix::detail {

/**
 * Wraps another table. All members may be used while another thread calls through the table,
 * except `before`, which is set while nobody does.
 */
class FaultCalls : public Calls {
 public:
  explicit FaultCalls(Calls& inner = Calls::kernel()) noexcept : inner_(inner) {}

  /** Runs before each call is counted and made. */
  std::function<void(CallId)> before;

  /** Calls made since construction or reset_counts(), the failed ones included. */
  std::uint64_t count(CallId id) const noexcept { return faults(id).count.load(); }
  std::uint64_t total() const noexcept;
  void reset_counts() noexcept;

  /**
   * The `nth` call from now (1: the next one) gives -error and does not reach the kernel, and so
   * do the `times - 1` calls after it. close() and memory_unmap() reach it all the same, as on
   * Linux, where a failed close has freed the number.
   */
  void fail(CallId id, std::uint64_t nth, int error, std::uint64_t times = 1) noexcept;
  /** Every call from now gives -error: the feature is absent. */
  void refuse(CallId id, int error) noexcept;
  /**
   * The `nth` call from now moves at most `size` bytes; for receive and send. For ring_enter: the
   * kernel takes at most `size` entries, and does not wait when there are more.
   */
  void shorten(CallId id, std::uint64_t nth, std::size_t size, std::uint64_t times = 1) noexcept;
  /** Every call from now moves at most `size` bytes; for receive and send. */
  void limit(CallId id, std::size_t size) noexcept;
  /** Takes the faults of this call back. */
  void restore(CallId id) noexcept;
  /** Takes all faults back. */
  void restore_all() noexcept;
  /** How many calls were failed, refused or shortened. */
  std::uint64_t injected(CallId id) const noexcept { return faults(id).injected.load(); }

  std::int64_t clock_now() noexcept override;
  int socket(int domain, int type, int protocol) noexcept override;
  int bind(int fd, const sockaddr* address, socklen_t size) noexcept override;
  int listen(int fd, int backlog) noexcept override;
  int accept(int fd) noexcept override;
  int connect(int fd, const sockaddr* address, socklen_t size) noexcept override;
  std::int64_t receive(int fd, void* bytes, std::size_t size) noexcept override;
  std::int64_t send(int fd, const void* bytes, std::size_t size) noexcept override;
  int shutdown(int fd, int how) noexcept override;
  int close(int fd) noexcept override;
  int local_name(int fd, sockaddr* address, socklen_t* size) noexcept override;
  int peer_name(int fd, sockaddr* address, socklen_t* size) noexcept override;
  int get_option(int fd, int level, int name, void* value, socklen_t* size) noexcept override;
  int set_option(int fd, int level, int name, const void* value, socklen_t size) noexcept override;
  int duplicate(int fd) noexcept override;
  int descriptor_flags(int fd) noexcept override;
  int set_nonblocking(int fd, int flags) noexcept override;
  int epoll_create() noexcept override;
  int epoll_control(int epoll_fd, int operation, int fd, epoll_event* event) noexcept override;
  int epoll_wait_ns(int epoll_fd, epoll_event* events, int count_max,
                    std::int64_t timeout_ns) noexcept override;
  int epoll_wait_ms(int epoll_fd, epoll_event* events, int count_max,
                    int timeout_ms) noexcept override;
  int poll(pollfd* entries, std::size_t count, std::int64_t timeout_ns) noexcept override;
  int event_create() noexcept override;
  int event_read(int fd) noexcept override;
  int event_write(int fd) noexcept override;
  int signal_action(int signal, const struct sigaction* action,
                    struct sigaction* previous) noexcept override;
  int ring_setup(unsigned entries, void* parameters) noexcept override;
  int ring_enter(int fd, unsigned submit_count, unsigned wait_count, unsigned flags,
                 const void* argument, std::size_t argument_size) noexcept override;
  int ring_register(int fd, unsigned operation, void* argument, unsigned count) noexcept override;
  int memory_map(int fd, std::size_t size, std::uint64_t offset, void** memory) noexcept override;
  int memory_unmap(void* memory, std::size_t size) noexcept override;
  int memory_keep_from_children(void* memory, std::size_t size) noexcept override;

  /** False: a ring's receives, sends and accepts are the kernel's alone; see ring_faults.hpp. */
  bool makes_ring_operations = true;
  /** The next `count` cancels of a ring find nothing, though it is there. */
  void lose_cancels_of_ring(unsigned count) noexcept { ring_.cancels_lost = count; }
  unsigned cancels_to_lose() const noexcept { return ring_.cancels_lost; }

 protected:
  void ask_poll_of_ring() noexcept { ring_.asks_poll = true; }

 private:
  /** Numbers of calls, counted from 1 since construction; [first, first + times). */
  struct Range {
    std::atomic<std::uint64_t> first{0};
    std::atomic<std::uint64_t> times{0};
    bool holds(std::uint64_t number) const noexcept {
      const std::uint64_t start = first.load();
      return start != 0 && number >= start && number - start < times.load();
    }
  };
  struct Faults {
    std::atomic<std::uint64_t> calls{0};
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::uint64_t> injected{0};
    Range failed;
    std::atomic<int> error{0};
    Range shortened;
    std::atomic<std::size_t> size{0};
  };

  Faults& faults(CallId id) noexcept { return faults_[static_cast<std::size_t>(id)]; }
  const Faults& faults(CallId id) const noexcept { return faults_[static_cast<std::size_t>(id)]; }

  /** Counts the call. @return its number. */
  std::uint64_t enter(CallId id) noexcept;
  /** @return the error for the call with this number, 0 for none. */
  int error_of(CallId id, std::uint64_t number) noexcept;
  std::size_t size_of(CallId id, std::uint64_t number, std::size_t size) noexcept;
  /** Counts, then fails or calls. */
  template <class Call>
  int run(CallId id, Call call) noexcept;

  Calls& inner_;
  RingFaults ring_{*this};
  std::array<Faults, static_cast<std::size_t>(CallId::count)> faults_;
};

}  // namespace evix::detail
