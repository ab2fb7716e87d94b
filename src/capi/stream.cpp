#include <cerrno>

#include "capi/convert.hpp"
#include "capi/tcp.hpp"

namespace evix::detail::capi {
namespace {

struct ReceiveCall {
  evix_receive_fn callback;
  void* data;
  evix_stream_t* stream;

  // The buffer is the argument's: it outlives the stream, should the callback free that.
  void operator()(Result<Buffer> received) const {
    const ReceiveCall call = *this;
    const int status = code_of(received);
    const void* bytes = status == 0 ? received->data() : nullptr;
    call.callback(call.stream, status, bytes, status == 0 ? received->size() : 0, call.data);
  }
};

/** One more word than fits inside the callback, so it costs an allocation for each call. */
struct ReceiveIntoCall {
  ReceiveCall call;
  const void* bytes;

  void operator()(const Result<std::size_t>& received) const {
    const ReceiveIntoCall copy = *this;
    const int status = code_of(received);
    const std::size_t size = received.value_or(0);
    copy.call.callback(copy.call.stream, status, status == 0 ? copy.bytes : nullptr, size,
                       copy.call.data);
  }
};

struct WaterMarkCall {
  evix_water_mark_fn callback;
  void* data;
  evix_stream_t* stream;

  void operator()(WaterMark mark) const {
    const WaterMarkCall call = *this;
    call.callback(call.stream, mark == WaterMark::full ? EVIX_WATER_FULL : EVIX_WATER_DRAINED,
                  call.data);
  }
};

std::span<const std::byte> to_span(const void* bytes, std::size_t size) noexcept {
  return {static_cast<const std::byte*>(bytes), size};
}

int no_callback(const char* function) noexcept {
  return fail_errno(EINVAL, function, "no callback");
}

int no_bytes(const char* function) noexcept { return fail_errno(EINVAL, function, "no bytes"); }

/**
 * From here on the pointer is stale; only once the close is certain. The state, and the C++ handle
 * in it, live until the close completes: operations of a handle that is destroyed would report to
 * nobody.
 */
void begin_close(StreamState& state, evix_callback_fn callback, void* data) noexcept {
  state.closed = callback;
  state.closed_data = data;
  retract_handle(state);
}

void end_close(StreamState* state) {
  const evix_callback_fn callback = state->closed;
  void* const data = state->closed_data;
  delete_handle(state);
  if (callback != nullptr) callback(data);
}

int close(StreamState& state, evix_callback_fn callback, void* data) {
  StreamState* self = &state;
  try {
    state.stream.close([self] { end_close(self); });
  } catch (const std::bad_alloc&) {
    if (callback != nullptr) throw;  // nothing has happened
    state.stream.close();            // which needs no memory; the state goes with the loop
  }
  begin_close(state, callback, data);
  return 0;
}

Duration to_cxx_timeout(std::uint64_t timeout_ns) noexcept {
  return timeout_ns == 0 ? forever : to_duration(timeout_ns);
}

/** False, and the words, for options that cannot be understood. */
bool to_cxx(const evix_connect_options_t* options, ConnectOptions& wanted, const char* function) {
  evix_connect_options_t known;
  if (!read_options(options, known)) {
    fail_errno(EINVAL, function, "size of the options");
    return false;
  }
  wanted.timeout = to_cxx_timeout(known.timeout_ns);
  wanted.refuse_self_connect = known.allow_self_connect == 0;
  if (known.local_address == nullptr) return true;
  const auto local = Address::parse(known.local_address);
  if (local) wanted.local = *local;
  return code_of(local) == 0;
}

}  // namespace

evix_stream_t* make_stream(LoopState& loop, TcpStream&& connected) {
  auto state = std::make_unique<StreamState>(std::move(connected));
  take_place(*state);
  add_handle(loop, *state, Kind::stream);
  return stream_pointer(*state.release());
}

int write_address(const Result<Address>& address, char* text, std::size_t size) {
  if (!address) return fail(address.error());
  return write_text(address->to_string(), text, size);
}

}  // namespace evix::detail::capi

using namespace evix::detail::capi;
using evix::Result;

extern "C" {

evix_stream_t* evix_tcp_connect(evix_loop_t* loop, const char* address,
                                const evix_connect_options_t* options, evix_stream_fn callback,
                                void* data) {
  const char* function = __func__;
  return with_loop(loop, function, [&](LoopState& state) -> evix_stream_t* {
    if (callback == nullptr || address == nullptr) {
      fail_errno(EINVAL, function, callback == nullptr ? "no callback" : "no address");
      return nullptr;
    }
    evix::ConnectOptions wanted;
    if (!to_cxx(options, wanted, function)) return nullptr;
    const auto parsed = evix::Address::parse(address);
    if (code_of(parsed) != 0) return nullptr;
    return make_handle<StreamState>(state, [&](StreamState& made) {
      made.stream.connect(*parsed, wanted, StreamCall{callback, data, stream_pointer(made)});
      return 0;
    });
  });
}

evix_stream_t* evix_tcp_adopt(evix_loop_t* loop, int fd) {
  return with_loop(loop, __func__, [&](LoopState& state) -> evix_stream_t* {
    auto adopted = evix::TcpStream::adopt(*state.loop, fd);
    if (code_of(adopted) != 0) return nullptr;
    return make_stream(state, std::move(*adopted));
  });
}

int evix_stream_receive(evix_stream_t* stream, evix_receive_fn callback, void* data) {
  const char* function = __func__;
  return with_handle<StreamState>(stream, function, [&](StreamState& state) {
    if (callback == nullptr) return no_callback(function);
    state.stream.receive(ReceiveCall{callback, data, stream});
    return 0;
  });
}

int evix_stream_receive_start(evix_stream_t* stream, evix_receive_fn callback, void* data) {
  const char* function = __func__;
  return with_handle<StreamState>(stream, function, [&](StreamState& state) {
    if (callback == nullptr) return no_callback(function);
    state.stream.receive_start(ReceiveCall{callback, data, stream});
    return 0;
  });
}

int evix_stream_receive_stop(evix_stream_t* stream) {
  return with_handle<StreamState>(stream, __func__, [](StreamState& state) {
    state.stream.receive_stop();
    return 0;
  });
}

int evix_stream_receive_into(evix_stream_t* stream, void* bytes, size_t size,
                             evix_receive_fn callback, void* data) {
  const char* function = __func__;
  return with_handle<StreamState>(stream, function, [&](StreamState& state) {
    if (callback == nullptr) return no_callback(function);
    if (bytes == nullptr || size == 0) return no_bytes(function);
    state.stream.receive_into({static_cast<std::byte*>(bytes), size},
                              ReceiveIntoCall{{callback, data, stream}, bytes});
    return 0;
  });
}

int evix_stream_send(evix_stream_t* stream, const void* bytes, size_t size, evix_stream_fn callback,
                     void* data) {
  const char* function = __func__;
  return with_handle<StreamState>(stream, function, [&](StreamState& state) {
    if (callback == nullptr) return no_callback(function);
    if (bytes == nullptr && size != 0) return no_bytes(function);
    state.stream.send(to_span(bytes, size), StreamCall{callback, data, stream});
    return 0;
  });
}

int evix_stream_send_copy(evix_stream_t* stream, const void* bytes, size_t size) {
  const char* function = __func__;
  return with_handle<StreamState>(stream, function, [&](StreamState& state) {
    if (bytes == nullptr && size != 0) return no_bytes(function);
    return code_of(state.stream.send_copy(to_span(bytes, size)));
  });
}

int64_t evix_stream_try_send(evix_stream_t* stream, const void* bytes, size_t size) {
  const char* function = __func__;
  return with_handle<StreamState>(stream, function, [&](StreamState& state) -> int64_t {
    if (bytes == nullptr && size != 0) return no_bytes(function);
    const Result<std::size_t> sent = state.stream.try_send(to_span(bytes, size));
    return sent ? static_cast<int64_t>(*sent) : fail(sent.error());
  });
}

int evix_stream_shutdown(evix_stream_t* stream, evix_stream_fn callback, void* data) {
  return with_handle<StreamState>(stream, __func__, [&](StreamState& state) {
    state.stream.shutdown_send(StreamCall{callback, data, stream});
    return 0;
  });
}

int evix_stream_set_water_marks(evix_stream_t* stream, size_t low_bytes, size_t high_bytes,
                                size_t hard_bytes_max, evix_water_mark_fn callback, void* data) {
  return with_handle<StreamState>(stream, __func__, [&](StreamState& state) {
    evix::WaterMarks marks;
    if (low_bytes != 0) marks.low_bytes = low_bytes;
    if (high_bytes != 0) marks.high_bytes = high_bytes;
    if (hard_bytes_max != 0) marks.hard_bytes_max = hard_bytes_max;
    evix::TcpStream::WaterMarkCallback call;
    if (callback != nullptr) call = WaterMarkCall{callback, data, stream};
    state.stream.set_water_marks(marks, std::move(call));
    return 0;
  });
}

int64_t evix_stream_send_queue_bytes(evix_stream_t* stream) {
  return with_handle<StreamState>(stream, __func__, [](StreamState& state) {
    return static_cast<int64_t>(state.stream.send_queue_bytes());
  });
}

int evix_stream_set_receive_timeout_ns(evix_stream_t* stream, int64_t timeout_ns) {
  return with_handle<StreamState>(stream, __func__, [&](StreamState& state) {
    state.stream.set_receive_timeout(to_timeout(timeout_ns));
    return 0;
  });
}

int evix_stream_set_send_timeout_ns(evix_stream_t* stream, int64_t timeout_ns) {
  return with_handle<StreamState>(stream, __func__, [&](StreamState& state) {
    state.stream.set_send_timeout(to_timeout(timeout_ns));
    return 0;
  });
}

int evix_stream_set_no_delay(evix_stream_t* stream, int enabled) {
  return with_handle<StreamState>(stream, __func__, [&](StreamState& state) {
    return code_of(state.stream.set_no_delay(enabled != 0));
  });
}

int evix_stream_set_keep_alive(evix_stream_t* stream, unsigned idle_seconds) {
  return with_handle<StreamState>(stream, __func__, [&](StreamState& state) {
    std::optional<std::chrono::seconds> idle;
    if (idle_seconds != 0) idle = std::chrono::seconds(idle_seconds);
    return code_of(state.stream.set_keep_alive(idle));
  });
}

int evix_stream_local_address(evix_stream_t* stream, char* text, size_t size) {
  return with_handle<StreamState>(stream, __func__, [&](StreamState& state) {
    return write_address(state.stream.local_address(), text, size);
  });
}

int evix_stream_peer_address(evix_stream_t* stream, char* text, size_t size) {
  return with_handle<StreamState>(stream, __func__, [&](StreamState& state) {
    return write_address(state.stream.peer_address(), text, size);
  });
}

int evix_stream_fd(evix_stream_t* stream) {
  return with_handle<StreamState>(stream, __func__,
                                  [](StreamState& state) -> int { return state.stream.native(); });
}

int evix_stream_connected(evix_stream_t* stream) {
  return with_handle<StreamState>(
      stream, __func__, [](StreamState& state) { return state.stream.connected() ? 1 : 0; });
}

int evix_stream_close(evix_stream_t* stream) {
  return with_handle<StreamState>(
      stream, __func__, [](StreamState& state) { return close(state, nullptr, nullptr); });
}

int evix_stream_close_then(evix_stream_t* stream, evix_callback_fn callback, void* data) {
  return with_handle<StreamState>(stream, __func__,
                                  [&](StreamState& state) { return close(state, callback, data); });
}

int evix_stream_close_gracefully(evix_stream_t* stream, size_t drain_bytes_max, uint64_t timeout_ns,
                                 evix_callback_fn callback, void* data) {
  return with_handle<StreamState>(stream, __func__, [&](StreamState& state) {
    evix::GracefulClose limits;
    if (drain_bytes_max != 0) limits.drain_bytes_max = drain_bytes_max;
    if (timeout_ns != 0) limits.timeout = to_duration(timeout_ns);
    StreamState* self = &state;
    state.stream.close_gracefully(limits, [self] { end_close(self); });
    begin_close(state, callback, data);
    return 0;
  });
}

int evix_stream_abort(evix_stream_t* stream) {
  return with_handle<StreamState>(stream, __func__, [](StreamState& state) {
    state.stream.abort();
    return close(state, nullptr, nullptr);
  });
}

}  // extern "C"
