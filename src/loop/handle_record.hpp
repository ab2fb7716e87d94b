#pragma once

#include <evix/handle.hpp>
#include <evix/loop.hpp>

#include <cstdint>
#include <source_location>

#include "base/check.hpp"
#include "base/slab.hpp"

/** @file
 * What the loop knows of each handle, and the storage of each kind.
 */
namespace evix::detail {

class LoopCore;

/**
 * Head of every handle's record. 24 bytes: it counts in the memory of an idle connection. The
 * location is first so that it can end a cache line which the rest begins.
 */
struct HandleRecord {
  std::source_location location{};
  LoopCore* core = nullptr;
  std::uint32_t slot : 28 = 0;
  HandleKind kind : 4;
  bool active : 1 = false;
  bool referenced : 1 = true;
  bool released : 1 = false;  ///< the handle is gone; the record follows when no work is queued
  bool closed : 1 = false;
  bool named : 1 = false;
  bool connected : 1 = false;           ///< streams
  bool op_queued : 1 = false;           ///< the record's own operation is in the loop's queue
  bool draining : 1 = false;            ///< streams: input is read and dropped
  bool accepted : 1 = false;            ///< streams: counted among the loop's connections
  std::uint32_t works_queued : 23 = 0;  ///< in the loop's queues or running, with this record

  explicit HandleRecord(HandleKind handle_kind) noexcept : kind(handle_kind) {}
  /** A work that points to this record goes into one of the loop's queues. */
  void add_queued_work() noexcept {
    ++works_queued;
    check(works_queued != 0, "more than 8,388,607 callbacks are due on one handle");
  }
};
static_assert(sizeof(HandleRecord) == 24);

/** Storage of the records of one kind, as the loop sees it. */
class HandleStore {
 public:
  using Visit = void (*)(HandleRecord& record, void* context);

  virtual ~HandleStore() = default;
  virtual void for_each(Visit visit, void* context) = 0;
  virtual std::size_t size() const noexcept = 0;
  /** Ends everything of this record without calling user code, and destroys its callbacks. */
  virtual void shut(HandleRecord& record) noexcept = 0;
  virtual void free(HandleRecord& record) noexcept = 0;
  virtual void describe(const HandleRecord& record, HandleInfo& info) const = 0;
};

/** Record has `void shut() noexcept` and `void describe(HandleInfo&) const`. */
template <class Record>
class TypedHandleStore final : public HandleStore {
 public:
  Record* make(LoopCore& core) {
    Record* record = slab_.make();
    record->core = &core;
    return record;
  }
  void for_each(Visit visit, void* context) override {
    slab_.for_each([&](Record& record) { visit(record, context); });
  }
  std::size_t size() const noexcept override { return slab_.size(); }
  void shut(HandleRecord& record) noexcept override { static_cast<Record&>(record).shut(); }
  void free(HandleRecord& record) noexcept override { slab_.free(&static_cast<Record&>(record)); }
  void describe(const HandleRecord& record, HandleInfo& info) const override {
    static_cast<const Record&>(record).describe(info);
  }

 private:
  Slab<Record> slab_;
};

}  // namespace evix::detail
