#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <evix/poller.hpp>
#include <expected>
#include <map>
#include <optional>
#include <system_error>
#include <vector>

/** @file
 * A poller as it is written at first, with one well-known mistake to choose. The trap tests run on
 * it to show that they would notice.
 */
namespace evix::detail {

enum class Mistake {
  none,
  by_number,        ///< events find their interest by descriptor number (T001)
  split_bits,       ///< reading and writing are two events, neither checked again (T003)
  no_recheck,       ///< events are not checked again when they are walked (T013)
  no_rebuild,       ///< events for nobody are dropped, and that is all (T004)
  batched_removal,  ///< a removal reaches the kernel at the next wait (T006)
  ignore_invalid,   ///< POLLNVAL is mapped to nothing (T009)
  mask_zero,        ///< disabled means an empty mask (T049)
  refuse_files,     ///< EPERM of epoll is the user's problem (T077)
  round_down,       ///< nanoseconds to milliseconds by division (T084)
  number_limit,     ///< descriptors index a table of FD_SETSIZE (T158)
  first_come,       ///< the scan starts at the first descriptor each time (T159)
  shared_set,       ///< nothing is done after fork (T032)
  strict_fork,      ///< the first refusal after fork ends it (T043)
};

class NaivePoller {
 public:
  using Id = native_handle;

  NaivePoller(BackendKind kind, Mistake mistake, std::size_t events_max = 256)
      : kind_(kind), mistake_(mistake), events_max_(events_max) {
    if (kind_ == BackendKind::epoll) epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  }
  NaivePoller(const NaivePoller&) = delete;
  NaivePoller& operator=(const NaivePoller&) = delete;
  ~NaivePoller() { close_set(); }

  std::expected<Id, std::errc> add(native_handle handle, Ready interest, Trigger,
                                   std::uint64_t token) {
    if (mistake_ == Mistake::number_limit && handle >= 1024) {
      return std::unexpected(std::errc::value_too_large);
    }
    if (const int error = control(EPOLL_CTL_ADD, handle, interest)) {
      return std::unexpected(static_cast<std::errc>(error));
    }
    interests_[handle] = {interest, token};
    return handle;
  }

  bool disable(Id handle) {
    if (mistake_ != Mistake::mask_zero) return remove(handle);
    interests_[handle].interest = Ready::none;
    return control(EPOLL_CTL_MOD, handle, Ready::none) == 0;
  }

  bool remove(Id handle) {
    interests_.erase(handle);
    if (mistake_ == Mistake::batched_removal) {
      removals_.push_back(handle);
      return true;
    }
    return control(EPOLL_CTL_DEL, handle, Ready::none) == 0;
  }

  bool forget(Id handle) { return interests_.erase(handle) == 1; }

  std::optional<std::size_t> wait(Duration timeout) {
    for (const int handle : removals_) {
      interests_.erase(handle);
      control(EPOLL_CTL_DEL, handle, Ready::none);
    }
    removals_.clear();
    events_.clear();
    next_ = 0;
    const int timeout_ms = to_milliseconds(timeout);
    const bool ok = kind_ == BackendKind::epoll ? wait_epoll(timeout_ms) : wait_poll(timeout_ms);
    if (!ok) return std::nullopt;
    return events_.size();
  }

  std::optional<PollEvent> next() {
    while (next_ < events_.size()) {
      PollEvent event = events_[next_++];
      const auto found = interests_.find(event.handle);
      const bool copied = mistake_ == Mistake::no_recheck || mistake_ == Mistake::split_bits;
      if (copied) return event;
      if (found == interests_.end()) continue;
      if (mistake_ == Mistake::by_number) event.token = found->second.token;
      if (event.token == found->second.token) return event;
    }
    return std::nullopt;
  }

  /** False when it gave up. */
  bool after_fork() {
    if (mistake_ == Mistake::shared_set) return true;
    close_set();
    if (kind_ == BackendKind::epoll) epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    for (const auto& [handle, interest] : interests_) {
      if (control(EPOLL_CTL_ADD, handle, interest.interest) != 0) return false;
    }
    return true;
  }

 private:
  struct Interest {
    Ready interest = Ready::none;
    std::uint64_t token = 0;
  };

  void close_set() {
    if (epoll_ >= 0) ::close(epoll_);
    epoll_ = -1;
  }

  int control(int operation, int handle, Ready interest) {
    if (kind_ != BackendKind::epoll) return ::fcntl(handle, F_GETFD) < 0 ? errno : 0;
    epoll_event event{};
    event.events = static_cast<std::uint32_t>(interest);
    event.data.fd = handle;
    return ::epoll_ctl(epoll_, operation, handle, &event) == 0 ? 0 : errno;
  }

  int to_milliseconds(Duration timeout) const {
    if (timeout == forever) return -1;
    const std::int64_t up = mistake_ == Mistake::round_down ? 0 : 999'999;
    return static_cast<int>((timeout.count() + up) / 1'000'000);
  }

  bool wait_epoll(int timeout_ms) {
    std::vector<epoll_event> raw(events_max_);
    const int count = ::epoll_wait(epoll_, raw.data(), static_cast<int>(raw.size()), timeout_ms);
    for (int i = 0; i < count; ++i) report(raw[i].data.fd, static_cast<Ready>(raw[i].events));
    return count >= 0;
  }

  bool wait_poll(int timeout_ms) {
    std::vector<pollfd> raw;
    for (const auto& [handle, interest] : interests_) {
      raw.push_back({handle, static_cast<short>(interest.interest), 0});
    }
    const int count = ::poll(raw.data(), raw.size(), timeout_ms);
    for (const pollfd& entry : raw) {
      if (entry.revents == 0 || events_.size() == events_max_) continue;
      const auto ready = static_cast<Ready>(entry.revents);
      if (mistake_ == Mistake::ignore_invalid && any(ready, Ready::invalid)) continue;
      report(entry.fd, ready);
    }
    return count >= 0;
  }

  void report(int handle, Ready ready) {
    const auto found = interests_.find(handle);
    if (found == interests_.end()) return;
    PollEvent event{found->second.token, {}, handle, ready};
    if (mistake_ == Mistake::split_bits) {
      for (const Ready bit : {Ready::readable, Ready::writable}) {
        event.ready = ready & bit;
        if (any(event.ready)) events_.push_back(event);
      }
    } else {
      events_.push_back(event);
    }
  }

  const BackendKind kind_;
  const Mistake mistake_;
  const std::size_t events_max_;
  int epoll_ = -1;
  std::map<native_handle, Interest> interests_;
  std::vector<native_handle> removals_;
  std::vector<PollEvent> events_;
  std::size_t next_ = 0;
};

}  // namespace evix::detail
