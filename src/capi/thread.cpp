#include <evix/waker.hpp>

#include <cerrno>
#include <future>
#include <thread>

#include "capi/call.hpp"
#include "capi/convert.hpp"
#include "capi/loop_life.hpp"
#include "capi/shared.hpp"
#include "sys/process.hpp"

namespace evix::detail::capi {
namespace {

struct PosterState : SharedState {
  static constexpr Kind kind = Kind::poster;
  Poster poster;
};

struct LoopThreadState : SharedState {
  static constexpr Kind kind = Kind::loop_thread;

  std::thread thread;
  ThreadId own_thread = nullptr;
  evix_loop_t* loop = nullptr;
  Poster poster;
  WakeSender may_end;  ///< lets the loop end: unlike a post, a wake-up needs no memory
  std::uint32_t process = fork_generation();  ///< that has the thread
  int result = 0;
};

/** What the starting thread hands to the new one, and what it waits for: 0, or a failure. */
struct Beginning {
  struct Outcome {
    int code;
    char words[192];
  };

  LoopThreadState& thread;
  evix_loop_options_t options;
  evix_loop_begin_fn begin;
  void* data;
  std::promise<Outcome> outcome;
};

/** The new thread. `beginning` is gone when its outcome is set; `thread` stays until the join. */
void run_thread(Beginning& beginning) noexcept {
  constexpr const char* function = "evix_loop_thread_create";
  LoopThreadState& thread = beginning.thread;
  const evix_loop_begin_fn begin = beginning.begin;
  void* const data = beginning.data;
  LoopState* loop = nullptr;
  KeepAlive until_join;
  Waker ender;
  const int code = guarded(function, [&] {
    loop = create_loop(beginning.options, function);
    if (loop == nullptr) return evix_last_error_code();
    loop->runner.store(current_thread(), std::memory_order_relaxed);
    until_join = loop->loop->keep_alive();
    ender = Waker(*loop->loop, [&until_join] { until_join = KeepAlive(); });
    thread.own_thread = current_thread();
    thread.loop = loop->pointer();
    thread.poster = loop->loop->poster();
    thread.may_end = ender.sender();
    return 0;
  });
  Beginning::Outcome outcome{code, {}};
  write_text(evix_last_error(), outcome.words, sizeof outcome.words);
  beginning.outcome.set_value(outcome);
  if (code == 0) {
    thread.result = guarded(function, [&] {
      const InCallback inside(*loop);
      if (begin != nullptr) begin(loop->pointer(), data);
      return 0;
    });
    if (thread.result == 0) thread.result = run_until_stopped(*loop, "evix_loop_thread");
  }
  ender = Waker();
  until_join = KeepAlive();
  if (loop != nullptr) destroy_loop(*loop, function);
}

evix_loop_thread_t* create_thread(const evix_loop_options_t& options, evix_loop_begin_fn begin,
                                  void* data) {
  auto state = std::make_unique<LoopThreadState>();
  Beginning beginning{*state, options, begin, data, {}};
  auto outcome = beginning.outcome.get_future();
  state->thread = std::thread([&beginning] { run_thread(beginning); });
  const Beginning::Outcome begun = outcome.get();
  if (begun.code != 0) {
    state->thread.join();
    fail_with(begun.code, begun.words);
    return nullptr;
  }
  return static_cast<evix_loop_thread_t*>(publish_shared(std::move(state)));
}

}  // namespace
}  // namespace evix::detail::capi

using namespace evix::detail::capi;

extern "C" {

evix_poster_t* evix_poster_create(evix_loop_t* loop) {
  evix_poster_t* made = nullptr;
  with_shared_loop(loop, __func__, [&](LoopState& loop_state) {
    auto state = std::make_unique<PosterState>();
    state->poster = loop_state.loop->poster();
    made = static_cast<evix_poster_t*>(publish_shared(std::move(state)));
    return 0;
  });
  return made;
}

int evix_poster_post(evix_poster_t* poster, evix_callback_fn callback, void* data) {
  const char* function = __func__;
  return with_shared<PosterState>(poster, function, [&](PosterState& state) {
    if (callback == nullptr) return fail_errno(EINVAL, function, "no callback");
    return code_of(state.poster.post([callback, data] { callback(data); }));
  });
}

int evix_poster_wake(evix_poster_t* poster) {
  return with_shared<PosterState>(poster, __func__, [](PosterState& state) {
    state.poster.wake();
    return 0;
  });
}

int evix_poster_destroy(evix_poster_t* poster) {
  return take_back<PosterState>(poster) != nullptr ? 0 : fail(evix::Errc::stale_handle, __func__);
}

evix_loop_thread_t* evix_loop_thread_create(const evix_loop_options_t* options,
                                            evix_loop_begin_fn begin, void* data) {
  const char* function = __func__;
  return guarded(function, [&]() -> evix_loop_thread_t* {
    evix_loop_options_t known;
    if (!read_options(options, known)) {
      fail_errno(EINVAL, function, "size of the options");
      return nullptr;
    }
    return create_thread(known, begin, data);
  });
}

evix_loop_t* evix_loop_thread_loop(evix_loop_thread_t* thread) {
  evix_loop_t* loop = nullptr;
  with_shared<LoopThreadState>(thread, __func__, [&](LoopThreadState& state) {
    loop = state.loop;
    return 0;
  });
  return loop;
}

int evix_loop_thread_post(evix_loop_thread_t* thread, evix_callback_fn callback, void* data) {
  const char* function = __func__;
  return with_shared<LoopThreadState>(thread, function, [&](LoopThreadState& state) {
    if (callback == nullptr) return fail_errno(EINVAL, function, "no callback");
    return code_of(state.poster.post([callback, data] { callback(data); }));
  });
}

int evix_loop_thread_stop(evix_loop_thread_t* thread) {
  return with_shared<LoopThreadState>(thread, __func__, [](LoopThreadState& state) {
    evix_loop_stop_all(state.loop);  // stale when it has ended: nothing left to stop
    return 0;
  });
}

int evix_loop_thread_join(evix_loop_thread_t* thread) {
  const char* function = __func__;
  const int here = with_shared<LoopThreadState>(thread, function, [&](LoopThreadState& state) {
    // A forked child has the loop but not the thread.
    if (state.process != evix::detail::fork_generation()) {
      return fail(evix::Errc::forked, function);
    }
    const bool own = state.own_thread == evix::detail::current_thread();
    return own ? fail(evix::Errc::wrong_thread, function) : 0;
  });
  if (here != 0) return here;
  const auto state = take_back<LoopThreadState>(thread);
  if (state == nullptr) return fail(evix::Errc::stale_handle, function);
  return guarded(function, [&] {
    state->may_end.wake();
    state->thread.join();
    if (state->result == 0) return 0;
    return fail_with(state->result, evix_error_text(state->result));
  });
}

}  // extern "C"
