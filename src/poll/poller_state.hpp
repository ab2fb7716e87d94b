#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "evix/poller.hpp"
#include "poll/driver.hpp"
#include "poll/interest_table.hpp"

/** @file
 * What is behind evix::Poller: identity, batching, enabling and validity of events, for any driver.
 *
 * Its functions are those of Poller, with negative codes (errno or evix::Errc) instead of Results.
 * Without memory add() gives -ENOMEM and everything else works on: a change that cannot be
 * collected is made at once, and what cannot be told stays due.
 *
 * Events that nobody earned. An event counts only for the live, enabled interest whose slot and
 * generation are in its key. One that comes for an interest removed in the current walk is a
 * matter of order and is dropped. Any other is a registration that the kernel keeps although its
 * descriptor was closed before it was removed (a duplicate holds the description): it cannot be
 * removed and would come for ever, so the next wait rebuilds the kernel's set. A live interest
 * whose descriptor was closed by others looks healthy; one event in `audit_interval` is verified.
 */
namespace evix::detail {

class PollerState {
 public:
  PollerState(std::unique_ptr<PollDriver> driver, std::size_t events_max);

  PollDriver& driver() noexcept { return *driver_; }
  const PollDriver& driver() const noexcept { return *driver_; }

  int add(native_handle handle, Ready interest, Trigger trigger, std::uint64_t token, bool enabled,
          InterestId& id);
  int add_now(native_handle handle, Ready interest, Trigger trigger, std::uint64_t token,
              InterestId& id);
  int modify(InterestId id, Ready interest, Trigger trigger) noexcept;
  int set_token(InterestId id, std::uint64_t token) noexcept;
  int enable(InterestId id) noexcept;
  int disable(InterestId id) noexcept;
  int remove(InterestId id) noexcept;
  int forget(InterestId id) noexcept;
  /**
   * For a descriptor that was made just now: whoever has its number registered has closed it, which
   * poll(2) cannot tell. That interest gets an event with Ready::invalid. 0 or -ENOMEM.
   */
  int evict(native_handle handle) noexcept;

  std::size_t commit();
  std::span<const ChangeFailure> failures() const noexcept { return failures_; }

  /** @param timeout_ns below 0: no limit. @return the number of events, or the negative errno. */
  int wait(std::int64_t timeout_ns);

  /** The next event whose interest still exists and is enabled; false at the end. */
  bool next_event(PollEvent& event) {
    while (next_ != end_) {
      const DriverEvent given = *next_++;
      const std::uint32_t slot = key_slot(given.key);
      const Interest& interest = table_.at(slot);
      const bool plain = interest.generation == key_generation(given.key) &&
                         (interest.flags & plain_mask) == Interest::enabled &&
                         !any(given.ready, Ready::invalid);
      if (plain && !loses_edge(given, interest)) [[likely]] {
        const Ready ready = given.ready & reportable(interest.wanted);
        if (!any(ready)) continue;
        event = {interest.token, {slot, interest.generation}, interest.handle, ready};
        return true;
      }
      const PollEvent special = take_special(given);
      if (!any(special.ready)) continue;
      event = special;
      return true;
    }
    return false;
  }

  /** What a caller with a record of its own needs of an event. `ready` none: there is none. */
  struct TokenReady {
    std::uint64_t token;
    Ready ready;
  };
  /** As next_event(), for the loop: returned in registers, a third of the instructions. */
  TokenReady next_ready() {
    while (next_ != end_) {
      const DriverEvent& given = *next_++;
      const Interest& interest = table_.at(key_slot(given.key));
      const bool plain = interest.generation == key_generation(given.key) &&
                         (interest.flags & plain_mask) == Interest::enabled &&
                         !any(given.ready, Ready::invalid);
      const TokenReady taken =
          plain && !loses_edge(given, interest)
              ? TokenReady{interest.token, given.ready & reportable(interest.wanted)}
              : take_special_ready(given);
      if (any(taken.ready)) [[likely]]
        return taken;
    }
    return {0, Ready::none};
  }
  /**
   * Takes the next event and gives its token when it is `ready` and nothing else, for an interest
   * with nothing special about it; else 0, and nothing is taken. What the interest is in is not
   * looked at: the caller does.
   */
  std::uint64_t take_plain(Ready ready) noexcept {
    if (next_ == end_) return 0;
    const DriverEvent& given = *next_;
    const Interest& interest = table_.at(key_slot(given.key));
    const bool plain = interest.generation == key_generation(given.key) &&
                       (interest.flags & plain_mask) == Interest::enabled && given.ready == ready;
    if (!plain) [[unlikely]]
      return 0;
    ++next_;
    return interest.token;
  }
  /** Events of the last wait that were not walked yet. */
  bool has_events() const noexcept { return next_ != end_; }
  /** Calls `visit` with the token of every interest. */
  template <class Visit>
  void for_each_token(Visit visit) const {
    for (std::uint32_t slot = 0; slot < table_.end(); ++slot) {
      const Interest& interest = table_.at(slot);
      if (interest.has(Interest::live)) visit(interest.token);
    }
  }

  std::size_t size() const noexcept { return table_.size(); }
  int after_fork();
  /** A new kernel object in the same process; what was not walked comes again. */
  int rebuild();

 private:
  static constexpr unsigned plain_mask =
      Interest::enabled | Interest::always_ready | Interest::gone | Interest::one_shot;
  /**
   * One system call in so many events shows a descriptor that was closed by others within a few
   * milliseconds of spinning, and costs a healthy program less than a nanosecond an event.
   */
  static constexpr std::int64_t audit_interval = 1024;

  static constexpr Ready reportable(std::uint8_t wanted) noexcept {
    return packed_interest(wanted) | Ready::error | Ready::hangup | Ready::read_closed;
  }
  /**
   * The kernel gave an edge in a direction that the interest has just left. If it comes back before
   * the kernel is told, nothing changes there, and the edge has been spent: it must be armed anew.
   */
  static bool loses_edge(const DriverEvent& given, const Interest& interest) noexcept {
    const Ready directions = Ready::readable | Ready::writable | Ready::priority;
    return any(given.ready & directions & ~packed_interest(interest.wanted)) &&
           packed_trigger(interest.kernel) == Trigger::edge;
  }
  static bool wants_kernel(const Interest& interest) noexcept {
    return interest.has(Interest::enabled) && interest.wanted != 0;
  }
  InterestId id_of(std::uint32_t slot) const noexcept { return {slot, table_.at(slot).generation}; }
  std::uint64_t key_of(std::uint32_t slot) const noexcept {
    return make_key(slot, table_.at(slot).generation);
  }

  int make_room_for(native_handle handle) noexcept;
  int make_interest(native_handle handle, Ready interest, Trigger trigger, std::uint64_t token,
                    std::uint32_t& slot) noexcept;
  static void set_wanted(Interest& interest, Ready wanted, Trigger trigger) noexcept;
  void note_change(std::uint32_t slot) noexcept;
  void end_interest(std::uint32_t slot) noexcept;

  void apply_changes() noexcept;
  bool apply_change(std::uint32_t slot) noexcept;
  int register_in_kernel(std::uint32_t slot) noexcept;
  bool refuse(std::uint32_t slot, int error) noexcept;
  void unregister(std::uint32_t slot) noexcept;

  bool list_special(std::uint32_t slot) noexcept;
  void unlist_special(std::uint32_t slot) noexcept;
  bool mark_gone(std::uint32_t slot) noexcept;

  int register_all(bool forked);
  void rearm_unwalked();
  static Ready special_ready(const Interest& interest) noexcept;
  std::size_t count_special() const noexcept;
  void append_special();
  PollEvent take_special(const DriverEvent& given);
  TokenReady take_special_ready(const DriverEvent& given);
  void audit();

  std::unique_ptr<PollDriver> driver_;
  InterestTable table_;
  std::vector<DriverEvent> events_;  // of the last wait; never resized
  DriverEvent* next_ = nullptr;      // [next_, end_) are still to be walked
  DriverEvent* end_ = nullptr;
  std::vector<std::uint32_t> changes_;  // slots with Interest::dirty
  std::vector<ChangeFailure> failures_;
  bool failures_told_ = false;  // by a commit(); the next one begins a new list
  HandleIndex handles_;
  std::vector<std::uint32_t> specials_;  // slots with always_ready or gone
  std::size_t specials_next_ = 0;
  bool specials_first_ = false;
  bool changed_in_walk_ = false;  // commit() between two next_event(): an odd event is no proof
  bool rebuild_due_ = false;
  std::uint64_t wait_number_ = 0;
  std::int64_t audit_left_ = audit_interval;
};

}  // namespace evix::detail
