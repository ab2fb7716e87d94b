#include "backend/sim_kernel.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/saturating.hpp"
#include "sys/inet.hpp"

/** @file
 * The simulated kernel's tables: descriptors, sockets, interests, the clock.
 */
namespace evix::detail {

void SimBytes::append(const void* bytes, std::size_t size) {
  // Moving what is left is paid for by the bytes that were taken since the last move.
  if (head_ > 0 && head_ >= this->size()) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
  const auto* first = static_cast<const std::byte*>(bytes);
  bytes_.insert(bytes_.end(), first, first + size);
}

std::size_t SimBytes::take(void* into, std::size_t size) noexcept {
  const std::size_t taken = std::min(size, this->size());
  if (taken > 0) std::memcpy(into, bytes_.data() + head_, taken);
  head_ += taken;
  if (this->size() == 0) clear();
  return taken;
}

void SimBytes::clear() noexcept {
  bytes_ = {};
  head_ = 0;
}

void SimKernel::advance(std::int64_t duration_ns) noexcept {
  now_ns_ = add_saturating(now_ns_, duration_ns);
}

SimSocket* SimKernel::find(native_handle handle) const noexcept {
  const std::int64_t index = std::int64_t{handle} - sim_descriptor_base;
  if (index < 0 || index >= std::ssize(table_)) return nullptr;
  return table_[static_cast<std::size_t>(index)];
}

int SimKernel::event_create() {
  const int handle = Calls::kernel().event_create();
  if (handle >= 0) events_.insert(handle);
  return handle;
}

SimSocket& SimKernel::make_socket(int family) {
  auto& socket = sockets_.emplace_back(std::make_unique<SimSocket>(family));
  socket->owner_index = sockets_.size() - 1;
  return *socket;
}

bool SimKernel::numbers_exhausted() const noexcept {
  return free_numbers_.empty() && table_.size() == sim_descriptors_max;
}

int SimKernel::open_number(SimSocket& socket) {
  int index = 0;
  if (free_numbers_.empty()) {
    index = static_cast<int>(table_.size());
    table_.push_back(nullptr);
  } else {
    index = free_numbers_.top();
    free_numbers_.pop();
  }
  table_[static_cast<std::size_t>(index)] = &socket;
  socket.handle = sim_descriptor_base + index;
  return socket.handle;
}

void SimKernel::destroy_if_unreachable(SimSocket& socket) {
  if (socket.handle != no_handle || socket.in_accept_queue) return;
  if (socket.state != SimState::closed) return;
  ports_.release(socket);
  const std::size_t index = socket.owner_index;
  std::swap(sockets_[index], sockets_.back());
  sockets_[index]->owner_index = index;
  sockets_.pop_back();
}

int SimKernel::socket(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6) return -EAFNOSUPPORT;
  if ((type & SOCK_NONBLOCK) == 0) return -EINVAL;  // nobody could end the blocking
  if ((type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_STREAM) return -EPROTONOSUPPORT;
  if (protocol != 0 && protocol != IPPROTO_TCP) return -EPROTONOSUPPORT;
  if (numbers_exhausted()) return -EMFILE;
  return open_number(make_socket(domain));
}

int SimKernel::close(native_handle handle) {
  if (events_.erase(handle) == 1) {
    if (const auto interest = event_interest(handle)) remove_interest(*interest);
    return Calls::kernel().close(handle);
  }
  SimSocket* socket = find(handle);
  if (socket == nullptr) return -EBADF;
  if (socket->interest) remove_interest(*socket->interest);
  const int index = handle - sim_descriptor_base;
  table_[static_cast<std::size_t>(index)] = nullptr;
  free_numbers_.push(index);
  socket->handle = no_handle;
  close_socket(*socket);
  destroy_if_unreachable(*socket);
  return 0;
}

std::shared_ptr<SimInterest> SimKernel::event_interest(native_handle handle) const {
  const auto found = std::ranges::find(event_interests_, handle,
                                       [](const auto& interest) { return interest->handle; });
  return found == event_interests_.end() ? nullptr : *found;
}

void SimKernel::add_interest(const std::shared_ptr<SimInterest>& interest) {
  if (interest->socket == nullptr) {
    event_interests_.push_back(interest);
  } else {
    interest->socket->interest = interest;
  }
}

void SimKernel::remove_interest(SimInterest& interest) {
  interest.registered = false;
  if (interest.socket != nullptr) {
    interest.socket->interest.reset();
  } else {
    std::erase_if(event_interests_, [&](const auto& entry) { return entry.get() == &interest; });
  }
}

void SimKernel::forget_interests() {
  for (SimSocket* socket : table_) {
    if (socket != nullptr && socket->interest) socket->interest.reset();
  }
  event_interests_.clear();
  ready_.clear();
}

void SimKernel::enqueue(const std::shared_ptr<SimInterest>& interest) {
  if (interest->queued || !interest->armed) return;
  interest->queued = true;
  ready_.push_back(interest);
}

void SimKernel::wake(SimSocket& socket, Ready changed) {
  if (!socket.interest || !any(socket.interest->interest | sim_always, changed)) return;
  enqueue(socket.interest);
}

}  // namespace evix::detail
