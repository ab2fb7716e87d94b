#include "capi/custom_driver.hpp"

#include <cerrno>
#include <climits>

#include "capi/convert.hpp"

namespace evix::detail::capi {
namespace {

/** What a function of the program means by a negative result: -1 goes with errno. */
int to_error(int result) noexcept {
  if (result >= 0) return 0;
  if (result != -1) return result;
  return errno != 0 ? -errno : -EIO;
}

class InBackend {
 public:
  explicit InBackend(LoopState& state) noexcept : state_(state), before_(state.in_backend) {
    state_.in_backend = true;
    errno = 0;
  }
  InBackend(const InBackend&) = delete;
  InBackend& operator=(const InBackend&) = delete;
  ~InBackend() { state_.in_backend = before_; }

 private:
  LoopState& state_;
  const bool before_;
};

/** Rounded up: a shorter wait would spin until the deadline. */
int to_milliseconds(std::int64_t timeout_ns) noexcept {
  if (timeout_ns < 0) return -1;
  const std::int64_t whole = timeout_ns / MS_TO_NS + (timeout_ns % MS_TO_NS != 0 ? 1 : 0);
  return whole > INT_MAX ? INT_MAX : static_cast<int>(whole);
}

}  // namespace

CustomDriver::CustomDriver(const evix_backend_t& functions, LoopState& state)
    : functions_(functions), state_(state) {
  state_.driver = this;
}

CustomDriver::~CustomDriver() {
  state_.driver = nullptr;
  if (!initialized_ || functions_.destroy == nullptr) return;
  const InBackend scope(state_);
  functions_.destroy(state_.pointer());
}

int CustomDriver::init() {
  if (functions_.init != nullptr) {
    const InBackend scope(state_);
    const int result = functions_.init(state_.pointer());
    if (result != 0) return result > 0 ? -EIO : to_error(result);
  }
  initialized_ = true;
  return 0;
}

int CustomDriver::tell_add(native_handle handle, Watch& watch) {
  const InBackend scope(state_);
  const int events = to_events(watch.interest) & interest_events;
  const int error = to_error(functions_.io_add(state_.pointer(), handle, events));
  watch.added = error == 0;
  return error;
}

int CustomDriver::tell_remove(native_handle handle, Watch& watch) {
  if (!watch.added) return 0;
  watch.added = false;
  const InBackend scope(state_);
  return to_error(functions_.io_del(state_.pointer(), handle));
}

int CustomDriver::add(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) {
  const auto [place, made] =
      watches_.try_emplace(handle, Watch{key, interest, Ready::none, trigger, false});
  if (!made) return -EEXIST;
  const int error = tell_add(handle, place->second);
  if (error != 0) watches_.erase(handle);
  return error;
}

int CustomDriver::modify(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) {
  const auto found = watches_.find(handle);
  if (found == watches_.end() || found->second.key != key) return -ENOENT;
  Watch& watch = found->second;
  if (const int error = tell_remove(handle, watch)) return error;
  watch = Watch{key, interest, Ready::none, trigger, false};
  return tell_add(handle, watch);
}

int CustomDriver::remove(native_handle handle, std::uint64_t key) {
  const auto found = watches_.find(handle);
  if (found == watches_.end() || found->second.key != key) return -ENOENT;
  const int error = tell_remove(handle, found->second);
  watches_.erase(handle);
  return error;
}

int CustomDriver::ready(native_handle handle, Ready events) {
  if (!polling_) return static_cast<int>(Errc::busy);
  const auto found = watches_.find(handle);
  if (found == watches_.end() || !found->second.added) {
    return static_cast<int>(Errc::stale_handle);
  }
  if (found->second.pending == Ready::none) reported_.push_back(handle);
  found->second.pending |= events;
  return 0;
}

int CustomDriver::wait(std::int64_t timeout_ns, std::span<DriverEvent> out) {
  if (out.empty()) return -EINVAL;
  const InBackend scope(state_);
  polling_ = true;
  const int timeout_ms = reported_.empty() ? to_milliseconds(timeout_ns) : 0;
  const int error = to_error(functions_.poll(state_.pointer(), timeout_ms));
  polling_ = false;
  if (error != 0 && reported_.empty()) return error;
  return give(out);
}

// What found no room stays first in the list, for the next wait.
int CustomDriver::give(std::span<DriverEvent> out) {
  std::size_t count = 0;
  std::size_t taken = 0;
  while (taken < reported_.size() && count < out.size()) {
    const native_handle handle = reported_[taken++];
    const auto found = watches_.find(handle);
    if (found == watches_.end() || found->second.pending == Ready::none) continue;
    Watch& watch = found->second;
    out[count++] = {watch.key, std::exchange(watch.pending, Ready::none)};
    if (watch.trigger == Trigger::one_shot) (void)tell_remove(handle, watch);
  }
  reported_.erase(reported_.begin(), reported_.begin() + static_cast<std::ptrdiff_t>(taken));
  return static_cast<int>(count);
}

int CustomDriver::rebuild() { return -EOPNOTSUPP; }

}  // namespace evix::detail::capi
