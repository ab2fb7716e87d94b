#include <evix/loop.hpp>
#include <evix/waker.hpp>

#include <atomic>
#include <thread>

#include "base/mutation.hpp"
#include "loop/callback_slot.hpp"
#include "loop/core.hpp"

namespace evix {
namespace detail {
namespace {

void run_wake(Work* work);
struct WakerRecord;

}  // namespace

/** Shared by a waker and its senders; queued in the mailbox while a wake-up is pending. */
struct WakeNode : Work {
  explicit WakeNode(Mailbox& owner) noexcept : mailbox(&owner) {
    run = run_wake;
    mailbox->acquire();
  }
  WakeNode(const WakeNode&) = delete;
  WakeNode& operator=(const WakeNode&) = delete;

  void acquire() noexcept { references.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    mailbox->release();
    delete this;
  }
  bool wake() noexcept {
    if (closed.load(std::memory_order_acquire)) return false;
    // The exchange publishes what the sender wrote, also when a wake-up is pending already.
    if (pending.exchange(true, std::memory_order_acq_rel)) return true;
    acquire();
    if (mailbox->push(this)) {
      if (mutated("T111")) {
        std::this_thread::yield();
        record->core->mailbox().wake();
      }
      return true;
    }
    release();
    return false;
  }

  Mailbox* mailbox;
  std::atomic<int> references = 1;
  std::atomic<bool> pending = false;
  std::atomic<bool> closed = false;
  HandleRecord* record = nullptr;  // the loop's thread only; null when the waker is stopped
};

namespace {

struct WakerRecord : HandleRecord {
  WakeNode* node = nullptr;
  CallbackSlot<void()> callback;

  WakerRecord() noexcept : HandleRecord(HandleKind::waker) {}
  void shut() noexcept {
    if (node != nullptr) {
      node->closed.store(true, std::memory_order_release);
      node->record = nullptr;
      std::exchange(node, nullptr)->release();
    }
    callback.reset();
  }
  void describe(HandleInfo& info) const {
    if (node != nullptr) info.waits_for = "wake-up";
  }
};

void run_wake(Work* work) {
  auto& node = *static_cast<WakeNode*>(work);
  // Before the callback: a wake() from now on makes another call.
  node.pending.exchange(false, std::memory_order_acq_rel);
  auto* record = static_cast<WakerRecord*>(node.record);
  node.release();
  if (record == nullptr) return;
  call_slot(*record, record->callback, [record] { return record->node != nullptr; });
}

WakerRecord& record_of(const Waker& waker) noexcept {
  check(waker.record() != nullptr, "an empty waker was used");
  auto& record = static_cast<WakerRecord&>(*waker.record());
  record.core->check_usable("a waker was used by a thread that does not run its loop");
  return record;
}

}  // namespace
}  // namespace detail

WakeSender::WakeSender(detail::WakeNode* node) noexcept : node_(node) {
  if (node_ != nullptr) node_->acquire();
}

WakeSender::WakeSender(const WakeSender& other) noexcept : WakeSender(other.node_) {}

WakeSender::WakeSender(WakeSender&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}

WakeSender& WakeSender::operator=(WakeSender other) noexcept {
  std::swap(node_, other.node_);
  return *this;
}

WakeSender::~WakeSender() {
  if (node_ != nullptr) node_->release();
}

bool WakeSender::wake() const noexcept { return node_ != nullptr && node_->wake(); }

Waker::Waker(Loop& loop, Callback<void()> callback, std::source_location location)
    : Handle(loop.core().make_record<detail::WakerRecord>(HandleKind::waker)) {
  auto& record = static_cast<detail::WakerRecord&>(*record_);
  record.location = location;
  record.callback.stored = std::move(callback);
  record.node = new detail::WakeNode(record.core->mailbox());
  record.node->record = &record;
  record.referenced = false;
  record.core->set_active(record, true);
}

WakeSender Waker::sender() const { return WakeSender(detail::record_of(*this).node); }

void Waker::stop() noexcept {
  detail::WakerRecord& record = detail::record_of(*this);
  if (record.core->dead()) return;
  record.shut();
  record.core->set_active(record, false);
}

}  // namespace evix
