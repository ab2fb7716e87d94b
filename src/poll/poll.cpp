#include <cerrno>
#include <vector>

#include "base/mutation.hpp"
#include "poll/driver.hpp"
#include "sys/calls.hpp"
#include "sys/descriptor.hpp"
#include "sys/poll_bits.hpp"

/** @file
 * The driver for poll(2), with nanoseconds as ppoll(2). The set is kept here, densely, and handed
 * to the kernel at each wait; a watch is found by the slot in its key.
 */
namespace evix::detail {
namespace {

short to_poll(Ready interest) noexcept { return static_cast<short>(with_read_closed(interest)); }

class SystemPollDriver final : public PollDriver {
 public:
  explicit SystemPollDriver(Calls& calls) noexcept : calls_(calls) {}

  BackendKind kind() const noexcept override { return BackendKind::poll; }
  bool supports_edge() const noexcept override { return false; }
  bool waits_nanoseconds() const noexcept override { return true; }

  int check(native_handle handle) noexcept override { return check_open(calls_, handle); }

  int add(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) override {
    if (const int error = check_open(calls_, handle)) return error;
    if (places_.size() <= slot(key)) places_.resize(slot(key) + 1, absent);
    if (places_[slot(key)] != absent) return -EEXIST;
    const std::size_t place = entries_.size();
    // Room in one first, so that both lists grow or none does.
    if (place == entries_.capacity()) entries_.reserve(place * 2 + 16);
    watches_.push_back({key, trigger == Trigger::one_shot});
    entries_.push_back({handle, to_poll(interest), 0});
    places_[slot(key)] = static_cast<std::uint32_t>(place);
    return 0;
  }

  int modify(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) override {
    const std::size_t place = find(key);
    if (place == absent) return -ENOENT;
    entries_[place] = {handle, to_poll(interest), 0};
    watches_[place].one_shot = trigger == Trigger::one_shot;
    return 0;
  }

  int remove(native_handle, std::uint64_t key) override {
    const std::size_t place = find(key);
    if (place == absent) return -ENOENT;
    places_[slot(key)] = absent;
    entries_[place] = entries_.back();
    watches_[place] = watches_.back();
    entries_.pop_back();
    watches_.pop_back();
    if (place < watches_.size()) {
      places_[slot(watches_[place].key)] = static_cast<std::uint32_t>(place);
    }
    return 0;
  }

  int wait(std::int64_t timeout_ns, std::span<DriverEvent> out) override {
    const int ready = calls_.poll(entries_.data(), entries_.size(), timeout_ns);
    return ready <= 0 ? ready : collect(static_cast<std::size_t>(ready), out);
  }

  int rebuild() override {
    entries_.clear();
    watches_.clear();
    places_.clear();
    return 0;
  }

 private:
  static constexpr std::uint32_t absent = UINT32_MAX;
  struct Watch {
    std::uint64_t key;
    bool one_shot;
  };

  static std::size_t slot(std::uint64_t key) noexcept { return key & UINT32_MAX; }

  std::size_t find(std::uint64_t key) const noexcept {
    const std::uint32_t place = slot(key) < places_.size() ? places_[slot(key)] : absent;
    return place != absent && watches_[place].key == key ? place : absent;
  }

  /** Starts where the last full list ended, so that nobody is passed over for ever. */
  int collect(std::size_t ready, std::span<DriverEvent> out) noexcept {
    const std::size_t size = entries_.size();
    std::size_t place = first_ < size ? first_ : 0;
    std::size_t count = 0;
    for (std::size_t left = size; left > 0 && count < ready && count < out.size(); --left) {
      pollfd& entry = entries_[place];
      if (entry.fd >= 0 && entry.revents != 0) {
        out[count++] = {watches_[place].key,
                        static_cast<Ready>(static_cast<unsigned short>(entry.revents))};
        // poll(2) ignores negative numbers: silent until modify().
        if (watches_[place].one_shot) entry.fd = ~entry.fd;
      }
      if (++place == size) place = 0;
    }
    if (count < ready && !mutated("T159")) first_ = place;
    return static_cast<int>(count);
  }

  Calls& calls_;
  std::vector<pollfd> entries_;
  std::vector<Watch> watches_;         // of the entry at the same place
  std::vector<std::uint32_t> places_;  // by slot
  std::size_t first_ = 0;
};

}  // namespace

std::unique_ptr<PollDriver> make_poll_driver(Calls& calls, int& error) {
  error = 0;
  return std::make_unique<SystemPollDriver>(calls);
}

}  // namespace evix::detail
