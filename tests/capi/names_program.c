/* C99 with -pedantic-errors: every type can be declared, every constant is a constant expression.
 */
#define EVIX_LOCATIONS
#include "c_programs.h"
#include "evix.h"

struct every_type {
  evix_loop_t* loop;
  evix_timer_t* timer;
  evix_io_t* io;
  evix_signal_t* signal;
  evix_waker_t* waker;
  evix_listener_t* listener;
  evix_stream_t* stream;
  evix_poster_t* poster;
  evix_loop_thread_t* loop_thread;
  evix_poller_t* poller;
  evix_timer_queue_t* timer_queue;
  evix_id_t id;
  evix_backend_t backend;
  evix_loop_options_t loop_options;
  evix_loop_counters_t loop_counters;
  evix_listen_options_t listen_options;
  evix_connect_options_t connect_options;
  evix_handle_info_t handle_info;
  evix_poll_event_t poll_event;
  evix_callback_fn callback;
  evix_io_fn on_io;
  evix_signal_fn on_signal;
  evix_accept_fn on_accept;
  evix_stream_fn on_stream;
  evix_receive_fn on_receive;
  evix_water_mark_fn on_water_mark;
  evix_handle_info_fn on_handle;
  evix_loop_begin_fn on_begin;
};

static const int values[] = {EVIX_IO_READ,  EVIX_IO_WRITE,  EVIX_IO_ONESHOT,     EVIX_IO_PRIORITY,
                             EVIX_IO_ERROR, EVIX_IO_HANGUP, EVIX_IO_READ_CLOSED, EVIX_IO_INVALID};

int names_program(void) {
  struct every_type all = {0};
  int sum = 0;
  unsigned i;
  evix_loop_t* (*create)(evix_backend_t*) = evix_loop_create; /* a function, not a macro */
  for (i = 0; i < sizeof values / sizeof values[0]; ++i) sum += values[i];
  if (sum != 255) return __LINE__;
  if (EVIX_IO_READ != 1 || EVIX_IO_WRITE != 2 || EVIX_IO_ONESHOT != 4) return __LINE__;
  if (SEC_TO_MS != 1000 || MS_TO_NS != 1000000) return __LINE__;
  if (evix_version() != EVIX_VERSION) return __LINE__;
  all.loop = create(0);
  if (all.loop == 0) return __LINE__;
  all.timer = evix_timer_new(all.loop);
  if (evix_timer_destroy(all.timer) != 0) return __LINE__;
  return evix_loop_destroy(all.loop) == 0 ? 0 : __LINE__;
}
