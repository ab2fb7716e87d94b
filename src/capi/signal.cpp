#include <evix/signal.hpp>
#include <evix/waker.hpp>

#include <cerrno>

#include "capi/call.hpp"

namespace evix::detail::capi {
namespace {

struct SignalState final : HandleState {
  using CType = evix_signal_t;
  static constexpr Kind kind = Kind::signal;

  explicit SignalState(Loop& cxx_loop) : watcher(cxx_loop) {}
  Handle& handle() noexcept override { return watcher; }

  int start(int number) {
    const auto call = [this](int caught) { fire(caught); };
    return code_of(frees_itself ? watcher.once(number, call) : watcher.start(number, call));
  }

  void fire(int number) {
    const evix_signal_fn call = callback;
    void* const argument = argument_data;
    auto* const signal = static_cast<evix_signal_t*>(pointer());
    if (frees_itself) delete_handle(this);
    call(signal, number, argument);
  }

  SignalWatcher watcher;
  evix_signal_fn callback = nullptr;
  void* argument_data = nullptr;
  bool frees_itself = false;
};

evix_signal_t* create(evix_loop_t* loop, int number, bool once, evix_signal_fn callback, void* data,
                      const char* function) noexcept {
  return with_loop(loop, function, [&](LoopState& state) -> evix_signal_t* {
    if (callback == nullptr) {
      fail_errno(EINVAL, function, "no callback");
      return nullptr;
    }
    return make_handle<SignalState>(state, [&](SignalState& signal) {
      signal.callback = callback;
      signal.argument_data = data;
      signal.frees_itself = once;
      return signal.start(number);
    });
  });
}

/** The callback is given to the waker at its birth, so this one is made in one step. */
struct WakerState final : HandleState {
  using CType = evix_waker_t;
  static constexpr Kind kind = Kind::waker;

  explicit WakerState(Loop& cxx_loop)
      : waker(cxx_loop, [this] { callback(argument_data); }), sender(waker.sender()) {}
  Handle& handle() noexcept override { return waker; }

  evix_callback_fn callback = nullptr;
  void* argument_data = nullptr;
  Waker waker;
  WakeSender sender;
};

}  // namespace
}  // namespace evix::detail::capi

using namespace evix::detail::capi;

extern "C" {

evix_signal_t* evix_signal_create(evix_loop_t* loop, int number, evix_signal_fn callback,
                                  void* data) {
  return create(loop, number, false, callback, data, __func__);
}

evix_signal_t* evix_signal_create_once(evix_loop_t* loop, int number, evix_signal_fn callback,
                                       void* data) {
  return create(loop, number, true, callback, data, __func__);
}

int evix_signal_destroy(evix_signal_t* signal) {
  return with_handle<SignalState>(signal, __func__, [](SignalState& state) {
    delete_handle(&state);
    return 0;
  });
}

evix_waker_t* evix_waker_create(evix_loop_t* loop, evix_callback_fn callback, void* data) {
  const char* function = __func__;
  return with_loop(loop, function, [&](LoopState& state) -> evix_waker_t* {
    if (callback == nullptr) {
      fail_errno(EINVAL, function, "no callback");
      return nullptr;
    }
    return make_handle<WakerState>(state, [&](WakerState& waker) {
      waker.callback = callback;
      waker.argument_data = data;
      return 0;
    });
  });
}

int evix_waker_wake(evix_waker_t* waker) {
  const char* function = __func__;
  const Pin pin(to_id(waker), Kind::waker);
  auto* handle = static_cast<HandleState*>(pin.object());
  if (handle == nullptr) return fail(evix::Errc::stale_handle, function);
  return guarded(function, [&] {
    const bool woke = static_cast<WakerState*>(handle)->sender.wake();
    return woke ? 0 : fail(evix::Errc::closed, function);
  });
}

int evix_waker_destroy(evix_waker_t* waker) {
  return with_handle<WakerState>(waker, __func__, [](WakerState& state) {
    delete_handle(&state);
    return 0;
  });
}

}  // extern "C"
