#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

/** @file
 * Storage of equal objects: stable addresses, O(1) make and free, generations, a walk over all.
 */
namespace evix::detail {

/**
 * Objects live in chunks that are never moved or given back before the slab dies. T has a member
 * `std::uint32_t slot` of 28 bits at least, which the slab sets. The generation of a slot changes
 * with every free, so a stale (slot, generation) pair finds nothing; generation 0 is never used.
 */
template <class T, std::size_t chunk_size = 64>
class Slab {
 public:
  Slab() = default;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  /** A destructor may free others, and make new ones: those go too. */
  ~Slab() {
    while (size_ != 0) for_each([this](T& object) { free(&object); });
  }

  template <class... Arguments>
  T* make(Arguments&&... arguments) {
    if (free_head_ == none) add_chunk();
    const std::uint32_t slot = free_head_;
    Cell& cell = cell_at(slot);
    const std::uint32_t next_free = cell.next_free;
    T* object = nullptr;
    try {
      object = ::new (static_cast<void*>(cell.bytes)) T(std::forward<Arguments>(arguments)...);
    } catch (...) {
      cell.next_free = next_free;  // the constructor may have written over it
      throw;
    }
    free_head_ = next_free;
    object->slot = slot & slot_max;
    set_live(slot, true);
    ++size_;
    return object;
  }

  /** The destructor may use the slab; it finds the object no more, and its slot is in use still. */
  void free(T* object) noexcept {
    const std::uint32_t slot = object->slot;
    set_live(slot, false);
    std::uint32_t& generation = chunks_[slot / chunk_size]->generations[slot % chunk_size];
    if (++generation == 0) generation = 1;
    --size_;
    object->~T();
    Cell& cell = cell_at(slot);
    cell.next_free = free_head_;
    free_head_ = slot;
  }

  std::uint32_t generation(const T* object) const noexcept {
    return chunks_[object->slot / chunk_size]->generations[object->slot % chunk_size];
  }

  /** Null when the slot is free or was reused. */
  T* find(std::uint32_t slot, std::uint32_t generation) noexcept {
    if (slot / chunk_size >= chunks_.size()) return nullptr;
    Chunk& chunk = *chunks_[slot / chunk_size];
    if (!is_live(slot) || chunk.generations[slot % chunk_size] != generation) return nullptr;
    return object_at(slot);
  }

  /** As find(), for a pair that an object had: a slot that is free has another generation. */
  T* find_issued(std::uint32_t slot, std::uint32_t generation) noexcept {
    if (chunks_[slot / chunk_size]->generations[slot % chunk_size] != generation) return nullptr;
    return object_at(slot);
  }

  /** The object that lives in this slot now. */
  T& at(std::uint32_t slot) noexcept { return *object_at(slot); }

  std::size_t size() const noexcept { return size_; }

  /** Calls `visit` for every object; it may free the object that it is given. */
  template <class Visit>
  void for_each(Visit visit) {
    for (std::uint32_t slot = 0; slot < chunks_.size() * chunk_size; ++slot) {
      if (is_live(slot)) visit(*object_at(slot));
    }
  }

 private:
  static constexpr std::uint32_t none = UINT32_MAX;
  static constexpr std::uint32_t slot_max = (1U << 28) - 1;
  static_assert(chunk_size % 64 == 0);

  union Cell {
    std::uint32_t next_free;
    alignas(T) std::byte bytes[sizeof(T)];
  };
  struct Chunk {
    Cell cells[chunk_size];
    std::uint32_t generations[chunk_size];
    std::uint64_t live[chunk_size / 64] = {};
  };

  Cell& cell_at(std::uint32_t slot) noexcept {
    return chunks_[slot / chunk_size]->cells[slot % chunk_size];
  }
  T* object_at(std::uint32_t slot) noexcept {
    return std::launder(reinterpret_cast<T*>(cell_at(slot).bytes));
  }
  bool is_live(std::uint32_t slot) const noexcept {
    return (chunks_[slot / chunk_size]->live[slot % chunk_size / 64] >> (slot % 64) & 1U) != 0;
  }
  void set_live(std::uint32_t slot, bool live) noexcept {
    std::uint64_t& word = chunks_[slot / chunk_size]->live[slot % chunk_size / 64];
    const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
    word = live ? word | bit : word & ~bit;
  }

  void add_chunk() {
    const auto base = static_cast<std::uint32_t>(chunks_.size() * chunk_size);
    if (base > slot_max - chunk_size) throw std::bad_alloc();
    chunks_.push_back(std::make_unique_for_overwrite<Chunk>());
    Chunk& chunk = *chunks_.back();
    for (std::size_t i = chunk_size; i-- > 0;) {
      chunk.generations[i] = 1;
      chunk.cells[i].next_free = free_head_;
      free_head_ = base + static_cast<std::uint32_t>(i);
    }
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::uint32_t free_head_ = none;
  std::size_t size_ = 0;
};

}  // namespace evix::detail
