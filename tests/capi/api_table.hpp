#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "evix.h"

/** @file
 * Every function of evix.h that is given a handle, as a call with that handle.
 */

enum class Needs {
  loop,
  timer,
  io,
  signal,
  waker,
  listener,
  stream,
  any_handle,  ///< evix_handle_…: of any of the six kinds above
  poster,
  loop_thread,
  poller,
  timer_queue,
};

struct ApiCall {
  std::string name;
  Needs needs;
  /** Allowed from any thread while another one runs the loop. */
  bool any_thread;
  /** Negative, or 0 for a null pointer: it failed. `loop` is for calls that are given both. */
  std::function<std::int64_t(void* handle, evix_loop_t* loop)> call;
};

const std::vector<ApiCall>& api_calls();

/** Those of `handles`, a record with a loop and a handle of each of its six kinds, that fit. */
template <class Handles>
std::vector<void*> handles_of_loop(const Handles& handles, Needs needs) {
  switch (needs) {
    case Needs::loop:
      return {handles.loop};
    case Needs::timer:
      return {handles.timer};
    case Needs::io:
      return {handles.io};
    case Needs::signal:
      return {handles.signal};
    case Needs::waker:
      return {handles.waker};
    case Needs::listener:
      return {handles.listener};
    case Needs::stream:
      return {handles.stream};
    case Needs::any_handle:
      return {handles.timer, handles.io,       handles.signal,
              handles.waker, handles.listener, handles.stream};
    default:
      return {};
  }
}
