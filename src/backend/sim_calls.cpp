#include <cerrno>
#include <memory>
#include <utility>

#include "backend/sim.hpp"
#include "backend/sim_driver.hpp"
#include "backend/sim_kernel.hpp"
#include "sys/inet.hpp"

namespace evix::detail {
namespace {

/** The system call table of the simulated kernel; see sim.hpp. */
class SimCalls final : public Calls {
 public:
  explicit SimCalls(std::shared_ptr<SimKernel> kernel) : kernel_(std::move(kernel)) {}

  std::int64_t clock_now() noexcept override { return kernel_->now_ns(); }

  int socket(int domain, int type, int protocol) noexcept override {
    return kernel_->socket(domain, type, protocol);
  }
  int bind(int fd, const sockaddr* address, socklen_t size) noexcept override {
    SimSocket* socket = kernel_->find(fd);
    return socket == nullptr ? -EBADF : kernel_->bind(*socket, address, size);
  }
  int listen(int fd, int backlog) noexcept override {
    SimSocket* socket = kernel_->find(fd);
    return socket == nullptr ? -EBADF : kernel_->listen(*socket, backlog);
  }
  int accept(int fd) noexcept override {
    SimSocket* socket = kernel_->find(fd);
    return socket == nullptr ? -EBADF : kernel_->accept(*socket);
  }
  int connect(int fd, const sockaddr* address, socklen_t size) noexcept override {
    SimSocket* socket = kernel_->find(fd);
    return socket == nullptr ? -EBADF : kernel_->connect(*socket, address, size);
  }
  std::int64_t receive(int fd, void* bytes, std::size_t size) noexcept override {
    SimSocket* socket = kernel_->find(fd);
    return socket == nullptr ? -EBADF : kernel_->receive(*socket, bytes, size);
  }
  std::int64_t send(int fd, const void* bytes, std::size_t size) noexcept override {
    SimSocket* socket = kernel_->find(fd);
    return socket == nullptr ? -EBADF : kernel_->send(*socket, bytes, size);
  }
  int shutdown(int fd, int how) noexcept override {
    SimSocket* socket = kernel_->find(fd);
    return socket == nullptr ? -EBADF : kernel_->shutdown(*socket, how);
  }
  int close(int fd) noexcept override { return kernel_->close(fd); }
  int local_name(int fd, sockaddr* address, socklen_t* size) noexcept override {
    SimSocket* socket = kernel_->find(fd);
    if (socket == nullptr) return -EBADF;
    sim_write_address(socket->family, socket->local, address, size);
    return 0;
  }
  int peer_name(int fd, sockaddr* address, socklen_t* size) noexcept override {
    SimSocket* socket = kernel_->find(fd);
    return socket == nullptr ? -EBADF : kernel_->peer_name(*socket, address, size);
  }
  int get_option(int fd, int level, int name, void* value, socklen_t* size) noexcept override {
    SimSocket* socket = kernel_->find(fd);
    return socket == nullptr ? -EBADF : kernel_->get_option(*socket, level, name, value, size);
  }
  int set_option(int fd, int level, int name, const void* value, socklen_t size) noexcept override {
    SimSocket* socket = kernel_->find(fd);
    return socket == nullptr ? -EBADF : kernel_->set_option(*socket, level, name, value, size);
  }
  int descriptor_flags(int fd) noexcept override {
    if (kernel_->is_event(fd)) return Calls::kernel().descriptor_flags(fd);
    return kernel_->find(fd) == nullptr ? -EBADF : O_RDWR | O_NONBLOCK;
  }

  int set_nonblocking(int fd, int flags) noexcept override {
    if (kernel_->is_event(fd)) return Calls::kernel().set_nonblocking(fd, flags);
    return kernel_->find(fd) == nullptr ? -EBADF : 0;  // no simulated socket blocks
  }

  // The simulated driver takes the place of these.
  int epoll_create() noexcept override { return -ENOSYS; }
  int epoll_control(int, int, int, epoll_event*) noexcept override { return -ENOSYS; }
  int epoll_wait_ns(int, epoll_event*, int, std::int64_t) noexcept override { return -ENOSYS; }
  int epoll_wait_ms(int, epoll_event*, int, int) noexcept override { return -ENOSYS; }
  int poll(pollfd*, std::size_t, std::int64_t) noexcept override { return -ENOSYS; }

  int event_create() noexcept override { return kernel_->event_create(); }
  int event_read(int fd) noexcept override { return Calls::kernel().event_read(fd); }
  int event_write(int fd) noexcept override { return Calls::kernel().event_write(fd); }
  int signal_action(int signal, const struct sigaction* action,
                    struct sigaction* before) noexcept override {
    return Calls::kernel().signal_action(signal, action, before);
  }

 private:
  std::shared_ptr<SimKernel> kernel_;
};

}  // namespace

Sim make_sim(std::uint64_t seed) {
  auto kernel = std::make_shared<SimKernel>(seed);
  return {std::make_unique<SimCalls>(kernel), std::make_unique<SimDriver>(kernel)};
}

}  // namespace evix::detail
