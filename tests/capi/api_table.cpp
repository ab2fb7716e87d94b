#include "capi/api_table.hpp"

namespace {

void plain(void*) {}
void on_io(evix_io_t*, int, void*) {}
void on_signal(evix_signal_t*, int, void*) {}
void on_accept(evix_listener_t*, int, evix_stream_t*, void*) {}
void on_stream(evix_stream_t*, int, void*) {}
void on_receive(evix_stream_t*, int, const void*, size_t, void*) {}
void on_mark(evix_stream_t*, int, void*) {}
void on_handle(const evix_handle_info_t*, void*) {}

char text[64];
char byte;
evix_poll_event_t event;

/** Pointers and counts in one: null is a failure, and so is a negative number. */
template <class T>
std::int64_t as_result(T* pointer) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer) != 0);
}
std::int64_t as_result(int value) { return value; }
std::int64_t as_result(std::int64_t value) { return value; }
std::int64_t as_result(std::uint64_t value) { return value != 0 ? 1 : 0; }

}  // namespace

// Handle h, loop l. T is the type that the function is given.
#define CALL(name, kind, any, T, ...)                              \
  ApiCall {                                                        \
    #name, Needs::kind, any, [](void* handle, evix_loop_t* loop) { \
      [[maybe_unused]] auto* h = static_cast<T*>(handle);          \
      [[maybe_unused]] auto* l = loop;                             \
      return as_result(name(__VA_ARGS__));                         \
    }                                                              \
  }
#define LOOP(name, ...) CALL(name, loop, false, evix_loop_t, __VA_ARGS__)
#define LOOP_ANY_THREAD(name, ...) CALL(name, loop, true, evix_loop_t, __VA_ARGS__)
#define TIMER(name, ...) CALL(name, timer, false, evix_timer_t, __VA_ARGS__)
#define IO(name, ...) CALL(name, io, false, evix_io_t, __VA_ARGS__)
#define LISTENER(name, ...) CALL(name, listener, false, evix_listener_t, __VA_ARGS__)
#define STREAM(name, ...) CALL(name, stream, false, evix_stream_t, __VA_ARGS__)
#define HANDLE(name, ...) CALL(name, any_handle, false, void, __VA_ARGS__)
#define POSTER(name, ...) CALL(name, poster, true, evix_poster_t, __VA_ARGS__)
#define THREAD(name, ...) CALL(name, loop_thread, true, evix_loop_thread_t, __VA_ARGS__)
#define POLLER(name, ...) CALL(name, poller, true, evix_poller_t, __VA_ARGS__)
#define QUEUE(name, ...) CALL(name, timer_queue, true, evix_timer_queue_t, __VA_ARGS__)

const std::vector<ApiCall>& api_calls() {
  static evix_loop_counters_t counters{};
  counters.size = sizeof counters;
  static const std::vector<ApiCall> calls = {
      LOOP(evix_backend_ready, h, 0, EVIX_IO_READ),
      LOOP(evix_loop_set_backend_data, h, nullptr),
      LOOP(evix_loop_backend_data, h),
      LOOP(evix_loop_destroy, h),
      LOOP(evix_loop_run, h),
      LOOP(evix_loop_run_once, h, 0),
      LOOP(evix_loop_run_ready, h),
      LOOP(evix_loop_run_for, h, 0),
      LOOP_ANY_THREAD(evix_loop_stop, h),
      LOOP_ANY_THREAD(evix_loop_stop_all, h),
      LOOP(evix_loop_running, h),
      LOOP(evix_loop_alive, h),
      LOOP_ANY_THREAD(evix_loop_add_callback, h, plain, nullptr),
      LOOP_ANY_THREAD(evix_loop_post, h, plain, nullptr),
      LOOP_ANY_THREAD(evix_loop_wake, h),
      LOOP(evix_loop_ref, h),
      LOOP(evix_loop_unref, h),
      LOOP(evix_loop_now_ns, h),
      LOOP(evix_loop_update_now, h),
      LOOP(evix_loop_backend_name, h),
      LOOP(evix_loop_backend_report, h, text, sizeof text),
      LOOP(evix_loop_set_data, h, nullptr),
      LOOP(evix_loop_data, h),
      LOOP(evix_loop_set_wait_hooks, h, plain, plain, nullptr),
      LOOP(evix_loop_after_fork, h),
      LOOP(evix_loop_rebuild, h),
      LOOP_ANY_THREAD(evix_loop_counters, h, &counters),
      LOOP(evix_loop_each_handle, h, on_handle, nullptr),
      LOOP(evix_timer_create, h, 1, 0, plain, nullptr),
      LOOP(evix_timer_create_ns, h, 1, 0, plain, nullptr),
      LOOP(evix_timer_new, h),
      LOOP(evix_io_create, h, 0, EVIX_IO_READ, plain, nullptr),
      LOOP(evix_io_create_ex, h, 0, EVIX_IO_READ, on_io, nullptr),
      LOOP(evix_signal_create, h, 10, on_signal, nullptr),
      LOOP(evix_signal_create_once, h, 10, on_signal, nullptr),
      LOOP(evix_waker_create, h, plain, nullptr),
      LOOP_ANY_THREAD(evix_poster_create, h),
      LOOP(evix_tcp_listen, h, "127.0.0.1:0", nullptr, on_accept, nullptr),
      LOOP(evix_tcp_connect, h, "127.0.0.1:1", nullptr, on_stream, nullptr),
      LOOP(evix_tcp_adopt, h, 0),

      HANDLE(evix_handle_set_data, h, nullptr),
      HANDLE(evix_handle_data, h),
      HANDLE(evix_handle_set_name, h, "name"),
      HANDLE(evix_handle_name, h, text, sizeof text),
      HANDLE(evix_handle_loop, h),
      HANDLE(evix_handle_ref, h),
      HANDLE(evix_handle_unref, h),
      HANDLE(evix_handle_referenced, h),
      HANDLE(evix_handle_active, h),

      TIMER(evix_timer_stop, l, h),
      TIMER(evix_timer_destroy, h),
      TIMER(evix_timer_start_ns, h, 1, 0, EVIX_MISSED_SKIP, plain, nullptr),
      TIMER(evix_timer_start_at_ns, h, 1, plain, nullptr),
      TIMER(evix_timer_again, h),
      TIMER(evix_timer_remaining_ns, h),
      TIMER(evix_timer_missed, h),
      IO(evix_io_stop, l, h),
      IO(evix_io_set_events, h, EVIX_IO_READ),
      IO(evix_io_fd, h),
      CALL(evix_signal_destroy, signal, false, evix_signal_t, h),
      CALL(evix_waker_wake, waker, true, evix_waker_t, h),
      CALL(evix_waker_destroy, waker, false, evix_waker_t, h),

      LISTENER(evix_listener_accept_start, h, on_accept, nullptr),
      LISTENER(evix_listener_accept, h, on_accept, nullptr),
      LISTENER(evix_listener_accept_stop, h),
      LISTENER(evix_listener_address, h, text, sizeof text),
      LISTENER(evix_listener_fd, h),
      LISTENER(evix_listener_close, h),
      STREAM(evix_stream_receive, h, on_receive, nullptr),
      STREAM(evix_stream_receive_start, h, on_receive, nullptr),
      STREAM(evix_stream_receive_stop, h),
      STREAM(evix_stream_receive_into, h, &byte, 1, on_receive, nullptr),
      STREAM(evix_stream_send, h, &byte, 1, on_stream, nullptr),
      STREAM(evix_stream_send_copy, h, &byte, 1),
      STREAM(evix_stream_try_send, h, &byte, 1),
      STREAM(evix_stream_shutdown, h, on_stream, nullptr),
      STREAM(evix_stream_set_water_marks, h, 1, 2, 3, on_mark, nullptr),
      STREAM(evix_stream_send_queue_bytes, h),
      STREAM(evix_stream_set_receive_timeout_ns, h, 1),
      STREAM(evix_stream_set_send_timeout_ns, h, 1),
      STREAM(evix_stream_set_no_delay, h, 1),
      STREAM(evix_stream_set_keep_alive, h, 1),
      STREAM(evix_stream_local_address, h, text, sizeof text),
      STREAM(evix_stream_peer_address, h, text, sizeof text),
      STREAM(evix_stream_fd, h),
      STREAM(evix_stream_connected, h),
      STREAM(evix_stream_close, h),
      STREAM(evix_stream_close_then, h, plain, nullptr),
      STREAM(evix_stream_close_gracefully, h, 0, 0, plain, nullptr),
      STREAM(evix_stream_abort, h),

      POSTER(evix_poster_post, h, plain, nullptr),
      POSTER(evix_poster_wake, h),
      POSTER(evix_poster_destroy, h),
      THREAD(evix_loop_thread_loop, h),
      THREAD(evix_loop_thread_post, h, plain, nullptr),
      THREAD(evix_loop_thread_stop, h),
      THREAD(evix_loop_thread_join, h),
      POLLER(evix_poller_destroy, h),
      POLLER(evix_poller_add, h, 0, EVIX_IO_READ, EVIX_TRIGGER_LEVEL, 1, nullptr),
      POLLER(evix_poller_modify, h, 1, EVIX_IO_READ, EVIX_TRIGGER_LEVEL),
      POLLER(evix_poller_set_token, h, 1, 1),
      POLLER(evix_poller_enable, h, 1),
      POLLER(evix_poller_disable, h, 1),
      POLLER(evix_poller_remove, h, 1),
      POLLER(evix_poller_commit, h),
      POLLER(evix_poller_failure, h, 0, &event),
      POLLER(evix_poller_wait, h, 0),
      POLLER(evix_poller_next, h, &event),
      QUEUE(evix_timer_queue_destroy, h),
      QUEUE(evix_timer_queue_add, h, 1, plain, nullptr),
      QUEUE(evix_timer_queue_cancel, h, 1),
      QUEUE(evix_timer_queue_run, h),
      QUEUE(evix_timer_queue_size, h),
  };
  return calls;
}
