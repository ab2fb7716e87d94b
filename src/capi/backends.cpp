#include "capi/backends.hpp"

#include <string_view>

#include "capi/call.hpp"
#include "capi/convert.hpp"
#include "capi/custom_driver.hpp"

namespace evix::detail::capi {
namespace {

// Only their addresses mean something.
evix_backend_t epoll_marker{};
evix_backend_t io_uring_marker{};
evix_backend_t poll_marker{};
evix_backend_t sim_marker{};

evix_backend_t* not_in_this_version(const char* function) noexcept {
  fail(Errc::backend_unavailable, function, "not part of this version");
  return nullptr;
}

/** For the functions that a backend may call inside its own: the loop may be half made. */
template <class Body>
auto with_backend_of(const void* loop, const char* function, Body&& body) noexcept
    -> decltype(body(std::declval<LoopState&>())) {
  using R = decltype(body(std::declval<LoopState&>()));
  const Entry* entry = find_loop(to_id(loop));
  if (entry == nullptr) return failed<R>(fail(Errc::stale_handle, function));
  LoopState& state = loop_of(*entry);
  const ThreadId runner = state.runner.load(std::memory_order_acquire);
  if (runner != nullptr && runner != current_thread()) {
    return failed<R>(fail(Errc::wrong_thread, function));
  }
  return guarded(function, [&] { return body(state); });
}

}  // namespace

BackendKind builtin_kind(const evix_backend_t* backend) noexcept {
  if (backend == nullptr) return BackendKind::automatic;
  if (backend == &epoll_marker) return BackendKind::epoll;
  if (backend == &io_uring_marker) return BackendKind::io_uring;
  if (backend == &poll_marker) return BackendKind::poll;
  if (backend == &sim_marker) return BackendKind::sim;
  return BackendKind::custom;
}

}  // namespace evix::detail::capi

using namespace evix::detail::capi;

extern "C" {

evix_backend_t* evix_epoll_backend(void) { return &epoll_marker; }

evix_backend_t* evix_kqueue_backend(void) { return not_in_this_version(__func__); }

evix_backend_t* evix_io_uring_backend(void) { return &io_uring_marker; }

evix_backend_t* evix_poll_backend(void) { return &poll_marker; }

evix_backend_t* evix_sim_backend(void) { return &sim_marker; }

evix_backend_t* evix_backend_by_name(const char* name) {
  const char* function = __func__;
  return guarded(function, [&]() -> evix_backend_t* {
    const char* wanted = name != nullptr ? name : "";
    const auto kind = evix::backend_kind(wanted);
    if (!kind) {
      fail(kind.error());
      return nullptr;
    }
    switch (*kind) {
      case evix::BackendKind::epoll:
        return evix_epoll_backend();
      case evix::BackendKind::poll:
        return evix_poll_backend();
      case evix::BackendKind::sim:
        return evix_sim_backend();
      case evix::BackendKind::io_uring:
        return evix_io_uring_backend();
      case evix::BackendKind::kqueue:
        return not_in_this_version(function);
      case evix::BackendKind::automatic:
      case evix::BackendKind::custom:
        break;
    }
    fail(evix::Errc::backend_unknown, function, wanted);
    return nullptr;
  });
}

int evix_backend_ready(evix_loop_t* loop, int fd, int events) {
  const char* function = __func__;
  if (events == 0 || (events & ~all_events) != 0) {
    return fail_errno(EINVAL, function, "events");
  }
  return with_backend_of(loop, function, [&](LoopState& state) {
    if (state.driver == nullptr) return fail(evix::Errc::busy, function, "outside poll");
    const int error = state.driver->ready(fd, to_ready(events));
    return error == 0 ? 0 : fail(static_cast<evix::Errc>(error), function);
  });
}

int evix_loop_set_backend_data(evix_loop_t* loop, void* data) {
  return with_backend_of(loop, __func__, [&](LoopState& state) {
    state.backend_data = data;
    return 0;
  });
}

void* evix_loop_backend_data(evix_loop_t* loop) {
  return with_backend_of(loop, __func__, [](LoopState& state) { return state.backend_data; });
}

}  // extern "C"
