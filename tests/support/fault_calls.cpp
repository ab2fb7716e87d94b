#include "support/fault_calls.hpp"

#include <liburing.h>

#include <algorithm>
#include <limits>

namespace evix::detail {
namespace {

constexpr std::uint64_t for_good = std::numeric_limits<std::uint64_t>::max();

}  // namespace

std::uint64_t FaultCalls::total() const noexcept {
  std::uint64_t sum = 0;
  for (const Faults& entry : faults_) sum += entry.count.load();
  return sum;
}

void FaultCalls::reset_counts() noexcept {
  for (Faults& entry : faults_) entry.count.store(0);
}

void FaultCalls::fail(CallId id, std::uint64_t nth, int error, std::uint64_t times) noexcept {
  Faults& entry = faults(id);
  entry.error.store(error);
  entry.failed.times.store(times);
  entry.failed.first.store(entry.calls.load() + nth);
}

void FaultCalls::refuse(CallId id, int error) noexcept { fail(id, 1, error, for_good); }

void FaultCalls::shorten(CallId id, std::uint64_t nth, std::size_t size,
                         std::uint64_t times) noexcept {
  Faults& entry = faults(id);
  entry.size.store(size);
  entry.shortened.times.store(times);
  entry.shortened.first.store(entry.calls.load() + nth);
}

void FaultCalls::limit(CallId id, std::size_t size) noexcept { shorten(id, 1, size, for_good); }

void FaultCalls::restore(CallId id) noexcept {
  faults(id).failed.first.store(0);
  faults(id).shortened.first.store(0);
}

void FaultCalls::restore_all() noexcept {
  for (int call = 0; call < static_cast<int>(CallId::count); ++call) {
    restore(static_cast<CallId>(call));
  }
}

std::uint64_t FaultCalls::enter(CallId id) noexcept {
  if (before) before(id);
  Faults& entry = faults(id);
  ++entry.count;
  return ++entry.calls;
}

int FaultCalls::error_of(CallId id, std::uint64_t number) noexcept {
  Faults& entry = faults(id);
  if (!entry.failed.holds(number)) return 0;
  ++entry.injected;
  return entry.error.load();
}

std::size_t FaultCalls::size_of(CallId id, std::uint64_t number, std::size_t size) noexcept {
  Faults& entry = faults(id);
  if (!entry.shortened.holds(number) || size <= entry.size.load()) return size;
  ++entry.injected;
  return entry.size.load();
}

template <class Call>
int FaultCalls::run(CallId id, Call call) noexcept {
  const int error = error_of(id, enter(id));
  return error != 0 ? -error : call();
}

std::int64_t FaultCalls::clock_now() noexcept {
  enter(CallId::clock_now);
  return inner_.clock_now();
}

int FaultCalls::socket(int domain, int type, int protocol) noexcept {
  return run(CallId::socket, [&] { return inner_.socket(domain, type, protocol); });
}

int FaultCalls::bind(int fd, const sockaddr* address, socklen_t size) noexcept {
  return run(CallId::bind, [&] { return inner_.bind(fd, address, size); });
}

int FaultCalls::listen(int fd, int backlog) noexcept {
  return run(CallId::listen, [&] { return inner_.listen(fd, backlog); });
}

int FaultCalls::accept(int fd) noexcept {
  return run(CallId::accept, [&] { return inner_.accept(fd); });
}

int FaultCalls::connect(int fd, const sockaddr* address, socklen_t size) noexcept {
  return run(CallId::connect, [&] { return inner_.connect(fd, address, size); });
}

std::int64_t FaultCalls::receive(int fd, void* bytes, std::size_t size) noexcept {
  const std::uint64_t number = enter(CallId::receive);
  if (const int error = error_of(CallId::receive, number)) return -error;
  return inner_.receive(fd, bytes, size_of(CallId::receive, number, size));
}

std::int64_t FaultCalls::send(int fd, const void* bytes, std::size_t size) noexcept {
  const std::uint64_t number = enter(CallId::send);
  if (const int error = error_of(CallId::send, number)) return -error;
  return inner_.send(fd, bytes, size_of(CallId::send, number, size));
}

int FaultCalls::shutdown(int fd, int how) noexcept {
  return run(CallId::shutdown, [&] { return inner_.shutdown(fd, how); });
}

int FaultCalls::close(int fd) noexcept {
  const int error = error_of(CallId::close, enter(CallId::close));
  ring_.closed(fd);
  const int result = inner_.close(fd);
  return error != 0 ? -error : result;
}

int FaultCalls::local_name(int fd, sockaddr* address, socklen_t* size) noexcept {
  return run(CallId::local_name, [&] { return inner_.local_name(fd, address, size); });
}

int FaultCalls::peer_name(int fd, sockaddr* address, socklen_t* size) noexcept {
  return run(CallId::peer_name, [&] { return inner_.peer_name(fd, address, size); });
}

int FaultCalls::get_option(int fd, int level, int name, void* value, socklen_t* size) noexcept {
  return run(CallId::get_option, [&] { return inner_.get_option(fd, level, name, value, size); });
}

int FaultCalls::set_option(int fd, int level, int name, const void* value,
                           socklen_t size) noexcept {
  return run(CallId::set_option, [&] { return inner_.set_option(fd, level, name, value, size); });
}

int FaultCalls::set_nonblocking(int fd, int flags) noexcept {
  return run(CallId::set_nonblocking, [&] { return inner_.set_nonblocking(fd, flags); });
}

int FaultCalls::duplicate(int fd) noexcept {
  return run(CallId::duplicate, [&] { return inner_.duplicate(fd); });
}

int FaultCalls::descriptor_flags(int fd) noexcept {
  return run(CallId::descriptor_flags, [&] { return inner_.descriptor_flags(fd); });
}

int FaultCalls::epoll_create() noexcept {
  return run(CallId::epoll_create, [&] { return inner_.epoll_create(); });
}

int FaultCalls::epoll_control(int epoll_fd, int operation, int fd, epoll_event* event) noexcept {
  return run(CallId::epoll_control,
             [&] { return inner_.epoll_control(epoll_fd, operation, fd, event); });
}

int FaultCalls::epoll_wait_ns(int epoll_fd, epoll_event* events, int count_max,
                              std::int64_t timeout_ns) noexcept {
  return run(CallId::epoll_wait_ns,
             [&] { return inner_.epoll_wait_ns(epoll_fd, events, count_max, timeout_ns); });
}

int FaultCalls::epoll_wait_ms(int epoll_fd, epoll_event* events, int count_max,
                              int timeout_ms) noexcept {
  return run(CallId::epoll_wait_ms,
             [&] { return inner_.epoll_wait_ms(epoll_fd, events, count_max, timeout_ms); });
}

int FaultCalls::poll(pollfd* entries, std::size_t count, std::int64_t timeout_ns) noexcept {
  return run(CallId::poll, [&] { return inner_.poll(entries, count, timeout_ns); });
}

int FaultCalls::event_create() noexcept {
  return run(CallId::event_create, [&] { return inner_.event_create(); });
}

int FaultCalls::event_read(int fd) noexcept {
  return run(CallId::event_read, [&] { return inner_.event_read(fd); });
}

int FaultCalls::event_write(int fd) noexcept {
  return run(CallId::event_write, [&] { return inner_.event_write(fd); });
}

int FaultCalls::signal_action(int signal, const struct sigaction* action,
                              struct sigaction* previous) noexcept {
  return run(CallId::signal_action, [&] { return inner_.signal_action(signal, action, previous); });
}

int FaultCalls::ring_setup(unsigned entries, void* parameters) noexcept {
  const int fd = run(CallId::ring_setup, [&] { return inner_.ring_setup(entries, parameters); });
  if (fd >= 0) ring_.set_up(fd, parameters);
  return fd;
}

int FaultCalls::ring_enter(int fd, unsigned submit_count, unsigned wait_count, unsigned flags,
                           const void* argument, std::size_t argument_size) noexcept {
  const std::uint64_t number = enter(CallId::ring_enter);
  if (const int error = error_of(CallId::ring_enter, number)) return -error;
  const auto taken_max = static_cast<unsigned>(size_of(CallId::ring_enter, number, submit_count));
  if (taken_max < submit_count) {  // the kernel returns without having waited
    submit_count = taken_max;
    wait_count = 0;
    flags &= ~IORING_ENTER_GETEVENTS;
  }
  const bool registered = (flags & IORING_ENTER_REGISTERED_RING) != 0;
  if (makes_ring_operations) ring_.before_enter(fd, registered, submit_count);
  const int taken = inner_.ring_enter(fd, submit_count, wait_count, flags, argument, argument_size);
  if (makes_ring_operations) ring_.after_enter(fd, registered);
  return taken;
}

int FaultCalls::ring_register(int fd, unsigned operation, void* argument, unsigned count) noexcept {
  const int result = run(CallId::ring_register,
                         [&] { return inner_.ring_register(fd, operation, argument, count); });
  if (result < 0) return result;
  if (operation == IORING_REGISTER_PBUF_RING) ring_.registered_buffers(fd, argument);
  if (operation == IORING_REGISTER_RING_FDS) {
    ring_.registered_as(fd, static_cast<const io_uring_rsrc_update*>(argument)->offset);
  }
  return result;
}

int FaultCalls::memory_map(int fd, std::size_t size, std::uint64_t offset, void** memory) noexcept {
  const int error =
      run(CallId::memory_map, [&] { return inner_.memory_map(fd, size, offset, memory); });
  if (error == 0 && fd >= 0) ring_.mapped(fd, offset, size, *memory);
  return error;
}

int FaultCalls::memory_unmap(void* memory, std::size_t size) noexcept {
  const int error = error_of(CallId::memory_unmap, enter(CallId::memory_unmap));
  const int result = inner_.memory_unmap(memory, size);
  return error != 0 ? -error : result;
}

int FaultCalls::memory_keep_from_children(void* memory, std::size_t size) noexcept {
  return run(CallId::memory_keep_from_children,
             [&] { return inner_.memory_keep_from_children(memory, size); });
}

}  // namespace evix::detail
