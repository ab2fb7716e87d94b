#include "capi/registry.hpp"

#include <bit>
#include <mutex>
#include <new>
#include <thread>

#include "sys/process.hpp"

namespace evix::detail::capi {
namespace {

// Layout of an id, from the lowest bit: 1, kind, slot, generation. 64-bit pointers have room for
// 2^27 handles at a time and 2^32 - 1 lives of each slot; after those the slot is used no more.
constexpr unsigned id_bits = sizeof(Id) * 8;
constexpr unsigned kind_bits = 4;
constexpr unsigned slot_bits = id_bits == 64 ? 27 : 15;
constexpr unsigned slot_shift = 1 + kind_bits;
constexpr unsigned generation_shift = slot_shift + slot_bits;
constexpr std::uint32_t slots_max = std::uint32_t{1} << slot_bits;
constexpr Id generation_max = ~Id{0} >> generation_shift;

// Chunk n holds first_chunk_size << n entries, so the directory has a fixed, small size.
constexpr unsigned first_chunk_bits = 6;
constexpr std::uint32_t first_chunk_size = std::uint32_t{1} << first_chunk_bits;
constexpr unsigned chunks_max = slot_bits - first_chunk_bits + 1;

// Entries that a cache takes from the common list at a time: one lock for as many handles.
constexpr int batch_size = 32;

struct Place {
  unsigned chunk;
  std::uint32_t offset;
};

constexpr Place place_of(std::uint32_t slot) noexcept {
  const std::uint32_t number = slot + first_chunk_size;
  const auto chunk = static_cast<unsigned>(std::bit_width(number)) - 1 - first_chunk_bits;
  return {chunk, number - (first_chunk_size << chunk)};
}

struct Table {
  std::atomic<Entry*> chunks[chunks_max] = {};
  std::mutex mutex;  // guards what follows
  std::uint32_t slots_used = 0;
  Entry* free = nullptr;
};

constinit Table table;

Entry& take_locked() {
  if (Entry* entry = table.free) {
    table.free = entry->next_free;
    return *entry;
  }
  if (table.slots_used == slots_max - first_chunk_size) throw std::bad_alloc();
  const Place place = place_of(table.slots_used);
  Entry* chunk = table.chunks[place.chunk].load(std::memory_order_relaxed);
  if (chunk == nullptr) {
    chunk = new Entry[std::size_t{first_chunk_size} << place.chunk];
    table.chunks[place.chunk].store(chunk, std::memory_order_release);
  }
  Entry& entry = chunk[place.offset];
  entry.slot = table.slots_used++;
  return entry;
}

/**
 * A child has none of the threads that held the lock or a pin at that moment, and would wait for
 * them for ever. The forking thread itself is in user code, where it holds neither. Called when the
 * library is loaded: inside a call it could itself be what a fork interrupts.
 */
[[maybe_unused]] const int table_fork_handlers =
    around_forks([] { table.mutex.lock(); }, [] { table.mutex.unlock(); },
                 [] {
                   for (std::uint32_t slot = 0; slot < table.slots_used;) {
                     const Place place = place_of(slot++);
                     table.chunks[place.chunk].load()[place.offset].pins = 0;
                   }
                   table.mutex.unlock();
                 });

}  // namespace

Entry& EntryCache::take() {
  if (free_ == nullptr) {
    const std::scoped_lock lock(table.mutex);
    free_ = &take_locked();
    free_->next_free = nullptr;
    // Only what is free already: a batch of new slots would be spent on loops with few handles.
    for (int more = 1; more < batch_size && table.free != nullptr; ++more) {
      Entry* entry = table.free;
      table.free = entry->next_free;
      entry->next_free = free_;
      free_ = entry;
    }
  }
  Entry& entry = *free_;
  free_ = entry.next_free;
  return entry;
}

void EntryCache::free(Entry& entry) noexcept {
  if (entry.generation == generation_max) return;
  entry.next_free = free_;
  free_ = &entry;
}

void EntryCache::give_back() noexcept {
  if (free_ == nullptr) return;
  Entry* last = free_;
  while (last->next_free != nullptr) last = last->next_free;
  const std::scoped_lock lock(table.mutex);
  last->next_free = table.free;
  table.free = free_;
  free_ = nullptr;
}

Id publish(Entry& entry, Kind kind, LoopState* loop, void* object) noexcept {
  entry.loop.store(loop, std::memory_order_relaxed);
  entry.object.store(object, std::memory_order_relaxed);
  const Id id = ++entry.generation << generation_shift | Id{entry.slot} << slot_shift |
                static_cast<Id>(kind) << 1 | 1U;
  entry.id.store(id, std::memory_order_seq_cst);
  return id;
}

Entry* find(Id id) noexcept {
  if ((id & 1U) == 0) return nullptr;
  const auto slot = static_cast<std::uint32_t>(id >> slot_shift) & (slots_max - 1);
  if (slot >= slots_max - first_chunk_size) return nullptr;
  const Place place = place_of(slot);
  Entry* chunk = table.chunks[place.chunk].load(std::memory_order_acquire);
  if (chunk == nullptr) return nullptr;
  Entry& entry = chunk[place.offset];
  return entry.id.load(std::memory_order_seq_cst) == id ? &entry : nullptr;
}

bool retract(Entry& entry, Id id) noexcept {
  return entry.id.compare_exchange_strong(id, 0, std::memory_order_seq_cst);
}

void wait_for_pins(const Entry& entry) noexcept {
  while (entry.pins.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
}

Pin::Pin(Id id, Kind kind) noexcept {
  Entry* entry = kind_of(id) == kind ? find(id) : nullptr;
  if (entry == nullptr) return;
  // Sequentially consistent on both sides: either this sees the retraction, or whoever retracts
  // sees the pin.
  entry->pins.fetch_add(1, std::memory_order_seq_cst);
  if (entry->id.load(std::memory_order_seq_cst) == id) {
    entry_ = entry;
    object_ = entry->object.load(std::memory_order_relaxed);
  } else {
    entry->pins.fetch_sub(1, std::memory_order_release);
  }
}

Pin::~Pin() {
  if (entry_ != nullptr) entry_->pins.fetch_sub(1, std::memory_order_release);
}

}  // namespace evix::detail::capi
