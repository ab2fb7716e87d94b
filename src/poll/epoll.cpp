#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/mutation.hpp"
#include "poll/driver.hpp"
#include "sys/calls.hpp"
#include "sys/descriptor.hpp"
#include "sys/fd.hpp"
#include "sys/poll_bits.hpp"
#include "sys/process.hpp"

/** @file
 * The driver for epoll(7). The kernel keeps the set; nothing is kept per descriptor here.
 */
namespace evix::detail {
namespace {

constexpr std::int64_t nanoseconds_per_millisecond = 1'000'000;

static_assert(EPOLLIN == static_cast<unsigned>(Ready::readable) &&
              EPOLLPRI == static_cast<unsigned>(Ready::priority) &&
              EPOLLOUT == static_cast<unsigned>(Ready::writable) &&
              EPOLLERR == static_cast<unsigned>(Ready::error) &&
              EPOLLHUP == static_cast<unsigned>(Ready::hangup) &&
              EPOLLRDHUP == static_cast<unsigned>(Ready::read_closed));

/** Then the kernel writes straight into the poller's list. */
constexpr bool same_layout = std::endian::native == std::endian::little &&
                             sizeof(DriverEvent) == sizeof(epoll_event) &&
                             offsetof(DriverEvent, ready) == offsetof(epoll_event, events) &&
                             offsetof(DriverEvent, key) == offsetof(epoll_event, data);

std::uint32_t to_epoll(Ready interest, Trigger trigger) noexcept {
  auto events = static_cast<std::uint32_t>(with_read_closed(interest));
  if (trigger == Trigger::edge) events |= EPOLLET;
  if (trigger == Trigger::one_shot) events |= EPOLLONESHOT;
  return events;
}

class EpollDriver final : public PollDriver {
 public:
  EpollDriver(Calls& calls, Fd epoll) noexcept : calls_(calls), epoll_(std::move(epoll)) {}

  BackendKind kind() const noexcept override { return BackendKind::epoll; }
  bool supports_edge() const noexcept override { return true; }
  bool waits_nanoseconds() const noexcept override { return nanoseconds_; }

  int check(native_handle handle) noexcept override { return check_open(calls_, handle); }

  /** Nobody was given our own number: the descriptor that it meant was closed, and we took it. */
  int add(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) override {
    if (handle == epoll_.get()) return -EBADF;
    return control(EPOLL_CTL_ADD, handle, key, interest, trigger);
  }
  int modify(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) override {
    return control(EPOLL_CTL_MOD, handle, key, interest, trigger);
  }
  int remove(native_handle handle, std::uint64_t) override {
    if (parents()) return 0;
    return calls_.epoll_control(epoll_.get(), EPOLL_CTL_DEL, handle, nullptr);
  }
  /** The kernel forgets a description when its last descriptor is closed. */
  void forget(native_handle, std::uint64_t) override {}

  /** Adding what is there is refused and changes nothing, unlike modifying, which would re-arm. */
  int verify(native_handle handle, std::uint64_t key) override {
    if (parents()) return 0;
    const int result = add(handle, key, Ready::readable, Trigger::one_shot);
    if (result == -EEXIST) return 0;
    if (result == 0) remove(handle, key);
    return result == -EBADF ? -EBADF : -ENOENT;
  }

  int wait(std::int64_t timeout_ns, std::span<DriverEvent> out) override {
    const auto count_max = static_cast<int>(out.size());
    if constexpr (same_layout) {
      return wait_kernel(timeout_ns, reinterpret_cast<epoll_event*>(out.data()), count_max);
    }
    if (buffer_.size() < out.size()) buffer_.resize(out.size());
    const int count = wait_kernel(timeout_ns, buffer_.data(), count_max);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = buffer_[static_cast<std::size_t>(i)];
      out[static_cast<std::size_t>(i)] = {event.data.u64, static_cast<Ready>(event.events)};
    }
    return count;
  }

  int rebuild() override {
    if (mutated("T032")) return 0;
    const int made = calls_.epoll_create();
    if (made < 0) return made;
    epoll_ = Fd(calls_, made);
    generation_ = fork_generation();
    return 0;
  }

 private:
  /**
   * In a child before rebuild(): the set is the parent's, which would lose what is removed here
   * (trap T032). rebuild() registers anew whatever is still wanted.
   */
  bool parents() const noexcept { return generation_ != fork_generation() && !mutated("T032"); }

  int control(int operation, native_handle handle, std::uint64_t key, Ready interest,
              Trigger trigger) noexcept {
    if (parents()) return 0;
    epoll_event event{};
    event.events = to_epoll(interest, trigger);
    event.data.u64 = key;
    return calls_.epoll_control(epoll_.get(), operation, handle, &event);
  }

  int wait_kernel(std::int64_t timeout_ns, epoll_event* events, int count_max) noexcept {
    if (nanoseconds_) {
      const int count = calls_.epoll_wait_ns(epoll_.get(), events, count_max, timeout_ns);
      // EPERM: sandboxes that refuse what they do not know; epoll_pwait2 itself never says it.
      if (count != -ENOSYS && count != -EPERM) return count;
      nanoseconds_ = false;
    }
    return wait_milliseconds(timeout_ns, events, count_max);
  }

  /** Rounds up; a timeout above 24.8 days takes several waits. */
  int wait_milliseconds(std::int64_t timeout_ns, epoll_event* events, int count_max) noexcept {
    if (timeout_ns <= 0) {
      return calls_.epoll_wait_ms(epoll_.get(), events, count_max, timeout_ns < 0 ? -1 : 0);
    }
    for (;;) {
      const std::int64_t up = mutated("T084") ? 0 : 1;
      const std::int64_t timeout_ms = (timeout_ns - up) / nanoseconds_per_millisecond + up;
      const auto part_ms = static_cast<int>(std::min<std::int64_t>(timeout_ms, INT_MAX));
      const std::int64_t start_ns = part_ms < timeout_ms ? calls_.clock_now() : 0;
      const int count = calls_.epoll_wait_ms(epoll_.get(), events, count_max, part_ms);
      if (count != 0 || part_ms == timeout_ms) return count;
      timeout_ns -= calls_.clock_now() - start_ns;
      if (timeout_ns <= 0) return 0;
    }
  }

  Calls& calls_;
  Fd epoll_;
  std::uint32_t generation_ = fork_generation();
  bool nanoseconds_ = true;
  std::vector<epoll_event> buffer_;  // where the layouts differ
};

}  // namespace

std::unique_ptr<PollDriver> make_epoll_driver(Calls& calls, int& error) {
  const int made = calls.epoll_create();
  error = made < 0 ? made : 0;
  if (made < 0) return nullptr;
  Fd epoll(calls, made);
  // No descriptor is taken out of the set. EBADF says that the call is made at all: a sandbox that
  // refuses it with EPERM would have every descriptor taken for a file, which is always ready.
  const int asked = calls.epoll_control(made, EPOLL_CTL_DEL, -1, nullptr);
  if (asked < 0 && asked != -EBADF) {
    error = asked;
    return nullptr;
  }
  return std::make_unique<EpollDriver>(calls, std::move(epoll));
}

}  // namespace evix::detail
