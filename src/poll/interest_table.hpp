#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "evix/native_handle.hpp"
#include "evix/poller.hpp"

/** @file
 * The registered interests of a poller, and the way from a descriptor's number to its interest.
 */
namespace evix::detail {

/** Interest and trigger in one byte; 0 is "in nothing". */
constexpr std::uint8_t pack(Ready interest, Trigger trigger) noexcept {
  constexpr Ready bits = Ready::readable | Ready::priority | Ready::writable;
  const auto wanted = static_cast<unsigned>(interest & bits);
  return static_cast<std::uint8_t>(wanted == 0 ? 0U : wanted | static_cast<unsigned>(trigger) << 4);
}
constexpr Ready packed_interest(std::uint8_t packed) noexcept {
  return static_cast<Ready>(packed & 7U);
}
constexpr Trigger packed_trigger(std::uint8_t packed) noexcept {
  return static_cast<Trigger>(packed >> 4);
}

/**
 * One registered interest. The four facts are independent: what the user wants (`wanted`), whether
 * he wants it now (`enabled`), what the driver was told (`kernel`, 0: not in its set), and whether
 * the driver must be told something (`dirty`: the slot is in the list of changes).
 */
struct Interest {
  enum Flag : std::uint8_t {
    live = 1,
    enabled = 2,
    dirty = 4,
    rearm = 8,          ///< tell the driver even if nothing changed: edge or one-shot fires again
    always_ready = 16,  ///< the kernel cannot poll it; the poller makes its events
    gone = 32,          ///< its descriptor was closed by others; one invalid event is due
    one_shot = 64,      ///< the trigger is one_shot
    given = 128,        ///< always ready, edge: its event was given
  };

  std::uint64_t token;  ///< free: number of the wait after which it was freed
  native_handle handle;
  std::uint32_t generation;  ///< of the interest, or of the next one here when free; never 0
  std::uint32_t link;        ///< free: the next free slot; always_ready or gone: place in that list
  std::uint8_t wanted;
  std::uint8_t kernel;
  std::uint8_t flags;

  bool has(unsigned bits) const noexcept { return (flags & bits) != 0; }
  void set(unsigned bits) noexcept { flags = static_cast<std::uint8_t>(flags | bits); }
  void clear(unsigned bits) noexcept { flags = static_cast<std::uint8_t>(flags & ~bits); }
};
static_assert(sizeof(Interest) == 24, "memory per idle connection is a promise");

constexpr std::uint64_t make_key(std::uint32_t slot, std::uint32_t generation) noexcept {
  return std::uint64_t{generation} << 32 | slot;
}
constexpr std::uint32_t key_slot(std::uint64_t key) noexcept {
  return static_cast<std::uint32_t>(key);
}
constexpr std::uint32_t key_generation(std::uint64_t key) noexcept {
  return static_cast<std::uint32_t>(key >> 32);
}

/** Chunks of records at stable addresses, with a free list. Slots are never given back. */
class InterestTable {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;

  Interest& at(std::uint32_t slot) noexcept {
    return chunks_[slot / chunk_size][slot % chunk_size];
  }
  const Interest& at(std::uint32_t slot) const noexcept {
    return chunks_[slot / chunk_size][slot % chunk_size];
  }
  /** Null for a stale or invented id. */
  Interest* find(InterestId id) noexcept {
    if (id.slot >= end_) return nullptr;
    Interest& interest = at(id.slot);
    const bool match = interest.generation == id.generation && interest.has(Interest::live);
    return match ? &interest : nullptr;
  }

  /** A live record; generation and the dirty bit are kept from its earlier life. */
  std::uint32_t allocate();
  /**
   * Ends a life. @param hold keeps the slot from being reused until release_held(), so that an
   * event of the current walk can be told from one that the kernel should not have sent.
   */
  void free(std::uint32_t slot, std::uint64_t wait_number, bool hold) noexcept;
  void release_held() noexcept;

  std::uint32_t size() const noexcept { return size_; }
  /** All slots ever used are below. */
  std::uint32_t end() const noexcept { return end_; }

 private:
  static constexpr std::uint32_t chunk_size = 256;

  std::vector<std::unique_ptr<Interest[]>> chunks_;
  std::uint32_t end_ = 0;
  std::uint32_t size_ = 0;
  std::uint32_t free_ = none;
  std::uint32_t held_ = none;
  std::uint32_t held_last_ = none;
};

/**
 * From a descriptor's number to its slot. Two levels, so that one descriptor numbered 200,000 costs
 * a page and a short directory. Negative numbers are not kept.
 */
class HandleIndex {
 public:
  /** @return InterestTable::none when there is none. */
  std::uint32_t find(native_handle handle) const noexcept;
  /** Whether set() has room for this number. */
  bool covers(native_handle handle) const noexcept {
    return handle < 0 || entry(handle) != nullptr;
  }
  /** Makes room, so that set() cannot fail. */
  void reserve(native_handle handle);
  void set(native_handle handle, std::uint32_t slot) noexcept;
  void erase(native_handle handle) noexcept;

 private:
  static constexpr std::size_t page_size = 1024;
  using Page = std::array<std::uint32_t, page_size>;

  std::uint32_t* entry(native_handle handle) const noexcept;

  std::vector<std::unique_ptr<Page>> pages_;
};

}  // namespace evix::detail
