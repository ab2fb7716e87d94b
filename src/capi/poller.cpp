#include <evix/poller.hpp>
#include <evix/timer_queue.hpp>

#include <cerrno>
#include <memory>

#include "capi/backends.hpp"
#include "capi/call.hpp"
#include "capi/convert.hpp"
#include "capi/shared.hpp"

namespace evix::detail::capi {
namespace {

struct SharedPoller : SharedState {
  static constexpr Kind kind = Kind::poller;
  explicit SharedPoller(Poller&& made) noexcept(false) : poller(std::move(made)) {}
  Poller poller;
};

struct SharedTimerQueue : SharedState {
  static constexpr Kind kind = Kind::timer_queue;
  TimerQueue queue;
  bool running = false;
};

template <class NamedId>
constexpr evix_id_t from_id(NamedId id) noexcept {
  return evix_id_t{id.generation} << 32 | id.slot;
}

template <class NamedId>
constexpr NamedId to_named(evix_id_t id) noexcept {
  return {static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32)};
}

/** The object, which one thread at a time uses (so that nobody frees it meanwhile), or null. */
template <class T>
T* find_exclusive(const void* pointer, const char* function) noexcept {
  const Id id = to_id(pointer);
  const Entry* entry = kind_of(id) == T::kind ? find(id) : nullptr;
  if (entry != nullptr) return static_cast<T*>(entry->object.load(std::memory_order_relaxed));
  fail(Errc::stale_handle, function);
  return nullptr;
}

template <class T, class Body>
auto with_exclusive(const void* pointer, const char* function, Body&& body) noexcept
    -> decltype(body(std::declval<T&>())) {
  using R = decltype(body(std::declval<T&>()));
  T* state = find_exclusive<T>(pointer, function);
  if (state == nullptr) return failed<R>(EVIX_ESTALE);
  return guarded(function, [&] { return body(*state); });
}

/** 0, or why events and trigger make no interest. */
int check_interest(int events, int trigger, const char* function) noexcept {
  if ((events & ~interest_events) != 0) return fail_errno(EINVAL, function, "events");
  if (trigger < EVIX_TRIGGER_LEVEL || trigger > EVIX_TRIGGER_ONESHOT) {
    return fail_errno(EINVAL, function, "trigger");
  }
  return 0;
}

}  // namespace
}  // namespace evix::detail::capi

static_assert(static_cast<int>(evix::Trigger::level) == EVIX_TRIGGER_LEVEL &&
              static_cast<int>(evix::Trigger::edge) == EVIX_TRIGGER_EDGE &&
              static_cast<int>(evix::Trigger::one_shot) == EVIX_TRIGGER_ONESHOT);

using namespace evix::detail::capi;
using evix::InterestId;
using evix::TimerId;
using evix::Trigger;

extern "C" {

evix_poller_t* evix_poller_create(evix_backend_t* backend) {
  const char* function = __func__;
  return guarded(function, [&]() -> evix_poller_t* {
    evix::PollerOptions options;
    options.kind = builtin_kind(backend);
    if (options.kind == evix::BackendKind::custom) {
      fail(evix::Errc::backend_unavailable, function, "only built-in backends");
      return nullptr;
    }
    auto made = evix::Poller::create(options);
    if (code_of(made) != 0) return nullptr;
    return static_cast<evix_poller_t*>(
        publish_shared(std::make_unique<SharedPoller>(std::move(*made))));
  });
}

int evix_poller_destroy(evix_poller_t* poller) {
  return take_back<SharedPoller>(poller) != nullptr ? 0 : fail(evix::Errc::stale_handle, __func__);
}

int evix_poller_add(evix_poller_t* poller, int fd, int events, int trigger, uint64_t token,
                    evix_id_t* id) {
  const char* function = __func__;
  return with_exclusive<SharedPoller>(poller, function, [&](SharedPoller& state) {
    if (const int code = check_interest(events, trigger, function)) return code;
    const auto added = state.poller.add(fd, to_ready(events), static_cast<Trigger>(trigger), token);
    if (added && id != nullptr) *id = from_id(*added);
    return code_of(added);
  });
}

int evix_poller_modify(evix_poller_t* poller, evix_id_t id, int events, int trigger) {
  const char* function = __func__;
  return with_exclusive<SharedPoller>(poller, function, [&](SharedPoller& state) {
    if (const int code = check_interest(events, trigger, function)) return code;
    return code_of(state.poller.modify(to_named<InterestId>(id), to_ready(events),
                                       static_cast<Trigger>(trigger)));
  });
}

int evix_poller_set_token(evix_poller_t* poller, evix_id_t id, uint64_t token) {
  return with_exclusive<SharedPoller>(poller, __func__, [&](SharedPoller& state) {
    return code_of(state.poller.set_token(to_named<InterestId>(id), token));
  });
}

int evix_poller_enable(evix_poller_t* poller, evix_id_t id) {
  return with_exclusive<SharedPoller>(poller, __func__, [&](SharedPoller& state) {
    return code_of(state.poller.enable(to_named<InterestId>(id)));
  });
}

int evix_poller_disable(evix_poller_t* poller, evix_id_t id) {
  return with_exclusive<SharedPoller>(poller, __func__, [&](SharedPoller& state) {
    return code_of(state.poller.disable(to_named<InterestId>(id)));
  });
}

int evix_poller_remove(evix_poller_t* poller, evix_id_t id) {
  return with_exclusive<SharedPoller>(poller, __func__, [&](SharedPoller& state) {
    return code_of(state.poller.remove(to_named<InterestId>(id)));
  });
}

int evix_poller_commit(evix_poller_t* poller) {
  return with_exclusive<SharedPoller>(poller, __func__, [](SharedPoller& state) {
    return static_cast<int>(state.poller.commit());
  });
}

int evix_poller_failure(evix_poller_t* poller, size_t index, evix_poll_event_t* failure) {
  const char* function = __func__;
  return with_exclusive<SharedPoller>(poller, function, [&](SharedPoller& state) {
    if (failure == nullptr) return fail_errno(EINVAL, function, "no failure");
    const auto failures = state.poller.failures();
    if (index >= failures.size()) return 0;
    const evix::ChangeFailure& found = failures[index];
    *failure = {found.token, from_id(found.id), found.handle, 0, fail(found.error)};
    return 1;
  });
}

int evix_poller_wait(evix_poller_t* poller, int64_t timeout_ns) {
  return with_exclusive<SharedPoller>(poller, __func__, [&](SharedPoller& state) {
    const auto count = state.poller.wait(to_timeout(timeout_ns));
    return count ? static_cast<int>(*count) : fail(count.error());
  });
}

int evix_poller_next(evix_poller_t* poller, evix_poll_event_t* event) {
  const char* function = __func__;
  return with_exclusive<SharedPoller>(poller, function, [&](SharedPoller& state) {
    if (event == nullptr) return fail_errno(EINVAL, function, "no event");
    const auto next = state.poller.next();
    if (!next) return 0;
    *event = {next->token, from_id(next->id), next->handle, to_events(next->ready), 0};
    return 1;
  });
}

evix_timer_queue_t* evix_timer_queue_create(void) {
  return guarded(__func__, [] {
    return static_cast<evix_timer_queue_t*>(publish_shared(std::make_unique<SharedTimerQueue>()));
  });
}

int evix_timer_queue_destroy(evix_timer_queue_t* queue) {
  const char* function = __func__;
  return with_exclusive<SharedTimerQueue>(queue, function, [&](SharedTimerQueue& state) {
    if (state.running) return fail(evix::Errc::busy, function, "inside a callback");
    take_back<SharedTimerQueue>(queue);
    return 0;
  });
}

evix_id_t evix_timer_queue_add(evix_timer_queue_t* queue, uint64_t delay_ns,
                               evix_callback_fn callback, void* data) {
  const char* function = __func__;
  return with_exclusive<SharedTimerQueue>(
      queue, function, [&](SharedTimerQueue& state) -> evix_id_t {
        if (callback == nullptr) {
          fail_errno(EINVAL, function, "no callback");
          return 0;
        }
        return from_id(
            state.queue.add(to_duration(delay_ns), [callback, data] { callback(data); }));
      });
}

int evix_timer_queue_cancel(evix_timer_queue_t* queue, evix_id_t id) {
  return with_exclusive<SharedTimerQueue>(queue, __func__, [&](SharedTimerQueue& state) {
    return state.queue.cancel(to_named<TimerId>(id)) ? 1 : 0;
  });
}

int64_t evix_timer_queue_run(evix_timer_queue_t* queue) {
  const char* function = __func__;
  return with_exclusive<SharedTimerQueue>(queue, function, [&](SharedTimerQueue& state) -> int64_t {
    if (state.running) return fail(evix::Errc::busy, function, "inside a callback");
    struct Running {
      bool& flag;
      ~Running() { flag = false; }
    } const scope{state.running};
    state.running = true;
    return state.queue.run().count();
  });
}

int64_t evix_timer_queue_size(evix_timer_queue_t* queue) {
  return with_exclusive<SharedTimerQueue>(queue, __func__, [](SharedTimerQueue& state) {
    return static_cast<int64_t>(state.queue.size());
  });
}

}  // extern "C"
