#include <evix/watcher.hpp>

#include <cerrno>

#include "capi/call.hpp"
#include "capi/convert.hpp"

namespace evix::detail::capi {
namespace {

struct IoState final : HandleState {
  using CType = evix_io_t;
  static constexpr Kind kind = Kind::io;

  explicit IoState(Loop& cxx_loop) : watcher(cxx_loop) {}
  Handle& handle() noexcept override { return watcher; }

  int start(int fd, int events) {
    frees_itself = (events & EVIX_IO_ONESHOT) != 0;
    const Ready interest = to_ready(events & interest_events);
    const auto call = [this](Ready ready) { fire(ready); };
    return code_of(frees_itself ? watcher.once(fd, interest, call)
                                : watcher.start(fd, interest, call));
  }

  void fire(Ready ready) {
    const evix_callback_fn call_plain = plain;
    const evix_io_fn call = callback;
    void* const argument = argument_data;
    auto* const io = static_cast<evix_io_t*>(pointer());
    if (frees_itself) delete_handle(this);
    if (call_plain != nullptr) {
      call_plain(argument);
    } else {
      call(io, to_events(ready), argument);
    }
  }

  Watcher watcher;
  evix_callback_fn plain = nullptr;  ///< one of the two
  evix_io_fn callback = nullptr;
  void* argument_data = nullptr;
  bool frees_itself = false;
};

bool valid_interest(int events) noexcept {
  return (events & interest_events) != 0 && (events & ~interest_events) == 0;
}

evix_io_t* create(evix_loop_t* loop, int fd, int events, evix_callback_fn plain,
                  evix_io_fn callback, void* data, const char* function) noexcept {
  return with_loop(loop, function, [&](LoopState& state) -> evix_io_t* {
    if (plain == nullptr && callback == nullptr) {
      fail_errno(EINVAL, function, "no callback");
      return nullptr;
    }
    if (!valid_interest(events & ~EVIX_IO_ONESHOT)) {
      fail_errno(EINVAL, function, "events");
      return nullptr;
    }
    return make_handle<IoState>(state, [&](IoState& io) {
      io.plain = plain;
      io.callback = callback;
      io.argument_data = data;
      return io.start(fd, events);
    });
  });
}

}  // namespace
}  // namespace evix::detail::capi

using namespace evix::detail::capi;

extern "C" {

evix_io_t* evix_io_create(evix_loop_t* loop, int fd, int events, evix_callback_fn callback,
                          void* data) {
  return create(loop, fd, events, callback, nullptr, data, __func__);
}

evix_io_t* evix_io_create_ex(evix_loop_t* loop, int fd, int events, evix_io_fn callback,
                             void* data) {
  return create(loop, fd, events, nullptr, callback, data, __func__);
}

int evix_io_stop(evix_loop_t* loop, evix_io_t* io) {
  return with_handle_of<IoState>(loop, io, __func__, [](IoState& state) {
    delete_handle(&state);
    return 0;
  });
}

int evix_io_set_events(evix_io_t* io, int events) {
  const char* function = __func__;
  return with_handle<IoState>(io, function, [&](IoState& state) {
    if (!valid_interest(events)) return fail_errno(EINVAL, function, "events");
    return code_of(state.watcher.set_interest(to_ready(events)));
  });
}

int evix_io_fd(evix_io_t* io) {
  return with_handle<IoState>(io, __func__,
                              [](IoState& state) -> int { return state.watcher.handle(); });
}

}  // extern "C"
