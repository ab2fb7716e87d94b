#include <string>
#include <vector>

#include "capi/call.hpp"
#include "loop/handle_record.hpp"

using namespace evix::detail::capi;

namespace evix::detail::capi {
namespace {

/** One entry of the list; `info` points into `words` and `state`. */
void describe(HandleState& state, HandleInfo& words, evix_handle_info_t& info) {
  HandleRecord& record = *state.handle().record();
  words = {record.kind,
           record.active,
           record.referenced,
           std::string(state.handle().name()),
           record.location,
           no_handle,
           {}};
  if (HandleStore* store = record.core->store(record.kind)) store->describe(record, words);
  info = {};
  info.size = sizeof info;
  info.handle = find(state.id) != nullptr ? state.pointer() : nullptr;
  info.kind = to_string(record.kind).data();  // views of literals
  info.name = words.name.c_str();
  info.waits_for = words.waits_for.c_str();
  info.file = state.file != nullptr ? state.file : "";
  info.line = state.line;
  info.active = words.active ? 1 : 0;
  info.referenced = words.referenced ? 1 : 0;
  info.fd = words.handle;
}

/** Null when it was freed by the callback for another one. */
HandleState* still_listed(const LoopState& loop, HandleState* wanted, Id id) noexcept {
  if (find(id) != nullptr) return wanted;
  // A stream that is closing has a stale id and is listed all the same.
  HandleState* state = loop.handles;
  while (state != nullptr && state != wanted) state = state->next;
  return state != nullptr && state->id == id ? state : nullptr;
}

}  // namespace
}  // namespace evix::detail::capi

extern "C" {

int evix_loop_each_handle(evix_loop_t* loop, evix_handle_info_fn callback, void* data) {
  const char* function = __func__;
  if (callback == nullptr) return fail_errno(EINVAL, function, "no callback");
  return with_loop(loop, function, [&](LoopState& state) {
    std::vector<std::pair<HandleState*, Id>> seen;
    for (HandleState* handle = state.handles; handle != nullptr; handle = handle->next) {
      seen.emplace_back(handle, handle->id);
    }
    const InCallback inside(state);
    int visited = 0;
    evix::HandleInfo words{};
    evix_handle_info_t info;
    // Oldest first; new ones are put at the head of the list.
    for (auto place = seen.rbegin(); place != seen.rend(); ++place) {
      HandleState* handle = still_listed(state, place->first, place->second);
      if (handle == nullptr) continue;
      describe(*handle, words, info);
      ++visited;
      callback(&info, data);
    }
    return visited;
  });
}

int evix_handle_set_data(void* handle, void* data) {
  return with_handle<HandleState>(handle, __func__, [&](HandleState& state) {
    state.data = data;
    return 0;
  });
}

void* evix_handle_data(void* handle) {
  return with_handle<HandleState>(handle, __func__, [](HandleState& state) { return state.data; });
}

int evix_handle_set_name(void* handle, const char* name) {
  return with_handle<HandleState>(handle, __func__, [&](HandleState& state) {
    state.handle().set_name(name != nullptr ? name : "");
    return 0;
  });
}

int evix_handle_name(void* handle, char* text, size_t size) {
  return with_handle<HandleState>(handle, __func__, [&](HandleState& state) {
    return write_text(state.handle().name(), text, size);
  });
}

evix_loop_t* evix_handle_loop(void* handle) {
  return with_handle<HandleState>(handle, __func__,
                                  [](HandleState& state) { return state.loop->pointer(); });
}

int evix_handle_ref(void* handle) {
  return with_handle<HandleState>(handle, __func__, [](HandleState& state) {
    state.handle().reference();
    return 0;
  });
}

int evix_handle_unref(void* handle) {
  return with_handle<HandleState>(handle, __func__, [](HandleState& state) {
    state.handle().unreference();
    return 0;
  });
}

int evix_handle_referenced(void* handle) {
  return with_handle<HandleState>(
      handle, __func__, [](HandleState& state) { return state.handle().referenced() ? 1 : 0; });
}

int evix_handle_active(void* handle) {
  return with_handle<HandleState>(
      handle, __func__, [](HandleState& state) { return state.handle().active() ? 1 : 0; });
}

}  // extern "C"
