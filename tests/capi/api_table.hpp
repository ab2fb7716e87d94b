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
