#pragma once

#include <evix/tcp.hpp>

#include <optional>
#include <string>

#include "capi/call.hpp"
#include "evix.h"

/** @file
 * Streams of the C API, as connecting, accepting and the stream functions share them.
 */
namespace evix::detail::capi {

struct StreamState final : HandleState {
  using CType = evix_stream_t;
  static constexpr Kind kind = Kind::stream;

  explicit StreamState(Loop& cxx_loop) : stream(cxx_loop) {}
  explicit StreamState(TcpStream&& connected) noexcept : stream(std::move(connected)) {}
  Handle& handle() noexcept override { return stream; }

  TcpStream stream;
  // Of a close that is under way; the pointer is stale then.
  evix_callback_fn closed = nullptr;
  void* closed_data = nullptr;
};

/** Callbacks are given the pointer, not the state: it may be stale by then, and says so. */
struct StreamCall {
  evix_stream_fn callback;
  void* data;
  evix_stream_t* stream;

  void operator()(const Result<void>& result) const {
    const int status = code_of(result);
    if (callback != nullptr) callback(stream, status, data);
  }
};

inline evix_stream_t* stream_pointer(const StreamState& state) noexcept {
  return static_cast<evix_stream_t*>(state.pointer());
}

/** Makes a connected stream one of the loop's handles. Throws std::bad_alloc. */
evix_stream_t* make_stream(LoopState& loop, TcpStream&& connected);

/** Writes an address, or gives the code of its error. */
int write_address(const Result<Address>& address, char* text, std::size_t size);

}  // namespace evix::detail::capi
