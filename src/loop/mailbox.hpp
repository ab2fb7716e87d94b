#pragma once

#include <evix/native_handle.hpp>

#include <atomic>
#include <cstdint>

#include "base/mutation.hpp"
#include "base/work.hpp"
#include "sys/calls.hpp"
#include "sys/process.hpp"

/** @file
 * How other threads and signal handlers reach a loop.
 *
 * A stack of works that any thread pushes onto and the loop takes whole, plus the wake descriptor.
 * The protocol that loses no wake-up (Dekker's; all four accesses are sequentially consistent):
 *
 *     producer: push the work;      then look at `asleep`; write the event when it was true
 *     loop:     set `asleep`;       then look at the stack; wait only when it is empty
 *
 * Whichever came first, one of the two sees the other. The mailbox is reference counted, by the
 * loop and by everybody who may still push, and so outlives the loop; after close() a push fails.
 */
namespace evix::detail {

class Mailbox {
 public:
  explicit Mailbox(Calls& calls) noexcept : calls_(&calls) {}
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void acquire() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  // ---- Any thread ----

  /** False when closed; the work is then still the caller's. */
  bool push(Work* work) noexcept {
    Work* head = head_.load(std::memory_order_relaxed);
    do {
      if (head == closed_mark()) return false;
      work->next = head;
    } while (!head_.compare_exchange_weak(head, work, std::memory_order_seq_cst,
                                          std::memory_order_relaxed));
    wake_if_asleep();
    return true;
  }
  /** Makes the current or the next wait return. Async-signal-safe. */
  void wake() noexcept {
    wake_asked_.store(true, std::memory_order_seq_cst);
    wake_if_asleep();
  }
  /**
   * For whoever has stored something that the loop looks at after fall_asleep(), seq_cst both: ends
   * the wait that has begun, if there is one. Async-signal-safe.
   */
  void interrupt() noexcept { wake_if_asleep(); }
  /** From the signal handler: pending bits are the truth, the event is a hint. */
  void note_signal(int signal) noexcept {
    if (parents()) return;
    if (mutated("T108") && calls_->event_write(event()) < 0) return;
    signals_.fetch_or(std::uint64_t{1} << (signal - 1), std::memory_order_seq_cst);
    wake_if_asleep();
  }
  bool closed() const noexcept { return head_.load(std::memory_order_acquire) == closed_mark(); }

  // ---- The loop's thread ----

  /** Everything pushed so far, oldest first, linked through Work::next. */
  Work* take() noexcept;
  bool has_work() const noexcept { return head_.load(std::memory_order_relaxed) != nullptr; }
  std::uint64_t take_signals() noexcept {
    if (signals_.load(std::memory_order_relaxed) == 0) return 0;
    return signals_.exchange(0, std::memory_order_acq_rel);
  }
  void forget_signals() noexcept { signals_.store(0, std::memory_order_relaxed); }

  /** Before a wait that may block: false when there is a reason not to block. */
  bool fall_asleep() noexcept {
    asleep_.store(true, std::memory_order_seq_cst);
    if (head_.load(std::memory_order_seq_cst) == nullptr &&
        signals_.load(std::memory_order_seq_cst) == 0 &&
        !wake_asked_.load(std::memory_order_seq_cst)) {
      return true;
    }
    wake_up();
    return false;
  }
  void wake_up() noexcept {
    asleep_.store(false, std::memory_order_relaxed);
    // The exchange gets what the waker wrote before; a plain store could hide a wake() of just now.
    if (wake_asked_.load(std::memory_order_relaxed)) {
      wake_asked_.exchange(false, std::memory_order_acquire);
    }
  }

  /** Makes the event, once. 0 or the negative errno. */
  int open_event() noexcept;
  native_handle event() const noexcept { return event_.load(std::memory_order_relaxed); }
  /** In a child: a new event in place of the parent's. 0 or the negative errno. */
  int after_fork() noexcept;
  /** From now on push() fails. Returns what was still in it. Closes the event. */
  Work* close() noexcept;

 private:
  ~Mailbox() = default;

  /** In a child before after_fork(): the event is the parent's, hands off (trap T037). */
  bool parents() const noexcept {
    return fork_generation_.load(std::memory_order_relaxed) != fork_generation() &&
           !mutated("T037");
  }
  static Work* closed_mark() noexcept;
  static Work* reverse(Work* newest_first) noexcept;
  void wake_if_asleep() noexcept {
    if (!asleep_.load(std::memory_order_seq_cst)) return;
    if (!asleep_.exchange(false, std::memory_order_seq_cst)) return;
    write_event();
  }
  void write_event() noexcept;

  std::atomic<Work*> head_ = nullptr;
  std::atomic<bool> asleep_ = false;
  std::atomic<bool> wake_asked_ = false;
  std::atomic<std::uint64_t> signals_ = 0;
  std::atomic<native_handle> event_ = no_handle;
  std::atomic<int> writers_ = 0;  // threads that are writing the event now
  std::atomic<std::uint32_t> fork_generation_ = detail::fork_generation();
  std::atomic<std::uint32_t> references_ = 1;
  Calls* calls_;
};

}  // namespace evix::detail
