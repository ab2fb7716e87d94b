#include <evix/timer.hpp>

#include <cerrno>

#include "capi/call.hpp"
#include "capi/convert.hpp"

namespace evix::detail::capi {
namespace {

struct TimerState final : HandleState {
  using CType = evix_timer_t;
  static constexpr Kind kind = Kind::timer;

  explicit TimerState(Loop& cxx_loop) : timer(cxx_loop) {}
  Handle& handle() noexcept override { return timer; }

  void start(Duration delay, Duration period, MissedTicks missed) {
    repeats = period != Duration::zero();
    if (repeats) {
      timer.after_then_every(delay, period, [this] { fire(); }, missed);
    } else {
      timer.after(delay, [this] { fire(); });
    }
  }

  void fire() {
    const evix_callback_fn call = callback;
    void* const argument = argument_data;
    if (frees_itself && !repeats) delete_handle(this);
    call(argument);
  }

  Timer timer;
  evix_callback_fn callback = nullptr;
  void* argument_data = nullptr;
  bool frees_itself = false;
  bool repeats = false;
};

evix_timer_t* create(evix_loop_t* loop, Duration delay, Duration repeat, evix_callback_fn callback,
                     void* data, const char* function) noexcept {
  return with_loop(loop, function, [&](LoopState& state) -> evix_timer_t* {
    if (callback == nullptr) {
      fail_errno(EINVAL, function, "no callback");
      return nullptr;
    }
    return make_handle<TimerState>(state, [&](TimerState& timer) {
      timer.callback = callback;
      timer.argument_data = data;
      timer.frees_itself = true;
      timer.start(delay, repeat, MissedTicks::skip);
      return 0;
    });
  });
}

}  // namespace
}  // namespace evix::detail::capi

using namespace evix::detail::capi;

extern "C" {

evix_timer_t* evix_timer_create(evix_loop_t* loop, uint64_t delay_ms, uint64_t repeat_ms,
                                evix_callback_fn callback, void* data) {
  return create(loop, to_duration(delay_ms, MS_TO_NS), to_duration(repeat_ms, MS_TO_NS), callback,
                data, __func__);
}

evix_timer_t* evix_timer_create_ns(evix_loop_t* loop, uint64_t delay_ns, uint64_t repeat_ns,
                                   evix_callback_fn callback, void* data) {
  return create(loop, to_duration(delay_ns), to_duration(repeat_ns), callback, data, __func__);
}

int evix_timer_stop(evix_loop_t* loop, evix_timer_t* timer) {
  return with_handle_of<TimerState>(loop, timer, __func__, [](TimerState& state) {
    state.timer.stop();
    return 0;
  });
}

int evix_timer_destroy(evix_timer_t* timer) {
  return with_handle<TimerState>(timer, __func__, [](TimerState& state) {
    delete_handle(&state);
    return 0;
  });
}

evix_timer_t* evix_timer_new(evix_loop_t* loop) {
  return with_loop(loop, __func__, [](LoopState& state) {
    return make_handle<TimerState>(state, [](TimerState&) { return 0; });
  });
}

int evix_timer_start_ns(evix_timer_t* timer, uint64_t delay_ns, uint64_t repeat_ns, int missed,
                        evix_callback_fn callback, void* data) {
  const char* function = __func__;
  return with_handle<TimerState>(timer, function, [&](TimerState& state) {
    if (callback == nullptr) return fail_errno(EINVAL, function, "no callback");
    if (missed < EVIX_MISSED_SKIP || missed > EVIX_MISSED_DELAY) {
      return fail_errno(EINVAL, function, "missed");
    }
    state.callback = callback;
    state.argument_data = data;
    state.start(to_duration(delay_ns), to_duration(repeat_ns),
                static_cast<evix::MissedTicks>(missed));
    return 0;
  });
}

int evix_timer_start_at_ns(evix_timer_t* timer, uint64_t deadline_ns, evix_callback_fn callback,
                           void* data) {
  const char* function = __func__;
  return with_handle<TimerState>(timer, function, [&](TimerState& state) {
    if (callback == nullptr) return fail_errno(EINVAL, function, "no callback");
    state.callback = callback;
    state.argument_data = data;
    state.repeats = false;
    TimerState* self = &state;
    state.timer.at(evix::TimePoint(to_duration(deadline_ns)), [self] { self->fire(); });
    return 0;
  });
}

int evix_timer_again(evix_timer_t* timer) {
  return with_handle<TimerState>(timer, __func__, [](TimerState& state) {
    state.timer.again();
    return 0;
  });
}

int64_t evix_timer_remaining_ns(evix_timer_t* timer) {
  return with_handle<TimerState>(timer, __func__, [](TimerState& state) -> int64_t {
    return state.timer.remaining().count();
  });
}

int64_t evix_timer_missed(evix_timer_t* timer) {
  return with_handle<TimerState>(timer, __func__, [](TimerState& state) {
    return static_cast<int64_t>(state.timer.missed_ticks());
  });
}

}  // extern "C"

static_assert(static_cast<int>(evix::MissedTicks::skip) == EVIX_MISSED_SKIP &&
              static_cast<int>(evix::MissedTicks::burst) == EVIX_MISSED_BURST &&
              static_cast<int>(evix::MissedTicks::delay) == EVIX_MISSED_DELAY);
