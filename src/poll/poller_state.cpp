#include "poll/poller_state.hpp"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/mutation.hpp"
#include "sys/error.hpp"

namespace evix::detail {
namespace {

// More would only make the walk of one wait longer; 1 MiB of events.
constexpr std::size_t events_limit = 65'536;

// Changes that can always be collected before they are made, also without memory.
constexpr std::size_t changes_first = 64;

int code(Errc errc) noexcept { return -static_cast<int>(errc); }

// A driver may keep records of its own.
template <class Call>
int without_throwing(Call call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

// False, with nothing changed, when there is no memory.
template <class T>
bool append(std::vector<T>& entries, const T& entry) noexcept {
  try {
    entries.push_back(entry);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

PollerState::PollerState(std::unique_ptr<PollDriver> driver, std::size_t events_max)
    : driver_(std::move(driver)), events_(std::clamp<std::size_t>(events_max, 1, events_limit)) {
  changes_.reserve(changes_first);
}

// Interests

/** 0, or why no interest in this descriptor can be added. */
int PollerState::make_room_for(native_handle handle) noexcept {
  if (mutated("T158") && handle >= 1024) return -EINVAL;
  const std::uint32_t slot = handles_.find(handle);
  if (slot == InterestTable::none) return 0;
  // Somebody closed a registered descriptor, and the kernel gave its number out again.
  if (table_.at(slot).kernel == 0 || driver_->verify(handle, key_of(slot)) == 0) {
    return code(Errc::already_registered);
  }
  return mark_gone(slot) ? 0 : -ENOMEM;
}

int PollerState::make_interest(native_handle handle, Ready interest, Trigger trigger,
                               std::uint64_t token, std::uint32_t& slot) noexcept {
  // The index is as long as the highest number: none for a number that nobody has.
  if (!handles_.covers(handle)) {
    if (const int error = driver_->check(handle)) return error;
  }
  try {
    handles_.reserve(handle);
    slot = table_.allocate();
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
  Interest& made = table_.at(slot);
  made.token = token;
  made.handle = handle;
  set_wanted(made, interest, trigger);
  handles_.set(handle, slot);
  return 0;
}

void PollerState::set_wanted(Interest& interest, Ready wanted, Trigger trigger) noexcept {
  interest.wanted = pack(wanted, trigger);
  interest.clear(Interest::one_shot);
  if (trigger == Trigger::one_shot) interest.set(Interest::one_shot);
}

void PollerState::note_change(std::uint32_t slot) noexcept {
  Interest& interest = table_.at(slot);
  if (interest.has(Interest::dirty)) return;
  // No memory for more: those collected so far are made now, which makes room.
  if (!append(changes_, slot)) {
    apply_changes();
    changes_.push_back(slot);
  }
  interest.set(Interest::dirty);
}

/** The driver no longer has it. */
void PollerState::end_interest(std::uint32_t slot) noexcept {
  const Interest& interest = table_.at(slot);
  if (interest.has(Interest::always_ready | Interest::gone)) unlist_special(slot);
  if (handles_.find(interest.handle) == slot) handles_.erase(interest.handle);
  table_.free(slot, wait_number_, next_ != end_ || mutated("T006"));
}

int PollerState::add(native_handle handle, Ready interest, Trigger trigger, std::uint64_t token,
                     bool enabled, InterestId& id) {
  if (trigger == Trigger::edge && !driver_->supports_edge()) return -EOPNOTSUPP;
  if (const int error = driver_->check(handle)) return error;
  if (const int error = make_room_for(handle)) return error;
  std::uint32_t slot = InterestTable::none;
  if (const int error = make_interest(handle, interest, trigger, token, slot)) return error;
  if (enabled) {
    table_.at(slot).set(Interest::enabled);
    note_change(slot);
  }
  id = id_of(slot);
  return 0;
}

int PollerState::add_now(native_handle handle, Ready interest, Trigger trigger, std::uint64_t token,
                         InterestId& id) {
  if (pack(interest, trigger) == 0) return add(handle, interest, trigger, token, true, id);
  if (trigger == Trigger::edge && !driver_->supports_edge()) return -EOPNOTSUPP;
  if (const int error = make_room_for(handle)) return error;
  std::uint32_t slot = InterestTable::none;
  if (const int error = make_interest(handle, interest, trigger, token, slot)) return error;
  table_.at(slot).set(Interest::enabled);
  if (const int error = register_in_kernel(slot)) {
    end_interest(slot);
    return error;
  }
  id = id_of(slot);
  return 0;
}

int PollerState::modify(InterestId id, Ready interest, Trigger trigger) noexcept {
  Interest* found = table_.find(id);
  if (found == nullptr) return code(Errc::stale_handle);
  if (trigger == Trigger::edge && !driver_->supports_edge()) return -EOPNOTSUPP;
  set_wanted(*found, interest, trigger);
  note_change(id.slot);
  return 0;
}

int PollerState::set_token(InterestId id, std::uint64_t token) noexcept {
  Interest* found = table_.find(id);
  if (found == nullptr) return code(Errc::stale_handle);
  found->token = token;
  return 0;
}

int PollerState::enable(InterestId id) noexcept {
  Interest* found = table_.find(id);
  if (found == nullptr) return code(Errc::stale_handle);
  const bool was_enabled = found->has(Interest::enabled);
  const bool level = packed_trigger(found->wanted) == Trigger::level;
  if (was_enabled && level) return 0;
  found->set(Interest::enabled);
  found->clear(Interest::given);
  if (!level) found->set(Interest::rearm);
  note_change(id.slot);
  return 0;
}

int PollerState::disable(InterestId id) noexcept {
  Interest* found = table_.find(id);
  if (found == nullptr) return code(Errc::stale_handle);
  // A one-shot that has fired is disabled, and silent in the kernel's set until it is enabled.
  if (!found->has(Interest::enabled)) return 0;
  found->clear(Interest::enabled);
  note_change(id.slot);
  return 0;
}

int PollerState::remove(InterestId id) noexcept {
  if (table_.find(id) == nullptr) return code(Errc::stale_handle);
  if (mutated("T006")) {
    note_change(id.slot);
  } else {
    unregister(id.slot);
  }
  end_interest(id.slot);
  return 0;
}

int PollerState::forget(InterestId id) noexcept {
  const Interest* found = table_.find(id);
  if (found == nullptr) return code(Errc::stale_handle);
  if (found->kernel != 0) driver_->forget(found->handle, key_of(id.slot));
  end_interest(id.slot);
  return 0;
}

int PollerState::evict(native_handle handle) noexcept {
  const std::uint32_t slot = handles_.find(handle);
  if (slot == InterestTable::none) return 0;
  const bool in_kernel = table_.at(slot).kernel != 0;
  if (!mark_gone(slot)) return -ENOMEM;
  if (in_kernel) driver_->remove(handle, key_of(slot));
  return 0;
}

// Changes

std::size_t PollerState::commit() {
  if (failures_told_) failures_.clear();
  apply_changes();
  failures_told_ = true;
  return failures_.size();
}

void PollerState::apply_changes() noexcept {
  if (changes_.empty()) return;
  if (next_ != end_) changed_in_walk_ = true;
  std::size_t kept = 0;
  // By number: a driver may be a program's own code, and may ask for changes itself.
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    const std::uint32_t slot = changes_[i];
    Interest& interest = table_.at(slot);
    interest.clear(Interest::dirty);
    if (mutated("T006") && !interest.has(Interest::live)) driver_->remove(interest.handle, 0);
    if (!interest.has(Interest::live) || apply_change(slot)) continue;
    interest.set(Interest::dirty);
    changes_[kept++] = slot;
  }
  changes_.resize(kept);
}

/** False: refused, but there was no memory to tell it; it stays due. */
bool PollerState::apply_change(std::uint32_t slot) noexcept {
  Interest& interest = table_.at(slot);
  const bool rearm = interest.has(Interest::rearm);
  interest.clear(Interest::rearm);
  if (interest.has(Interest::always_ready | Interest::gone)) return true;
  if (!wants_kernel(interest) && !mutated("T049")) {
    unregister(slot);
    return true;
  }
  int error = 0;
  if (interest.kernel == 0) {
    error = register_in_kernel(slot);
  } else if (interest.kernel != interest.wanted || rearm) {
    error = without_throwing([&] {
      return driver_->modify(interest.handle, key_of(slot), packed_interest(interest.wanted),
                             packed_trigger(interest.wanted));
    });
    if (error == 0) interest.kernel = interest.wanted;
  }
  if (error == 0 || refuse(slot, error)) return true;
  if (rearm) interest.set(Interest::rearm);
  return false;
}

int PollerState::register_in_kernel(std::uint32_t slot) noexcept {
  Interest& interest = table_.at(slot);
  const Ready wanted = packed_interest(interest.wanted);
  const Trigger trigger = packed_trigger(interest.wanted);
  const int error = without_throwing([&] {
    const int added = driver_->add(interest.handle, key_of(slot), wanted, trigger);
    // Forgotten, but not closed after all: the kernel still has it, under an old key.
    return added == -EEXIST ? driver_->modify(interest.handle, key_of(slot), wanted, trigger)
                            : added;
  });
  if (error == -EPERM && !mutated("T077")) {
    if (!list_special(slot)) return -ENOMEM;
    interest.set(Interest::always_ready);
    return 0;
  }
  if (error == 0) interest.kernel = interest.wanted;
  return error;
}

/** False, with nothing changed, when there is no memory to tell it. */
bool PollerState::refuse(std::uint32_t slot, int error) noexcept {
  const Interest& interest = table_.at(slot);
  const ChangeFailure failure{id_of(slot), interest.handle, interest.token,
                              make_error(-error, "register", Subject::descriptor(interest.handle))};
  if (!append(failures_, failure)) return false;
  unregister(slot);
  end_interest(slot);
  return true;
}

/** Errors say that the descriptor is closed already: there is nothing to remove then. */
void PollerState::unregister(std::uint32_t slot) noexcept {
  Interest& interest = table_.at(slot);
  if (interest.kernel == 0) return;
  if (!mutated("T004")) driver_->remove(interest.handle, key_of(slot));
  interest.kernel = 0;
}

// Interests that the poller makes the events of

bool PollerState::list_special(std::uint32_t slot) noexcept {
  if (!append(specials_, slot)) return false;
  table_.at(slot).link = static_cast<std::uint32_t>(specials_.size() - 1);
  return true;
}

void PollerState::unlist_special(std::uint32_t slot) noexcept {
  const std::uint32_t place = table_.at(slot).link;
  specials_[place] = specials_.back();
  table_.at(specials_[place]).link = place;
  specials_.pop_back();
}

/**
 * Its descriptor is not open any more, or the number means another one. False, with nothing
 * changed, when there is no memory.
 */
bool PollerState::mark_gone(std::uint32_t slot) noexcept {
  Interest& interest = table_.at(slot);
  if (!interest.has(Interest::always_ready) && !list_special(slot)) return false;
  interest.kernel = 0;
  interest.set(Interest::gone);
  handles_.erase(interest.handle);
  return true;
}

Ready PollerState::special_ready(const Interest& interest) noexcept {
  if (interest.has(Interest::gone)) return Ready::invalid;
  if (!interest.has(Interest::enabled) || interest.has(Interest::given)) return Ready::none;
  return packed_interest(interest.wanted) & (Ready::readable | Ready::writable);
}

std::size_t PollerState::count_special() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(specials_.begin(), specials_.end(),
                    [this](std::uint32_t slot) { return any(special_ready(table_.at(slot))); }));
}

/** Fills what room there is, beginning where the last wait ended. */
void PollerState::append_special() {
  for (std::size_t left = specials_.size(); left > 0 && end_ != events_.data() + events_.size();
       --left) {
    if (specials_next_ >= specials_.size()) specials_next_ = 0;
    const std::uint32_t slot = specials_[specials_next_++];
    const Interest& interest = table_.at(slot);
    // No kernel set drops it at the close; poll(2) would say POLLNVAL here.
    if (!interest.has(Interest::gone) && driver_->check(interest.handle) != 0) mark_gone(slot);
    const Ready ready = special_ready(interest);
    if (any(ready)) *end_++ = {key_of(slot), ready};
  }
}

/** An event that is not plain; Ready::none when it is not to be delivered. */
PollEvent PollerState::take_special(const DriverEvent& given) {
  const std::uint32_t slot = key_slot(given.key);
  Interest& interest = table_.at(slot);
  if (interest.generation != key_generation(given.key)) {
    const bool removed_in_walk = !interest.has(Interest::live) && interest.token == wait_number_;
    if (!removed_in_walk && !mutated("T004")) rebuild_due_ = true;
    return {};
  }
  PollEvent event{interest.token, id_of(slot), interest.handle, given.ready};
  if (any(given.ready, Ready::invalid)) {
    if (mutated("T009")) return {};
    unregister(slot);
    end_interest(slot);
    event.ready = Ready::invalid;
    return event;
  }
  const bool expected = interest.kernel != 0 || interest.has(Interest::always_ready);
  if (!expected && !changed_in_walk_) rebuild_due_ = true;
  if (!interest.has(Interest::enabled)) return {};
  if (interest.kernel != 0 && loses_edge(given, interest)) {
    interest.set(Interest::rearm);
    note_change(slot);
  }
  event.ready &= reportable(interest.wanted);
  if (interest.has(Interest::one_shot)) {
    if (any(event.ready)) {
      interest.clear(Interest::enabled);
    } else {  // the interest changed in this walk, but the kernel has spent its shot
      interest.set(Interest::rearm);
      note_change(slot);
    }
  } else if (packed_trigger(interest.wanted) == Trigger::edge) {
    interest.set(Interest::given);
  }
  return event;
}

PollerState::TokenReady PollerState::take_special_ready(const DriverEvent& given) {
  const PollEvent event = take_special(given);
  return {event.token, event.ready};
}

// Waiting

/** Level-triggered events come again by themselves; the kernel has spent the others. */
void PollerState::rearm_unwalked() {
  for (; next_ != end_; ++next_) {
    const std::uint64_t key = next_->key;
    Interest* interest = table_.find({key_slot(key), key_generation(key)});
    if (interest == nullptr || packed_trigger(interest->kernel) == Trigger::level) continue;
    interest->set(Interest::rearm);
    note_change(key_slot(key));
  }
}

int PollerState::wait(std::int64_t timeout_ns) {
  if (next_ != end_ && !mutated("T021")) rearm_unwalked();
  next_ = end_ = events_.data();
  table_.release_held();
  changed_in_walk_ = false;
  ++wait_number_;
  commit();
  if (rebuild_due_) register_all(false);

  std::size_t room = events_.size();
  const std::size_t specials = specials_.empty() ? 0 : count_special();
  if (specials != 0) {  // they get half of every second list at least, the kernel's the rest
    specials_first_ = !specials_first_;
    if (specials_first_) room -= std::min(specials, (room + 1) / 2);
  }
  const bool due = specials != 0 || !failures_.empty() || !changes_.empty() || rebuild_due_;
  if (due) timeout_ns = 0;
  const int count = room == 0 ? 0 : driver_->wait(timeout_ns, std::span(events_).first(room));
  if (count < 0) return count;
  end_ += count;
  audit_left_ -= count;
  if (audit_left_ <= 0) audit();
  if (specials != 0) append_special();
  return static_cast<int>(end_ - events_.data());
}

/** Verifies the descriptor of one event of the kernel's. */
void PollerState::audit() {
  audit_left_ = audit_interval;
  const std::uint64_t key = end_[-1].key;
  const Interest* interest = table_.find({key_slot(key), key_generation(key)});
  if (interest == nullptr || interest->kernel == 0) return;
  if (driver_->verify(interest->handle, key) == 0) return;
  mark_gone(key_slot(key));
  rebuild_due_ = true;
}

/** A new kernel object with all that is wanted, each refusal for itself. */
int PollerState::register_all(bool forked) {
  if (const int error = driver_->rebuild()) return error;
  rebuild_due_ = false;
  for (std::uint32_t slot = 0; slot < table_.end(); ++slot) {
    Interest& interest = table_.at(slot);
    interest.kernel = 0;
    if (!interest.has(Interest::live) || interest.has(Interest::gone | Interest::always_ready)) {
      continue;
    }
    if (!wants_kernel(interest)) continue;
    const int error = register_in_kernel(slot);
    if (error == 0) continue;
    if (mutated("T043")) return error;
    const bool told = error == -EBADF && !forked ? mark_gone(slot) : refuse(slot, error);
    if (!told) rebuild_due_ = true;
  }
  return 0;
}

int PollerState::after_fork() {
  failures_.clear();
  next_ = end_ = events_.data();
  table_.release_held();
  return register_all(true);
}

int PollerState::rebuild() {
  if (const int error = register_all(false); error < 0) return error;
  next_ = end_ = events_.data();
  table_.release_held();
  return 0;
}

}  // namespace evix::detail
