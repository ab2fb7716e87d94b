#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/mutation.hpp"
#include "sys/calls.hpp"

/** @file
 * One io_uring: its set-up on old and new kernels, its two queues, the call that enters it.
 *
 * The only file that includes liburing's header, of which structures and the functions that prepare
 * entries are used; every call goes through the table. Nothing newer than liburing 2.3 is used; a
 * flag or opcode that is belongs here, with its number, and is probed in io_uring_ring.cpp.
 */
namespace evix::detail {

/** How many buffers a ring of provided buffers holds; a power of two (io_uring_register(2)). */
inline constexpr unsigned ring_buffer_count = 256;
inline constexpr unsigned ring_buffer_group = 0;

class Ring {
 public:
  explicit Ring(Calls& calls) noexcept : calls_(calls) {}
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() { close(); }

  /** The best ring that this kernel makes; disabled where it can be. 0 or -errno, see why(). */
  int open();
  /** Why the last open() failed. */
  const std::string& why() const noexcept { return why_; }
  /** What this kernel refuses of what was asked for. */
  const std::vector<std::string>& fallbacks() const noexcept { return fallbacks_; }
  bool is_open() const noexcept { return fd_ >= 0; }
  bool is_disabled() const noexcept { return disabled_; }
  /**
   * What an entry of a send that must not wait needs, so that only a send that did not take all
   * has a completion; 0 where that cannot be. Linux before 6.1 forgets what a send took before it
   * would have had to wait.
   */
  std::uint8_t flags_of_silent_send() const noexcept { return silent_send_flags_; }
  /** The calling thread is the one that enters from now on. 0 or -errno. */
  int enable() noexcept;
  /** The kernel gives up whatever is in flight, at some time after this call. */
  void close() noexcept;
  /** In a forked child: the memory is not here, and nothing of the parent's is touched. */
  void abandon() noexcept;

  // ---- Submission ----
  /** An entry to be prepared; null when there is no room before the next enter(). */
  io_uring_sqe* next_entry() noexcept {
    if (tail_ - submitted_ == entry_count_) [[unlikely]]
      return nullptr;
    return &entries_[tail_++ & entry_mask_];
  }
  unsigned unsubmitted() const noexcept { return tail_ - submitted_; }
  unsigned room() const noexcept { return entry_count_ - unsubmitted(); }
  /** Position of the entry that next_entry() gives next. */
  unsigned position() const noexcept { return tail_; }
  bool is_unsubmitted(unsigned at) const noexcept { return at - submitted_ < tail_ - submitted_; }
  io_uring_sqe& entry_at(unsigned at) noexcept { return entries_[at & entry_mask_]; }
  unsigned first_unsubmitted() const noexcept { return submitted_; }

  // ---- Completion ----
  unsigned completions() const noexcept {
    return __atomic_load_n(completion_tail_, __ATOMIC_ACQUIRE) - completion_head_;
  }
  io_uring_cqe& completion(unsigned index) noexcept {
    return completions_[(completion_head_ + index) & completion_mask_];
  }
  void pop_completion() noexcept {
    ++completion_head_;
    __atomic_store_n(kernel_completion_head_, completion_head_, __ATOMIC_RELEASE);
  }
  unsigned completions_max() const noexcept { return completion_mask_ + 1; }
  /** The kernel holds completions that found no room; they come with the next enter(). */
  bool overflowed() const noexcept { return (flags() & IORING_SQ_CQ_OVERFLOW) != 0; }
  /** Whether enter() would bring anything without waiting. */
  bool has_work() const noexcept {
    return unsubmitted() != 0 || !flags_tell_ ||
           (flags() & (IORING_SQ_CQ_OVERFLOW | IORING_SQ_TASKRUN)) != 0;
  }

  /**
   * Hands the new entries over and waits until `completion_count` completions are there.
   * @param timeout_ns below 0: no limit. @return 0 or -errno; -ETIME: the time is over.
   */
  int enter(unsigned completion_count, std::int64_t timeout_ns) noexcept;

  /** Spares each enter() a look-up of the descriptor; for the calling thread. */
  void register_self() noexcept;
  void unregister_self() noexcept;

  int register_buffers(void* memory) noexcept;

 private:
  struct Memory {
    void* address = nullptr;
    std::size_t size = 0;
  };

  unsigned flags() const noexcept {
    const unsigned all = __atomic_load_n(kernel_flags_, __ATOMIC_RELAXED);
    return mutated("T132") ? all & ~IORING_SQ_CQ_OVERFLOW : all;
  }
  int refuse(int error, std::string why);
  int set_up(io_uring_params& parameters);
  int set_up_smaller(io_uring_params& parameters, unsigned flags);
  int check_features(const io_uring_params& parameters);
  int check_opcodes();
  int check_enter() noexcept;
  int map(const io_uring_params& parameters);
  int map_one(Memory& memory, std::size_t size, std::uint64_t offset) noexcept;
  void forget() noexcept;

  Calls& calls_;
  int fd_ = -1;
  int registered_ = -1;
  bool disabled_ = false;
  bool flags_tell_ = false;  // has IORING_SETUP_TASKRUN_FLAG
  std::uint8_t silent_send_flags_ = 0;

  io_uring_sqe* entries_ = nullptr;
  unsigned tail_ = 0;
  unsigned submitted_ = 0;
  unsigned entry_count_ = 0;
  unsigned entry_mask_ = 0;
  unsigned* kernel_tail_ = &nothing_;
  unsigned* kernel_flags_ = &nothing_;

  io_uring_cqe* completions_ = nullptr;
  unsigned completion_head_ = 0;
  unsigned completion_mask_ = 0;
  unsigned* completion_tail_ = &nothing_;
  unsigned* kernel_completion_head_ = nullptr;

  unsigned nothing_ = 0;  // the queues of a ring that is not open

  Memory queues_;
  Memory entry_memory_;
  std::string why_;
  std::vector<std::string> fallbacks_;
};

}  // namespace evix::detail
