#include <cerrno>
#include <mutex>
#include <string>

#include "capi/backends.hpp"
#include "capi/call.hpp"
#include "capi/convert.hpp"
#include "capi/custom_driver.hpp"
#include "capi/loop_life.hpp"
#include "sys/process.hpp"

namespace evix::detail::capi {
namespace {

// Loop states are reused and never freed: see LoopState.
std::mutex states_mutex;  // guards the two lists
LoopState* unused_states = nullptr;
LoopState* made_states = nullptr;

LoopState& take_state() {
  const std::scoped_lock lock(states_mutex);
  LoopState* state = unused_states;
  if (state != nullptr) {
    unused_states = state->next_unused;
    return *state;
  }
  state = new LoopState;
  state->next_made = made_states;
  return *(made_states = state);
}

/** In the child of a fork: the threads that ran loops exist in the parent only. */
void forget_runners() noexcept {
  for (LoopState* state = made_states; state != nullptr; state = state->next_made) {
    if (state->runner.load(std::memory_order_relaxed) == current_thread()) continue;
    state->in_backend = state->in_hook = state->in_callback = false;
    state->runner.store(nullptr, std::memory_order_relaxed);
  }
}

// As in registry.cpp.
[[maybe_unused]] const int states_fork_handlers =
    around_forks([] { states_mutex.lock(); }, [] { states_mutex.unlock(); },
                 [] {
                   forget_runners();
                   states_mutex.unlock();
                 });

/** From the first half-made state to the last half-destroyed one. */
void give_back_state(LoopState& state) noexcept {
  if (state.entry != nullptr) {
    retract(*state.entry, state.id);
    wait_for_pins(*state.entry);
    state.entries.free(*state.entry);
    state.entry = nullptr;
  }
  state.entries.give_back();
  state.id = 0;
  state.data = state.backend_data = state.hook_data = nullptr;
  state.before_wait = state.after_wait = nullptr;
  state.keep_alive_count = 0;
  state.phase.store(LoopState::Phase::unused, std::memory_order_relaxed);
  state.runner.store(nullptr, std::memory_order_release);
  const std::scoped_lock lock(states_mutex);
  state.next_unused = unused_states;
  unused_states = &state;
}

struct GiveBack {
  void operator()(LoopState* state) const noexcept { give_back_state(*state); }
};

/** The driver over a program's own backend, after its init; null: see `code`. */
std::unique_ptr<CustomDriver> start_backend(const evix_backend_t& backend, LoopState& state,
                                            const char* function, int& code) {
  code = 0;
  if (backend.poll == nullptr || backend.io_add == nullptr || backend.io_del == nullptr) {
    code = fail_errno(EINVAL, function, "poll, io_add or io_del is NULL");
    return nullptr;
  }
  // Made first: after a successful init nothing may fail without destroy being called.
  auto driver = std::make_unique<CustomDriver>(backend, state);
  if (const int error = driver->init(); error != 0) {
    code = fail_errno(-error, function, "init of the backend");
    return nullptr;
  }
  return driver;
}

Result<Loop> make_cxx_loop(const evix_loop_options_t& options, LoopState& state,
                           const char* function, int& code) {
  LoopOptions wanted;
  if (options.sim_seed != 0) wanted.sim_seed = options.sim_seed;
  if (options.immediate_budget != 0) wanted.immediate_budget = options.immediate_budget;
  if (options.completion_budget != 0) wanted.completion_budget = options.completion_budget;
  if (options.buffer_size_bytes != 0) wanted.buffer_size = options.buffer_size_bytes;
  if (options.send_queue_bytes_max != 0) {
    wanted.send_queue_bytes_max = options.send_queue_bytes_max;
  }
  if (options.connections_max != 0) wanted.connections_max = options.connections_max;
  code = 0;
  if (options.backend == nullptr) return Loop::create(wanted);
  wanted.backend = builtin_kind(options.backend);
  if (wanted.backend != BackendKind::custom) return Loop::create(wanted);
  auto driver = start_backend(*options.backend, state, function, code);
  if (driver == nullptr) return Failure(Error({-code, evix_category()}, function));
  return make_loop(wanted, std::move(driver));
}

/** One of the run functions: this thread runs the loop until `body` returns. */
class Running {
 public:
  explicit Running(LoopState& state) noexcept : state_(state) {
    ThreadId nobody = nullptr;
    outermost_ =
        state.runner.compare_exchange_strong(nobody, current_thread(), std::memory_order_acq_rel);
    allowed_ = outermost_ || nobody == current_thread();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    if (outermost_) state_.runner.store(nullptr, std::memory_order_release);
  }
  bool allowed() const noexcept { return allowed_; }
  bool outermost() const noexcept { return outermost_; }

 private:
  LoopState& state_;
  bool outermost_ = false;
  bool allowed_ = false;
};

template <class Body>
int run_loop(evix_loop_t* loop, const char* function, Body body) noexcept {
  return with_loop(loop, function, [&](LoopState& state) -> int {
    if (state.in_hook) return fail(Errc::busy, function, "inside a wait hook");
    const Running running(state);
    if (!running.allowed()) return fail(Errc::wrong_thread, function);
    if (body(*state.loop, running.outermost()) == 0) return 0;
    return fail(state.loop->error());
  });
}

void call_hook(LoopState& state, evix_callback_fn hook) {
  if (hook == nullptr) return;
  struct InHook {
    LoopState& state;
    ~InHook() { state.in_hook = false; }
  } const scope{state};
  state.in_hook = true;
  hook(state.hook_data);
}

int post(LoopState& state, evix_callback_fn callback, void* data) {
  state.loop->post([callback, data] { callback(data); });
  return 0;
}

int add_task(evix_loop_t* loop, evix_callback_fn callback, void* data,
             const char* function) noexcept {
  if (callback == nullptr) return fail_errno(EINVAL, function, "no callback");
  return with_shared_loop(loop, function,
                          [&](LoopState& state) { return post(state, callback, data); });
}

}  // namespace

LoopState* create_loop(const evix_loop_options_t& options, const char* function) {
  std::unique_ptr<LoopState, GiveBack> state(&take_state());
  // Before it is published: until it lives, it is this thread's alone.
  state->runner.store(current_thread(), std::memory_order_relaxed);
  state->phase.store(LoopState::Phase::creating, std::memory_order_relaxed);
  state->entry = &state->entries.take();
  state->id = publish(*state->entry, Kind::loop, nullptr, state.get());
  int code = 0;
  auto made = make_cxx_loop(options, *state, function, code);
  if (!made) {
    if (code == 0) fail(made.error());
    return nullptr;
  }
  state->loop.emplace(std::move(*made));
  state->phase.store(LoopState::Phase::live, std::memory_order_seq_cst);
  state->runner.store(nullptr, std::memory_order_release);
  return state.release();
}

int destroy_loop(LoopState& state, const char* function) noexcept {
  if (state.loop->running() || state.in_callback) {
    return fail(Errc::busy, function, "inside a callback");
  }
  state.runner.store(current_thread(), std::memory_order_relaxed);
  state.phase.store(LoopState::Phase::destroying, std::memory_order_seq_cst);
  wait_for_pins(*state.entry);
  for (HandleState* handle = state.handles; handle != nullptr; handle = handle->next) {
    retract_handle(*handle);
  }
  state.keep_alive = KeepAlive();
  // First the loop, so that ending the handles reports to nobody; they may outlive it.
  state.loop.reset();
  delete_handles(state);
  give_back_state(state);
  return 0;
}

int run_until_stopped(LoopState& state, const char* function) noexcept {
  return run_loop(state.pointer(), function, [](Loop& loop, bool) { return loop.run(); });
}

}  // namespace evix::detail::capi

using namespace evix::detail::capi;
using evix::Loop;

extern "C" {

evix_loop_t* evix_loop_create(evix_backend_t* backend) {
  evix_loop_options_t options{};
  options.size = sizeof options;
  options.backend = backend;
  return evix_loop_create_ex(&options);
}

evix_loop_t* evix_loop_create_ex(const evix_loop_options_t* options) {
  return guarded(__func__, [&]() -> evix_loop_t* {
    evix_loop_options_t known;
    if (!read_options(options, known)) {
      fail_errno(EINVAL, "evix_loop_create_ex", "size of the options");
      return nullptr;
    }
    LoopState* state = create_loop(known, "evix_loop_create");
    return state != nullptr ? state->pointer() : nullptr;
  });
}

int evix_loop_destroy(evix_loop_t* loop) {
  const char* function = __func__;
  return with_loop(loop, function, [&](LoopState& state) { return destroy_loop(state, function); });
}

int evix_loop_run(evix_loop_t* loop) {
  return run_loop(loop, __func__, [](Loop& cxx, bool outermost) {
    if (outermost) cxx.clear_stop();
    return cxx.run();
  });
}

int evix_loop_run_once(evix_loop_t* loop, int64_t timeout_ns) {
  return run_loop(loop, __func__,
                  [&](Loop& cxx, bool) { return cxx.run_once(to_timeout(timeout_ns)); });
}

int evix_loop_run_ready(evix_loop_t* loop) {
  return run_loop(loop, __func__, [](Loop& cxx, bool) { return cxx.run_ready(); });
}

int evix_loop_run_for(evix_loop_t* loop, uint64_t duration_ns) {
  return run_loop(loop, __func__,
                  [&](Loop& cxx, bool) { return cxx.run_for(to_duration(duration_ns)); });
}

int evix_loop_stop(evix_loop_t* loop) {
  return with_shared_loop(loop, __func__, [](LoopState& state) {
    state.loop->stop();
    return 0;
  });
}

int evix_loop_stop_all(evix_loop_t* loop) {
  return with_shared_loop(loop, __func__, [](LoopState& state) {
    state.loop->stop_all();
    return 0;
  });
}

int evix_loop_running(evix_loop_t* loop) {
  return with_loop(loop, __func__, [](LoopState& state) { return state.loop->running() ? 1 : 0; });
}

int evix_loop_alive(evix_loop_t* loop) {
  return with_loop(loop, __func__, [](LoopState& state) { return state.loop->alive() ? 1 : 0; });
}

int evix_loop_add_callback(evix_loop_t* loop, evix_callback_fn callback, void* data) {
  return add_task(loop, callback, data, __func__);
}

int evix_loop_post(evix_loop_t* loop, evix_callback_fn callback, void* data) {
  return add_task(loop, callback, data, __func__);
}

int evix_loop_wake(evix_loop_t* loop) {
  return with_shared_loop(loop, __func__, [](LoopState& state) {
    state.loop->wake();
    return 0;
  });
}

int evix_loop_ref(evix_loop_t* loop) {
  return with_loop(loop, __func__, [](LoopState& state) {
    if (state.keep_alive_count++ == 0) state.keep_alive = state.loop->keep_alive();
    return 0;
  });
}

int evix_loop_unref(evix_loop_t* loop) {
  const char* function = __func__;
  return with_loop(loop, function, [&](LoopState& state) {
    if (state.keep_alive_count == 0) return fail_errno(EINVAL, function, "no evix_loop_ref");
    if (--state.keep_alive_count == 0) state.keep_alive = evix::KeepAlive();
    return 0;
  });
}

uint64_t evix_loop_now_ns(evix_loop_t* loop) {
  return with_loop(loop, __func__, [](LoopState& state) {
    return static_cast<uint64_t>(state.loop->now().time_since_epoch().count());
  });
}

int evix_loop_update_now(evix_loop_t* loop) {
  return with_loop(loop, __func__, [](LoopState& state) {
    state.loop->update_now();
    return 0;
  });
}

const char* evix_loop_backend_name(evix_loop_t* loop) {
  return with_loop(loop, __func__, [](LoopState& state) {
    return evix::to_string(state.loop->backend()).data();  // views of literals
  });
}

int evix_loop_backend_report(evix_loop_t* loop, char* text, size_t size) {
  return with_loop(loop, __func__, [&](LoopState& state) {
    const evix::BackendReport& report = state.loop->backend_report();
    std::string lines = "decided by: " + report.decided_by + "\n";
    for (const evix::BackendChoice& choice : report.choices) {
      lines += choice.chosen ? "* " : choice.available ? "+ " : "- ";
      lines += std::string(evix::to_string(choice.kind)) + ": " + choice.reason + "\n";
    }
    for (const std::string& fallback : report.fallbacks) lines += "fallback: " + fallback + "\n";
    return write_text(lines, text, size);
  });
}

int evix_loop_set_data(evix_loop_t* loop, void* data) {
  return with_loop(loop, __func__, [&](LoopState& state) {
    state.data = data;
    return 0;
  });
}

void* evix_loop_data(evix_loop_t* loop) {
  return with_loop(loop, __func__, [](LoopState& state) { return state.data; });
}

int evix_loop_set_wait_hooks(evix_loop_t* loop, evix_callback_fn before, evix_callback_fn after,
                             void* data) {
  return with_loop(loop, __func__, [&](LoopState& state) {
    LoopState* self = &state;
    evix::Callback<void()> call_before;
    evix::Callback<void()> call_after;
    if (before != nullptr) call_before = [self] { call_hook(*self, self->before_wait); };
    if (after != nullptr) call_after = [self] { call_hook(*self, self->after_wait); };
    state.before_wait = before;
    state.after_wait = after;
    state.hook_data = data;
    state.loop->set_wait_hooks(std::move(call_before), std::move(call_after));
    return 0;
  });
}

int evix_loop_after_fork(evix_loop_t* loop) {
  return with_loop(loop, __func__,
                   [](LoopState& state) { return code_of(state.loop->after_fork()); });
}

int evix_loop_rebuild(evix_loop_t* loop) {
  return with_loop(loop, __func__, [](LoopState& state) { return code_of(state.loop->rebuild()); });
}

int evix_loop_counters(evix_loop_t* loop, evix_loop_counters_t* counters) {
  const char* function = __func__;
  if (counters == nullptr || !valid_size<evix_loop_counters_t>(counters->size)) {
    return fail_errno(EINVAL, function, "size of the counters");
  }
  return with_shared_loop(loop, function, [&](LoopState& state) {
    const evix::LoopCounters now = state.loop->counters();
    const evix_loop_counters_t all = {
        counters->size,       now.turns,          now.waits,
        now.callbacks,        now.time_asleep_ns, now.immediates_queued,
        now.timers_armed,     now.handles,        now.handles_active,
        now.send_queue_bytes, now.connections};
    std::memcpy(counters, &all, counters->size);
    return 0;
  });
}

}  // extern "C"
