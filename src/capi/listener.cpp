#include <cerrno>

#include "capi/convert.hpp"
#include "capi/tcp.hpp"

namespace evix::detail::capi {
namespace {

struct ListenerState final : HandleState {
  using CType = evix_listener_t;
  static constexpr Kind kind = Kind::listener;

  explicit ListenerState(Loop& cxx_loop) : listener(cxx_loop) {}
  Handle& handle() noexcept override { return listener; }

  TcpListener listener;
};

struct AcceptCall {
  evix_accept_fn callback;
  void* data;
  ListenerState* state;

  void operator()(Result<TcpStream> accepted) const {
    // Copied: the callback may free the listener, and this object with it.
    const AcceptCall call = *this;
    auto* listener = static_cast<evix_listener_t*>(call.state->pointer());
    evix_stream_t* stream = nullptr;
    int status = code_of(accepted);
    if (status == 0) {
      status = guarded("accept", [&] {
        stream = make_stream(*call.state->loop, std::move(*accepted));
        return 0;
      });
    }
    call.callback(listener, status, stream, call.data);
  }
};

ListenOptions to_cxx(const evix_listen_options_t& options) noexcept {
  ListenOptions wanted;
  if (options.backlog_max > 0) wanted.backlog_max = options.backlog_max;
  wanted.reuse_address = options.no_reuse_address == 0;
  wanted.reuse_port = options.reuse_port != 0;
  wanted.ipv6_only = options.ipv6_only != 0;
  wanted.no_delay = options.no_delay != 0;
  if (options.retry_delay_ns != 0) wanted.retry_delay = to_duration(options.retry_delay_ns);
  return wanted;
}

int accept_with(evix_listener_t* listener, evix_accept_fn callback, void* data, bool once,
                const char* function) noexcept {
  return with_handle<ListenerState>(listener, function, [&](ListenerState& state) {
    if (callback == nullptr) return fail_errno(EINVAL, function, "no callback");
    const AcceptCall call{callback, data, &state};
    once ? state.listener.accept(call) : state.listener.accept_start(call);
    return 0;
  });
}

}  // namespace
}  // namespace evix::detail::capi

using namespace evix::detail::capi;

extern "C" {

evix_listener_t* evix_tcp_listen(evix_loop_t* loop, const char* address,
                                 const evix_listen_options_t* options, evix_accept_fn callback,
                                 void* data) {
  const char* function = __func__;
  return with_loop(loop, function, [&](LoopState& state) -> evix_listener_t* {
    evix_listen_options_t known;
    if (address == nullptr || !read_options(options, known)) {
      fail_errno(EINVAL, function, address == nullptr ? "no address" : "size of the options");
      return nullptr;
    }
    return make_handle<ListenerState>(state, [&](ListenerState& made) {
      const auto listening = made.listener.listen(address, to_cxx(known));
      if (listening && callback != nullptr) {
        made.listener.accept_start(AcceptCall{callback, data, &made});
      }
      return code_of(listening);
    });
  });
}

int evix_listener_accept_start(evix_listener_t* listener, evix_accept_fn callback, void* data) {
  return accept_with(listener, callback, data, false, __func__);
}

int evix_listener_accept(evix_listener_t* listener, evix_accept_fn callback, void* data) {
  return accept_with(listener, callback, data, true, __func__);
}

int evix_listener_accept_stop(evix_listener_t* listener) {
  return with_handle<ListenerState>(listener, __func__, [](ListenerState& state) {
    state.listener.accept_stop();
    return 0;
  });
}

int evix_listener_address(evix_listener_t* listener, char* text, size_t size) {
  return with_handle<ListenerState>(listener, __func__, [&](ListenerState& state) {
    return write_address(state.listener.local_address(), text, size);
  });
}

int evix_listener_fd(evix_listener_t* listener) {
  return with_handle<ListenerState>(
      listener, __func__, [](ListenerState& state) -> int { return state.listener.native(); });
}

int evix_listener_close(evix_listener_t* listener) {
  return with_handle<ListenerState>(listener, __func__, [](ListenerState& state) {
    state.listener.close();
    delete_handle(&state);
    return 0;
  });
}

}  // extern "C"
