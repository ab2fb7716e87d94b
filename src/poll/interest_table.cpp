#include "poll/interest_table.hpp"

#include "base/mutation.hpp"

namespace evix::detail {

std::uint32_t InterestTable::allocate() {
  std::uint32_t slot = free_;
  if (slot != none) {
    free_ = at(slot).link;
  } else {
    if (end_ % chunk_size == 0) chunks_.push_back(std::make_unique<Interest[]>(chunk_size));
    slot = end_++;
    at(slot).generation = 1;
  }
  Interest& interest = at(slot);
  interest.link = none;
  interest.kernel = 0;
  interest.flags = static_cast<std::uint8_t>((interest.flags & Interest::dirty) | Interest::live);
  ++size_;
  return slot;
}

void InterestTable::free(std::uint32_t slot, std::uint64_t wait_number, bool hold) noexcept {
  Interest& interest = at(slot);
  interest.flags &= Interest::dirty;
  interest.kernel = 0;
  interest.token = wait_number;
  if (!mutated("T001") && ++interest.generation == 0) interest.generation = 1;
  --size_;
  if (!hold || mutated("T001")) {
    interest.link = free_;
    free_ = slot;
    return;
  }
  interest.link = held_;
  if (held_ == none) held_last_ = slot;
  held_ = slot;
}

void InterestTable::release_held() noexcept {
  if (held_ == none) return;
  at(held_last_).link = free_;
  free_ = held_;
  held_ = held_last_ = none;
}

std::uint32_t* HandleIndex::entry(native_handle handle) const noexcept {
  if (handle < 0) return nullptr;
  const auto number = static_cast<std::size_t>(handle);
  const std::size_t page = number / page_size;
  if (page >= pages_.size() || pages_[page] == nullptr) return nullptr;
  return &(*pages_[page])[number % page_size];
}

std::uint32_t HandleIndex::find(native_handle handle) const noexcept {
  const std::uint32_t* found = entry(handle);
  return found == nullptr ? InterestTable::none : *found;
}

void HandleIndex::reserve(native_handle handle) {
  if (handle < 0) return;
  const std::size_t page = static_cast<std::size_t>(handle) / page_size;
  if (page >= pages_.size()) pages_.resize(page + 1);
  if (pages_[page] != nullptr) return;
  pages_[page] = std::make_unique<Page>();
  pages_[page]->fill(InterestTable::none);
}

void HandleIndex::set(native_handle handle, std::uint32_t slot) noexcept {
  if (std::uint32_t* found = entry(handle)) *found = slot;
}

void HandleIndex::erase(native_handle handle) noexcept {
  if (std::uint32_t* found = entry(handle)) *found = InterestTable::none;
}

}  // namespace evix::detail
