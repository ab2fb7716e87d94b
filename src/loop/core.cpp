#include "loop/core.hpp"

#include <algorithm>
#include <cerrno>

#include "base/mutation.hpp"
#include "poll/driver.hpp"
#include "sys/error.hpp"

namespace evix::detail {
namespace {

constexpr int stop_one = 1;
constexpr int stop_every = 2;

// Post nodes kept for reuse; a burst beyond that goes back to the heap.
constexpr std::size_t post_nodes_max = 1024;

void run_post(Work* work) {
  auto* node = static_cast<PostNode*>(work);
  LoopCore& core = *node->core;
  PostCallback task = std::move(node->task);
  core.recycle(node);
  if (!core.discarding()) task();
}

// With a budget of zero what is queued would stay queued, and no wait would sleep.
LoopOptions usable(LoopOptions options) noexcept {
  options.immediate_budget = std::max(options.immediate_budget, 1U);
  options.completion_budget = std::max(options.completion_budget, 1U);
  return options;
}

}  // namespace

PostNode::PostNode(PostCallback&& posted) noexcept : task(std::move(posted)) { run = run_post; }

constinit thread_local LoopCore* LoopCore::here_ = nullptr;

// ---- Making and ending -----------------------------------------------------------------------

LoopCore::LoopCore(const LoopOptions& options)
    : options_(usable(options)),
      calls_(options.system_calls != nullptr ? options.system_calls : &Calls::kernel()),
      pool_(BufferPool::make(std::clamp<std::size_t>(options.buffer_size, 1, transfer_size_max))),
      fork_generation_(fork_generation()) {}

LoopCore::~LoopCore() {
  if (mailbox_ != nullptr) {
    if (!mailbox_->closed()) (void)mailbox_->close();  // making the loop has failed
    mailbox_->release();
  }
  while (post_nodes_ != nullptr) {
    PostNode* node = post_nodes_;
    post_nodes_ = static_cast<PostNode*>(node->next);
    delete node;
  }
  backend_.reset();
  pool_->abandon();
}

Result<LoopCore*> LoopCore::make(const LoopOptions& options, std::unique_ptr<PollDriver> driver) {
  struct Release {
    void operator()(LoopCore* core) const noexcept { core->release(); }
  };
  std::unique_ptr<LoopCore, Release> core(new LoopCore(options));
  if (driver != nullptr) {
    core->report_.chosen = BackendKind::custom;
    core->report_.decided_by = "the program's own";
    core->report_.choices.push_back({BackendKind::custom, true, true, "the program's own"});
    core->backend_ = make_readiness_backend(std::move(driver), *core->calls_, *core->pool_);
  } else {
    auto chosen = choose_backend({options.backend, options.sim_seed}, *core->calls_, *core->pool_);
    if (!chosen) return std::unexpected(chosen.error());
    core->report_ = std::move(chosen->report);
    core->own_calls_ = std::move(chosen->own_calls);
    core->backend_ = std::move(chosen->backend);
    if (core->own_calls_ != nullptr) core->calls_ = core->own_calls_.get();
  }
  core->mailbox_ = new Mailbox(*core->calls_);
  // Now, when running out of descriptors is an error of making the loop, not of its first wait. The
  // simulator's loops are many and rarely use it; a program's own backend is not called before run.
  const BackendKind kind = core->report_.chosen;
  if (kind != BackendKind::sim && kind != BackendKind::custom) {
    if (const int error = core->ensure_wake(); error < 0) return failure(-error, "wake");
  }
  return core.release();
}

void LoopCore::release() noexcept {
  if (--references_ == 0) delete this;
}

void LoopCore::shut_down() noexcept {
  check_usable("a loop was destroyed while another thread runs it");
  forget_parents_run();
  check(depth_ == 0, "a loop was destroyed inside one of its callbacks");
  acquire();
  closing_ = true;
  discard_tasks();
  const auto shut = [](HandleRecord& record, void* context) {
    auto& core = *static_cast<LoopCore*>(context);
    core.set_active(record, false);
    core.stores_[static_cast<std::size_t>(record.kind)]->shut(record);
  };
  for (auto& store : stores_) {
    if (store != nullptr && !mutated("T026")) store->for_each(shut, this);
  }
  dead_ = true;
  discard_queues();
  if (mutated("T028")) (void)calls_->event_create();
  before_wait_.reset();
  after_wait_.reset();
  names_.clear();
  backend_.reset();
  release();  // the caller's own release follows
}

// Before the handles: a task's frame may own some, and its destructors may use them.
void LoopCore::discard_tasks() noexcept {
  const auto discard = [](HandleRecord& record, void* context) {
    if (!record.released) static_cast<LoopCore*>(context)->release_record(record);
  };
  if (HandleStore* records = store(HandleKind::task)) records->for_each(discard, this);
}

void LoopCore::discard_queues() noexcept {
  Work* posted = mailbox_->close();
  while (posted != nullptr) {
    Work* work = posted;
    posted = work->next;
    immediates_.push(work);
    if (work->run == run_post) static_cast<PostNode*>(work)->core = this;
  }
  while (Work* work = immediates_.pop()) dispatch(work);
  while (Work* work = finished_.pop()) dispatch(work);
  while (Work* work = resumed_.pop()) dispatch(work);
}

// Another thread of the parent was running the loop when this one forked: it does not exist here.
void LoopCore::forget_parents_run() noexcept {
  const ThreadId runner = running_thread_.load(std::memory_order_relaxed);
  if (!forked() || runner == nullptr || runner == current_thread()) return;
  running_thread_.store(nullptr, std::memory_order_relaxed);
  pool_->set_owner(nullptr);
  depth_ = 0;
}

Result<void> LoopCore::after_fork() {
  check_usable("after_fork() from a thread that does not run the loop");
  if (!forked()) return {};
  forget_parents_run();
  owner_ = nullptr;
  if (const int error = mailbox_->after_fork(); error < 0) return failure(-error, "after fork");
  if (const int error = backend_->after_fork(); error < 0) return failure(-error, "after fork");
  if (wake_watched_) {
    wake_watched_ = false;
    if (const int error = ensure_wake(); error < 0) return failure(-error, "after fork");
  }
  // Last: what has failed is to be done again, and until then the kernel's objects are the
  // parent's.
  fork_generation_ = fork_generation();
  return {};
}

Result<void> LoopCore::rebuild() {
  check_usable("rebuild() from a thread that does not run the loop");
  if (forked()) return failure(Errc::forked, "rebuild");
  if (const int error = backend_->rebuild(); error < 0) return failure(-error, "rebuild");
  return {};
}

// ---- Running ---------------------------------------------------------------------------------

class LoopCore::RunScope {
 public:
  explicit RunScope(LoopCore& core) noexcept : core_(core) {
    if (core_.depth_++ == 0) core_.pool_->set_owner(current_thread());
  }
  ~RunScope() {
    // A stop() before the exception has been obeyed: the next run() is another one.
    if (std::uncaught_exceptions() > exceptions_) core_.take_stop();
    here_ = outer_;
    if (--core_.depth_ != 0) return;
    core_.backend_->end_run();
    core_.pool_->set_owner(nullptr);
    core_.running_thread_.store(nullptr, std::memory_order_release);
  }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  LoopCore& core_;
  LoopCore* const outer_ = std::exchange(here_, &core_);
  const int exceptions_ = std::uncaught_exceptions();
};

int LoopCore::fail_run(Error error) noexcept {
  error_ = error;
  return error.code().value();
}

bool LoopCore::operations_in_flight() {
  bool found = false;
  const auto look = [](HandleRecord& record, void* context) {
    if (record.active) *static_cast<bool*>(context) = true;
  };
  for (const HandleKind kind : {HandleKind::watcher, HandleKind::listener, HandleKind::stream}) {
    if (HandleStore* records = store(kind)) records->for_each(look, &found);
  }
  return found;
}

// Takes the loop for this thread, or says why not. 0: taken.
int LoopCore::enter_allowed() {
  if (forked()) return fail_run(make_error(Errc::forked, "run"));
  const ThreadId here = current_thread();
  ThreadId runner = nullptr;
  if (!running_thread_.compare_exchange_strong(runner, here, std::memory_order_acquire) &&
      runner != here) {
    return static_cast<int>(Errc::wrong_thread);  // error_ belongs to the running thread
  }
  if (depth_ == 0) {
    if (owner_ != nullptr && owner_ != here && operations_in_flight()) {
      const int refused = fail_run(make_error(Errc::wrong_thread, "run"));
      running_thread_.store(nullptr, std::memory_order_release);
      return refused;
    }
    owner_ = here;
  }
  return 0;
}

int LoopCore::run(RunMode mode, std::int64_t limit_ns) {
  if (const int refused = enter_allowed(); refused != 0) return refused;
  const RunScope scope(*this);
  if (mutated("T020")) clear_stop();
  if (take_stop()) return 0;
  if (mode == RunMode::once) {
    const int failed = turn(limit_ns);
    if (!forked()) take_stop();
    return failed;
  }
  const bool limited = limit_ns >= 0;
  const std::int64_t end = limited ? add_saturating(backend_->now(), limit_ns) : never_ns;
  while (alive()) {
    std::int64_t wait_limit_ns = no_limit;
    if (limited) {
      const std::int64_t left_ns = subtract_saturating(end, backend_->now());
      if (left_ns <= 0) break;
      wait_limit_ns = left_ns;
    }
    if (const int failed = turn(wait_limit_ns); failed != 0) return failed;
    if (take_stop()) break;
  }
  return 0;
}

void LoopCore::stop(bool all) noexcept {
  int before = stop_.load(std::memory_order_relaxed);
  const int wanted = all ? stop_every : stop_one;
  while (before < wanted && !stop_.compare_exchange_weak(before, wanted)) {
  }
  if (mutated("T023")) return;
  // Also on the loop's own thread: a signal handler may have come between the last look at stop_
  // and the wait.
  mailbox_->interrupt();
}

void LoopCore::clear_stop() noexcept { stop_.store(0, std::memory_order_relaxed); }

// Whether this run has to end. stop() ends one run, stop_all() stays until the outermost.
bool LoopCore::take_stop() noexcept {
  int wanted = stop_.load(std::memory_order_acquire);
  if (wanted == 0) return false;
  // A stop_all() that comes meanwhile must not be taken for this one.
  while ((wanted == stop_one || depth_ == 1) && !stop_.compare_exchange_weak(wanted, 0)) {
  }
  return true;
}

bool LoopCore::alive() const noexcept {
  const bool kept = counters_.handles_active.load(std::memory_order_relaxed) != 0;
  return (kept && !mutated("T114")) || must_look() || backend_->is_busy();
}

// Something is queued already, so the wait only looks.
bool LoopCore::must_look() const noexcept {
  return !immediates_.empty() || !finished_.empty() || !resumed_.empty() || mailbox_->has_work();
}

// ---- The turn --------------------------------------------------------------------------------

int LoopCore::turn(std::int64_t wait_limit_ns) {
  add_to(counters_.turns, 1);
  run_immediates();
  if (forked()) return fail_run(make_error(Errc::forked, "run"));
  if (stopping()) return 0;
  if (mutated("T088")) {
    place_fresh_timers(backend_->now());
    update_now();
    run_timers();
  }
  if (const int failed = wait_for_work(wait_limit_ns); failed != 0) return failed;
  run_completions();
  run_timers();
  return forked() ? fail_run(make_error(Errc::forked, "run")) : 0;
}

void LoopCore::run_immediates() {
  take_mail();
  std::size_t left = immediates_.size() + options_.immediate_budget;
  if (mutated("T096")) left = SIZE_MAX;
  while (left-- > 0 && !stopping()) {
    Work* work = immediates_.pop();
    if (work == nullptr) break;
    dispatch(work);
  }
  publish_queue_length();
}

// A hook may set another hook.
void LoopCore::call_hook(Callback<void()>& hook) {
  if (!hook) return;
  struct Restore {
    Callback<void()>& hook;
    Callback<void()> running;
    ~Restore() {
      if (!hook && !replaced) hook = std::move(running);
    }
    bool& replaced;
  } restore{hook, std::move(hook), hooks_replaced_};
  hooks_replaced_ = false;
  restore.running();
}

int LoopCore::wait_for_work(std::int64_t limit_ns) {
  call_hook(before_wait_);  // it may post, stop, or start what the wait has to know
  if (forked()) return fail_run(make_error(Errc::forked, "run"));
  const bool timers_before = have_timers();
  std::int64_t timeout_ns = limit_ns;
  if (timers_before) {
    const std::int64_t now = backend_->now();
    place_fresh_timers(now);
    set_now(now);
    const std::int64_t left_ns = subtract_saturating(timers_.next_deadline_ns(), now);
    const bool sooner = limit_ns < 0 || left_ns < limit_ns;
    if (timers_.next_deadline_ns() != never_ns && sooner) timeout_ns = left_ns < 0 ? 0 : left_ns;
  }
  if (must_look() || stopping() || backend_->has_leftovers() || !alive()) timeout_ns = 0;
  const int failed = wait_in_backend(timeout_ns, timers_before);
  call_hook(after_wait_);
  return failed;
}

int LoopCore::wait_in_backend(std::int64_t timeout_ns, bool read_clock) {
  add_to(counters_.waits, 1);
  bool sleeps = timeout_ns != 0;
  if (sleeps) {
    // A program's own backend gets the wake descriptor only when somebody could use it.
    if (!wake_watched_ && (backend_->kind() != BackendKind::custom || !single_threaded())) {
      if (const int error = ensure_wake(); error < 0) return fail_run(make_error(-error, "wake"));
    }
    sleeps = mailbox_->fall_asleep();
    // A stop() that comes now: either it sees that the loop is falling asleep, or this sees it.
    if (sleeps && stop_.load(std::memory_order_seq_cst) != 0) {
      mailbox_->wake_up();
      sleeps = false;
    }
  }
  int error = 0;
  if (!sleeps) {
    error = backend_->wait(0);
    if (read_clock) update_now();
  } else {
    const std::int64_t before = read_clock ? now_ns_ : backend_->now();
    error = sleep_in_backend(before, timeout_ns);
    mailbox_->wake_up();
    if (!mutated("T091")) update_now();
    add_to(counters_.time_asleep_ns, static_cast<std::uint64_t>(now_ns_ - before));
  }
  return error < 0 && error != -EINTR ? fail_run(make_error(-error, "wait")) : 0;
}

// A signal that means nothing to this loop does not end its wait: what a handler has for it is in
// the mailbox, and the event is written then. A program's own backend may say EINTR for ever.
int LoopCore::sleep_in_backend(std::int64_t begin_ns, std::int64_t timeout_ns) {
  std::int64_t left_ns = timeout_ns;
  for (;;) {
    const int error = backend_->wait(left_ns);
    if (error != -EINTR || backend_->kind() == BackendKind::custom || forked()) return error;
    if (timeout_ns < 0) continue;
    const std::int64_t slept_ns = subtract_saturating(backend_->now(), begin_ns);
    left_ns = subtract_saturating(timeout_ns, slept_ns);
    if (left_ns <= 0) return 0;
  }
}

void LoopCore::run_completions() {
  if (const std::uint64_t signals = mailbox_->take_signals(); signals != 0) {
    if (signals_hook_ != nullptr) signals_hook_(*this, signals);
  }
  for (std::size_t left = finished_.size(); left > 0 && !stopping(); --left) {
    Work* work = finished_.pop();
    if (work == nullptr) break;
    dispatch(work);
  }
  for (std::uint32_t left = options_.completion_budget; left > 0 && !stopping(); --left) {
    Op* op = backend_->next();
    if (op == nullptr) break;
    dispatch(op);
  }
  run_resumed();
}

// Tasks that others have resumed, those too that are resumed meanwhile: from one to the next no
// call to the kernel is needed. The budget is that of immediates, for the same reason.
void LoopCore::run_resumed() {
  for (std::uint32_t left = options_.immediate_budget; left > 0 && !stopping(); --left) {
    Work* work = resumed_.pop();
    if (work == nullptr) break;
    dispatch(work);
  }
}

void LoopCore::run_timers() {
  if (timers_.empty()) return;
  struct Phase {
    bool& in_phase;
    bool before = std::exchange(in_phase, true);
    ~Phase() { in_phase = before; }
  } const phase{in_timer_phase_};
  timers_.begin_pass(now_ns());
  while (!stopping()) {
    TimerNode* node = timers_.pop_due();
    if (mutated("T082") && node == nullptr && !fresh_empty()) {
      place_fresh_timers(now_ns());
      timers_.begin_pass(now_ns());
      node = timers_.pop_due();
    }
    if (node == nullptr) break;
    auto* timer = static_cast<TimerWork*>(node);
    // Restarted since it was placed: it waits in the fresh list, with its new delay.
    if (timer->fresh() && !mutated("T095")) continue;
    timer->position = TimerWork::idle;
    take_from(counters_.timers_armed, 1);
    dispatch(timer);
  }
  run_resumed();
}

// ---- Mail ------------------------------------------------------------------------------------

void LoopCore::take_mail() {
  if (!mailbox_->has_work()) return;
  Work* work = mailbox_->take();
  while (work != nullptr) {
    Work* next = work->next;
    if (work->run == run_post) static_cast<PostNode*>(work)->core = this;
    immediates_.push(work);
    work = next;
  }
}

PostNode* LoopCore::make_post_node(PostCallback&& task) {
  PostNode* node = post_nodes_;
  if (node == nullptr) return new PostNode(std::move(task));
  post_nodes_ = static_cast<PostNode*>(node->next);
  --post_node_count_;
  node->task = std::move(task);
  return node;
}

void LoopCore::recycle(PostNode* node) noexcept {
  if (post_node_count_ >= post_nodes_max) {
    delete node;
    return;
  }
  node->next = post_nodes_;
  post_nodes_ = node;
  ++post_node_count_;
}

void LoopCore::post(PostCallback&& task) {
  check(static_cast<bool>(task), "an empty callback was posted");
  if (running_thread_.load(std::memory_order_relaxed) == current_thread()) {
    take_mail();  // of a Poster: it was posted before
    PostNode* node = make_post_node(std::move(task));
    node->core = this;
    immediates_.push(node);
    publish_queue_length();
    return;
  }
  if (mutated("T024") && !running()) return;
  auto* node = new PostNode(std::move(task));
  if (!mailbox_->push(node)) delete node;
}

int LoopCore::ensure_wake() {
  if (wake_watched_) return 0;
  if (const int error = mailbox_->open_event(); error < 0) return error;
  if (const int error = backend_->watch_wake(mailbox_->event()); error < 0) return error;
  wake_watched_ = true;
  if (mutated("T029")) add_reference();
  return 0;
}

// ---- Timers ----------------------------------------------------------------------------------

void LoopCore::reserve_timer() {
  // A stream has up to four: connect, receive, send, close.
  std::size_t timers = 1 + other_timers;
  for (const auto& [kind, each] : {std::pair<HandleKind, std::size_t>{HandleKind::timer, 1},
                                   {HandleKind::listener, 1},
                                   {HandleKind::stream, 4}}) {
    if (const HandleStore* records = store(kind)) timers += each * records->size();
  }
  // Twice as many, so that at least half of a full list is gaps (close_fresh_gaps).
  if (2 * timers <= static_cast<std::size_t>(fresh_limit_ - fresh_.get())) return;
  const std::size_t room = 4 * timers;
  auto larger = std::make_unique_for_overwrite<TimerWork*[]>(room);
  fresh_end_ = std::copy(fresh_.get(), fresh_end_, larger.get());
  fresh_limit_ = larger.get() + room;
  fresh_ = std::move(larger);
}

void LoopCore::start_timer(TimerWork& timer, std::int64_t delay_ns) noexcept {
  timer.delay_ns = delay_ns < 0 ? 0 : delay_ns;
  if (timer.fresh()) {
    if (fresh_end_[-1] == &timer) return;
    fresh_[timer.position] = nullptr;
  } else if (!timer.armed()) {
    add_to(counters_.timers_armed, 1);
  }
  // A placed timer stays in the store until its new deadline is known, which makes moving it one
  // step there; only a pass in progress must not run it any more.
  if (in_timer_phase_ && !mutated("T095")) timers_.stop(timer);
  if (fresh_end_ == fresh_limit_) close_fresh_gaps();
  append_fresh(timer);
}

void LoopCore::start_timer_at(TimerWork& timer, std::int64_t deadline_ns) noexcept {
  if (!timer.armed()) add_to(counters_.timers_armed, 1);
  remove_fresh(timer);
  if (mutated("T092")) deadline_ns -= counters_.timers_armed % 2 == 0 ? 1 : 0;
  timer.position = TimerWork::placed;
  timers_.start(timer, deadline_ns);
}

void LoopCore::stop_timer(TimerWork& timer) noexcept {
  if (!timer.armed()) return;
  remove_fresh(timer);
  timer.position = TimerWork::idle;
  timers_.stop(timer);
  take_from(counters_.timers_armed, 1);
}

void LoopCore::remove_fresh(TimerWork& timer) noexcept {
  if (!timer.fresh()) return;
  fresh_[timer.position] = nullptr;
  while (!fresh_empty() && fresh_end_[-1] == nullptr) --fresh_end_;
}

// The list is full. Each timer is in it once and there is room for twice as many, so at least half
// of it is gaps: a start pays for two steps of this.
void LoopCore::close_fresh_gaps() noexcept {
  TimerWork** const end = std::exchange(fresh_end_, fresh_.get());
  for (TimerWork** each = fresh_.get(); each != end; ++each) {
    if (*each != nullptr) append_fresh(**each);
  }
}

void LoopCore::place_fresh_timers(std::int64_t now) noexcept {
  if (timers_.empty()) {
    // Tells the store where time stands; it would sort the first timers twice else.
    timers_.begin_pass(now);
    timers_.pop_due();
  }
  for (TimerWork** each = fresh_.get(); each != fresh_end_; ++each) {
    TimerWork* const timer = *each;
    if (timer == nullptr) continue;
    timer->position = TimerWork::placed;
    if (mutated("T086")) timer->delay_ns = static_cast<std::int32_t>(timer->delay_ns / 1'000'000);
    timers_.start(*timer, add_saturating(mutated("T083") ? now_ns_ : now, timer->delay_ns));
  }
  fresh_end_ = fresh_.get();
}

std::int64_t LoopCore::now_ns() noexcept {
  if (now_turn_ != counters_.turns.load(std::memory_order_relaxed)) update_now();
  return now_ns_;
}

// ---- Handles ---------------------------------------------------------------------------------

void LoopCore::release_record(HandleRecord& record) noexcept {
  check_usable("a handle was destroyed by a thread that does not run its loop");
  record.released = true;
  if (!dead_) {
    stores_[static_cast<std::size_t>(record.kind)]->shut(record);
    set_active(record, false);
  }
  if (record.works_queued == 0) free_record(record);
}

void LoopCore::free_record(HandleRecord& record) noexcept {
  if (record.named) names_.erase(&record);
  stores_[static_cast<std::size_t>(record.kind)]->free(record);
  take_from(counters_.handles, 1);
  release();
}

void LoopCore::set_name(HandleRecord& record, std::string_view name) {
  if (dead_) return;
  if (name.empty()) {
    names_.erase(&record);
  } else {
    names_.insert_or_assign(&record, std::string(name));
  }
  record.named = !name.empty();
}

std::string_view LoopCore::name(const HandleRecord& record) const noexcept {
  const auto found = names_.find(&record);
  return found == names_.end() ? std::string_view{} : std::string_view(found->second);
}

std::vector<HandleInfo> LoopCore::list_handles() {
  struct Context {
    LoopCore& core;
    std::vector<HandleInfo> infos;
  } context{*this, {}};
  const auto list = [](HandleRecord& record, void* pointer) {
    if (record.released) return;
    auto& [core, infos] = *static_cast<Context*>(pointer);
    HandleInfo info{record.kind,
                    record.active,
                    record.referenced,
                    std::string(core.name(record)),
                    record.location,
                    no_handle,
                    {}};
    core.stores_[static_cast<std::size_t>(record.kind)]->describe(record, info);
    infos.push_back(std::move(info));
  };
  for (auto& records : stores_) {
    if (records != nullptr) records->for_each(list, &context);
  }
  return std::move(context.infos);
}

LoopCounters LoopCore::counters() const noexcept {
  const auto read = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  return {read(counters_.turns),
          read(counters_.waits),
          read(counters_.callbacks),
          read(counters_.time_asleep_ns),
          read(counters_.immediates_queued),
          read(counters_.timers_armed),
          read(counters_.handles),
          read(counters_.handles_active),
          read(counters_.send_queue_bytes),
          read(counters_.connections)};
}

}  // namespace evix::detail
