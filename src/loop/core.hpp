#pragma once

#include <evix/loop.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/choose.hpp"
#include "backend/contract.hpp"
#include "base/check.hpp"
#include "base/mutation.hpp"
#include "base/saturating.hpp"
#include "base/thread_id.hpp"
#include "base/timer_store.hpp"
#include "base/work.hpp"
#include "loop/handle_record.hpp"
#include "loop/mailbox.hpp"
#include "loop/post_node.hpp"
#include "loop/timer_work.hpp"
#include "sys/static_tls.hpp"

/** @file
 * The loop behind evix::Loop: the turn, its queues, and what handles need from it.
 */
namespace evix::detail {

struct ReceiveFrame;

/** A loop over a driver that the caller brings; the report says "custom". */
Result<Loop> make_loop(const LoopOptions& options, std::unique_ptr<PollDriver> driver);

/** Adds to a counter that only the loop's thread writes and any thread reads. */
inline void add_to(std::atomic<std::uint64_t>& counter, std::uint64_t amount) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}
inline void take_from(std::atomic<std::uint64_t>& counter, std::uint64_t amount) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) - amount, std::memory_order_relaxed);
}

class LoopCore {
 public:
  static constexpr std::int64_t no_limit = -1;

  static Result<LoopCore*> make(const LoopOptions& options, std::unique_ptr<PollDriver> driver);
  LoopCore(const LoopCore&) = delete;
  LoopCore& operator=(const LoopCore&) = delete;

  // ---- Lifetime: by the Loop and by each handle; the memory goes with the last ----
  void acquire() noexcept { ++references_; }
  void release() noexcept;
  /** The Loop is going: everything is cancelled and freed, no user callback runs any more. */
  void shut_down() noexcept;
  bool dead() const noexcept { return dead_ && !mutated("T017"); }
  /** Nothing new may begin: it is dead, or its tasks are being destroyed. */
  bool closing() const noexcept { return closing_; }

  // ---- Threads ----
  /**
   * The innermost loop that the calling thread runs, or null. Read anew each time: a compiler that
   * knows that a record's loop equals it would use the record's pointer instead, and all that
   * follows would wait for the record's cache line.
   */
  static LoopCore* here() noexcept { return *static_cast<LoopCore* volatile*>(&here_); }
  /** Whether the calling thread may use the loop now. */
  bool usable_here() const noexcept {
    const ThreadId runner = running_thread_.load(std::memory_order_relaxed);
    // The thread that ran it may not exist in a forked child, where nothing runs it any more.
    return runner == current_thread() || runner == nullptr || forked();
  }
  void check_usable(const char* what) const noexcept {
    if (!usable_here() && !mutated("T012")) [[unlikely]] {
      fail_check(what);
    }
  }
  /** In a child that has not called after_fork(). */
  bool forked() const noexcept { return fork_generation_ != fork_generation(); }

  // ---- Running ----
  enum class RunMode : std::uint8_t { until_done, once };
  /** @param limit_ns for until_done: of the whole run; for once: of the wait; no_limit: none. */
  int run(RunMode mode, std::int64_t limit_ns);
  const Error& error() const noexcept { return error_; }
  void stop(bool all) noexcept;
  void clear_stop() noexcept;
  /** Whether a thread of this process runs it. */
  bool running() const noexcept {
    const ThreadId runner = running_thread_.load(std::memory_order_relaxed);
    return runner != nullptr && (runner == current_thread() || !forked());
  }
  bool alive() const noexcept;
  Result<void> after_fork();
  Result<void> rebuild();

  // ---- Queues ----
  void post(PostCallback&& task);
  /** A finished work of a record, whose callback runs in the completion phase: see work_taken(). */
  void queue_finished(HandleRecord& record, Work& work) noexcept {
    record.add_queued_work();
    finished_.push(&work);
  }
  /** A task whose wait is over: it goes on in this phase, or in the next one that has the time. */
  void queue_resumed(HandleRecord& record, Work& work) noexcept {
    record.add_queued_work();
    resumed_.push(&work);
  }
  /** True while the queues are thrown away: works free themselves without calling anybody. */
  bool discarding() const noexcept { return dead_; }
  PostNode* make_post_node(PostCallback&& task);
  void recycle(PostNode* node) noexcept;
  Mailbox& mailbox() noexcept { return *mailbox_; }
  /** Makes sure that other threads and signal handlers can end a wait. 0 or -errno. */
  int ensure_wake();

  // ---- Timers ----
  /** Makes room for one more timer, so that no start allocates. Call it before making a timer. */
  void reserve_timer();
  std::size_t other_timers = 0;  ///< that belong to no handle
  /** In `delay_ns` from the next clock reading; restarts a started one. O(1). */
  void start_timer(TimerWork& timer, std::int64_t delay_ns) noexcept;
  /**
   * The frequent case of start_timer(), with the delay that it has: it is placed, and the loop is
   * not calling timers. False: it is not. Few instructions, so that the processor can wait for the
   * records of several timers at once.
   */
  bool restart_timer(TimerWork& timer) noexcept {
    if (timer.position != TimerWork::placed || in_timer_phase_ || fresh_end_ == fresh_limit_) {
      return false;
    }
    append_fresh(timer);
    return true;
  }
  /** At `deadline_ns` of the loop's clock. */
  void start_timer_at(TimerWork& timer, std::int64_t deadline_ns) noexcept;
  void stop_timer(TimerWork& timer) noexcept;
  std::int64_t now_ns() noexcept;
  void update_now() noexcept { set_now(backend_->now()); }

  // ---- Handles ----
  template <class Record>
  Record* make_record(HandleKind kind) {
    auto& store = stores_[static_cast<std::size_t>(kind)];
    if (store == nullptr) store = std::make_unique<TypedHandleStore<Record>>();
    Record* record = static_cast<TypedHandleStore<Record>&>(*store).make(*this);
    acquire();
    add_to(counters_.handles, 1);
    return record;
  }
  void set_active(HandleRecord& record, bool active) noexcept {
    if (record.active == active) return;
    record.active = active;
    if (record.referenced) active ? add_reference() : drop_reference();
  }
  void set_referenced(HandleRecord& record, bool referenced) noexcept {
    if (record.referenced == referenced) return;
    record.referenced = referenced;
    if (record.active) referenced ? add_reference() : drop_reference();
  }
  void add_reference() noexcept { add_to(counters_.handles_active, 1); }
  void drop_reference() noexcept { take_from(counters_.handles_active, 1); }
  /** The handle is gone. */
  void release_record(HandleRecord& record) noexcept;
  /** A queued work of a record has been taken out of its queue. */
  void work_taken(HandleRecord& record) noexcept {
    --record.works_queued;
    if (record.released) [[unlikely]] {
      if (record.works_queued == 0) free_record(record);
    }
  }
  void set_name(HandleRecord& record, std::string_view name);
  std::string_view name(const HandleRecord& record) const noexcept;
  std::vector<HandleInfo> list_handles();
  HandleStore* store(HandleKind kind) noexcept {
    return stores_[static_cast<std::size_t>(kind)].get();
  }

  // ---- The rest ----
  Backend& backend() noexcept { return *backend_; }
  Calls& calls() noexcept { return *calls_; }
  const LoopOptions& options() const noexcept { return options_; }
  const BackendReport& report() const noexcept { return report_; }
  LoopCounters counters() const noexcept;
  void count_send_queue(std::int64_t change) noexcept {
    add_to(counters_.send_queue_bytes, static_cast<std::uint64_t>(change));
  }
  std::uint64_t send_queue_bytes() const noexcept {
    return counters_.send_queue_bytes.load(std::memory_order_relaxed);
  }
  void connection_accepted() noexcept { add_to(counters_.connections, 1); }
  void connection_closed() noexcept { take_from(counters_.connections, 1); }
  /** How many more may be accepted. */
  std::uint64_t connections_left() const noexcept {
    const std::uint64_t most = options_.connections_max;
    if (most == 0) return UINT64_MAX;
    return most - std::min(most, counters_.connections.load(std::memory_order_relaxed));
  }
  /** The listener that took the last place; only to be compared, for it may be gone. */
  const void* last_at_limit() const noexcept { return last_at_limit_; }
  void set_last_at_limit(const void* listener) noexcept { last_at_limit_ = listener; }
  void set_wait_hooks(Callback<void()> before, Callback<void()> after) {
    hooks_replaced_ = true;
    std::swap(before_wait_, before);
    std::swap(after_wait_, after);
  }
  /** Called with the pending bits of caught signals, on the loop's thread. */
  using SignalsHook = void (*)(LoopCore& core, std::uint64_t bits);
  void set_signals_hook(SignalsHook hook) noexcept { signals_hook_ = hook; }
  /** Called when a descriptor of this process was closed by the loop. */
  using DescriptorHook = void (*)(LoopCore& core);
  void set_descriptor_hook(DescriptorHook hook) noexcept { descriptor_hook_ = hook; }
  void descriptor_closed() noexcept {
    if (descriptor_hook_ != nullptr) descriptor_hook_(*this);
  }

  void* user_data = nullptr;
  Loop* loop = nullptr;  ///< that owns this now

  /** What src/io keeps for a whole loop; made by it when first needed. */
  struct Extension {
    virtual ~Extension() = default;
  };
  std::unique_ptr<Extension> io;
  /** The same of src/task. */
  std::unique_ptr<Extension> tasks;
  /** The receive callbacks that are running now, innermost first; of src/io. */
  ReceiveFrame* receive_frame = nullptr;

 private:
  struct Counters {
    std::atomic<std::uint64_t> turns = 0;
    std::atomic<std::uint64_t> waits = 0;
    std::atomic<std::uint64_t> callbacks = 0;
    std::atomic<std::uint64_t> time_asleep_ns = 0;
    std::atomic<std::uint64_t> immediates_queued = 0;
    std::atomic<std::uint64_t> timers_armed = 0;
    std::atomic<std::uint64_t> handles = 0;
    std::atomic<std::uint64_t> handles_active = 0;
    std::atomic<std::uint64_t> send_queue_bytes = 0;
    std::atomic<std::uint64_t> connections = 0;
  };
  /** Enters and leaves run(), also by an exception. */
  class RunScope;

  EVIX_STATIC_TLS static constinit thread_local LoopCore* here_;

  explicit LoopCore(const LoopOptions& options);
  ~LoopCore();

  void forget_parents_run() noexcept;
  void call_hook(Callback<void()>& hook);
  int fail_run(Error error) noexcept;
  int enter_allowed();
  bool operations_in_flight();
  bool take_stop() noexcept;
  /** Also in a child that was forked just now, in a callback: the rest is the parent's to do. */
  bool stopping() const noexcept { return stop_.load(std::memory_order_relaxed) != 0 || forked(); }

  int turn(std::int64_t wait_limit_ns);
  void run_immediates();
  void run_resumed();
  int wait_for_work(std::int64_t limit_ns);
  [[gnu::hot]] void run_completions();
  void run_timers();
  template <class Runnable>  // a Work or a TimerWork
  void dispatch(Runnable* runnable) {
    add_to(counters_.callbacks, 1);
    runnable->run(runnable);
  }

  void take_mail();
  void place_fresh_timers(std::int64_t now) noexcept;
  int wait_in_backend(std::int64_t timeout_ns, bool read_clock);
  int sleep_in_backend(std::int64_t begin_ns, std::int64_t timeout_ns);
  void set_now(std::int64_t now) noexcept {
    now_ns_ = now;
    now_turn_ = counters_.turns.load(std::memory_order_relaxed);
  }
  bool must_look() const noexcept;
  bool have_timers() const noexcept { return !fresh_empty() || !timers_.empty(); }
  bool fresh_empty() const noexcept { return fresh_end_ == fresh_.get(); }
  void append_fresh(TimerWork& timer) noexcept {
    timer.position = static_cast<std::uint32_t>(fresh_end_ - fresh_.get());
    *fresh_end_++ = &timer;
  }
  void remove_fresh(TimerWork& timer) noexcept;
  void close_fresh_gaps() noexcept;
  void free_record(HandleRecord& record) noexcept;
  void discard_tasks() noexcept;
  void discard_queues() noexcept;
  void publish_queue_length() noexcept {
    counters_.immediates_queued.store(immediates_.size(), std::memory_order_relaxed);
  }

  const LoopOptions options_;
  Calls* calls_ = nullptr;
  std::unique_ptr<Calls> own_calls_;
  BufferPool* pool_ = nullptr;
  std::unique_ptr<Backend> backend_;
  BackendReport report_;
  Mailbox* mailbox_ = nullptr;

  WorkQueue immediates_;
  WorkQueue finished_;
  WorkQueue resumed_;
  // Started and not yet placed, in order; null: restarted or stopped since. The last is not null.
  std::unique_ptr<TimerWork*[]> fresh_;
  TimerWork** fresh_end_ = nullptr;
  TimerWork** fresh_limit_ = nullptr;
  PostNode* post_nodes_ = nullptr;
  std::size_t post_node_count_ = 0;

  std::int64_t now_ns_ = 0;
  std::uint64_t now_turn_ = UINT64_MAX;
  Counters counters_;

  std::atomic<int> stop_ = 0;  // 0, stop_one or stop_every
  std::atomic<ThreadId> running_thread_ = nullptr;
  ThreadId owner_ = nullptr;  // thread of the last run
  int depth_ = 0;
  std::uint32_t fork_generation_ = 0;
  bool wake_watched_ = false;
  bool closing_ = false;
  bool dead_ = false;
  bool in_timer_phase_ = false;
  bool hooks_replaced_ = false;
  std::size_t references_ = 1;
  Error error_{{}, "run"};

  Callback<void()> before_wait_;
  Callback<void()> after_wait_;
  SignalsHook signals_hook_ = nullptr;
  DescriptorHook descriptor_hook_ = nullptr;
  const void* last_at_limit_ = nullptr;
  std::array<std::unique_ptr<HandleStore>, 7> stores_;
  std::unordered_map<const HandleRecord*, std::string> names_;

  TimerStore timers_;  // 85 KB: last, so that the rest lies together
};

/** Says at the end of a scope, also by an exception, that a queued work has been dealt with. */
class WorkTaken {
 public:
  explicit WorkTaken(HandleRecord& record) noexcept : record_(record), core_(*record.core) {}
  WorkTaken(const WorkTaken&) = delete;
  WorkTaken& operator=(const WorkTaken&) = delete;
  ~WorkTaken() { core_.work_taken(record_); }

 private:
  HandleRecord& record_;
  LoopCore& core_;
};

}  // namespace evix::detail
