#include "backend/sim_driver.hpp"

#include <cerrno>
#include <utility>

#include "base/saturating.hpp"

namespace evix::detail {

SimDriver::~SimDriver() { kernel_->forget_interests(); }

std::shared_ptr<SimInterest> SimDriver::find(native_handle handle) const {
  if (SimSocket* socket = kernel_->find(handle)) return socket->interest;
  return kernel_->event_interest(handle);
}

int SimDriver::add(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) {
  SimSocket* socket = kernel_->find(handle);
  if (!is_open(handle)) return -EBADF;
  if (find(handle)) return -EEXIST;
  auto entry = std::make_shared<SimInterest>();
  entry->socket = socket;
  entry->handle = handle;
  kernel_->add_interest(entry);
  return modify(handle, key, interest, trigger);
}

int SimDriver::modify(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) {
  const std::shared_ptr<SimInterest> entry = find(handle);
  if (!entry) return missing(handle);
  entry->key = key;
  entry->interest = interest;
  entry->trigger = trigger;
  entry->armed = true;
  if (any(report(*entry))) kernel_->enqueue(entry);
  return 0;
}

int SimDriver::remove(native_handle handle, std::uint64_t /*key*/) {
  const std::shared_ptr<SimInterest> entry = find(handle);
  if (!entry) return missing(handle);
  kernel_->remove_interest(*entry);
  return 0;
}

bool SimDriver::is_open(native_handle handle) const noexcept {
  return kernel_->find(handle) != nullptr || kernel_->is_event(handle);
}

int SimDriver::rebuild() {
  kernel_->forget_interests();
  left_over_ = 0;
  return 0;
}

Ready SimDriver::report(SimInterest& entry) const {
  const Ready now = entry.socket != nullptr ? kernel_->readiness(*entry.socket)
                                            : std::exchange(entry.real_ready, Ready::none);
  return now & (entry.interest | sim_always);
}

int SimDriver::wait(std::int64_t timeout_ns, std::span<DriverEvent> out) {
  kernel_->complete_connects();
  if (const int result = poll_events(0); result < 0) return result;
  int count = collect(out);
  while (count == 0) {
    const auto deadline_ns = kernel_->connect_deadline_ns();
    if (!deadline_ns) break;
    const std::int64_t ahead_ns = subtract_saturating(*deadline_ns, kernel_->now_ns());
    if (timeout_ns >= 0 && ahead_ns > timeout_ns) break;
    kernel_->advance(ahead_ns);
    if (timeout_ns >= 0) timeout_ns -= ahead_ns;
    kernel_->complete_connects();
    count = collect(out);
  }
  if (count > 0) return count;
  if (timeout_ns >= 0) {
    kernel_->advance(timeout_ns);
    return 0;
  }
  // Nothing inside the simulation can happen any more: only another thread can go on from here.
  if (const int result = poll_events(-1); result < 0) return result;
  return collect(out);
}

int SimDriver::poll_events(std::int64_t timeout_ns) {
  const auto& interests = kernel_->event_interests();
  if (interests.empty() && timeout_ns == 0) return 0;
  entries_.clear();
  for (const auto& interest : interests) {
    const short wanted = interest->armed ? static_cast<short>(interest->interest) : short{0};
    entries_.push_back({interest->armed ? interest->handle : no_handle, wanted, 0});
  }
  const int result = Calls::kernel().poll(entries_.data(), entries_.size(), timeout_ns);
  if (result < 0) return result;
  for (std::size_t index = 0; index < entries_.size(); ++index) {
    // Of an entry that found no room last time this also takes back what is no longer true.
    interests[index]->real_ready = static_cast<Ready>(entries_[index].revents);
    if (entries_[index].revents != 0) kernel_->enqueue(interests[index]);
  }
  return 0;
}

int SimDriver::collect(std::span<DriverEvent> out) {
  auto& ready = kernel_->ready();
  Prng& prng = kernel_->prng();
  for (std::size_t count = ready.size(); count > left_over_ + 1; --count) {
    const std::uint64_t other = prng.below(count - left_over_);
    std::swap(ready[count - 1], ready[left_over_ + other]);
  }
  std::size_t filled = 0;
  again_.clear();
  auto entry = ready.begin();
  for (; entry != ready.end() && filled < out.size(); ++entry) {
    SimInterest& interest = **entry;
    interest.queued = false;
    if (!interest.registered) continue;
    const Ready bits = report(interest);
    if (!any(bits)) continue;
    out[filled++] = {interest.key, bits};
    if (interest.trigger == Trigger::one_shot) interest.armed = false;
    if (interest.trigger == Trigger::level && interest.socket != nullptr) {
      again_.push_back(std::move(*entry));
    }
  }
  ready.erase(ready.begin(), entry);
  left_over_ = ready.size();
  for (auto& interest : again_) kernel_->enqueue(interest);
  return static_cast<int>(filled);
}

}  // namespace evix::detail
