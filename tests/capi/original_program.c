/* A program as users of the original API write it: nothing here is evix's own. */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "c_programs.h"
#include "evix.h"
#include "evix_epoll.h"
#include "evix_kqueue.h"

#define CHECK(condition) \
  if (!(condition)) return __LINE__

typedef struct {
  evix_loop_t* loop;
  evix_timer_t* tick;
  evix_io_t* io;
  int pipe[2];
  int ticks;
  char* log;
} app_t;

static void note(app_t* app, const char* letter) { strcat(app->log, letter); }

static void on_immediate(void* data) { note(data, "i"); }

static void on_nested(void* data) { note(data, "n"); }

static void on_start(void* data) {
  app_t* app = data;
  note(app, "s");
  evix_loop_add_callback(app->loop, on_nested, app);
}

static void on_once(void* data) {
  app_t* app = data;
  note(app, "o");
  if (write(app->pipe[1], "x", 1) != 1) note(app, "!");
}

static void on_readable(void* data) {
  app_t* app = data;
  char byte;
  note(app, "r");
  if (read(app->pipe[0], &byte, 1) != 1) note(app, "!");
}

static void on_writable(void* data) {
  app_t* app = data;
  note(app, "w");
  evix_io_stop(app->loop, app->io);
}

static void on_tick(void* data) {
  app_t* app = data;
  note(app, "t");
  if (++app->ticks == 3) {
    evix_timer_stop(app->loop, app->tick);
    evix_timer_destroy(app->tick);
  }
}

static void on_never(void* data) { note(data, "!"); }

static void on_stop(void* data) {
  app_t* app = data;
  note(app, "S");
  evix_loop_stop(app->loop);
}

int original_program(char* log) {
  app_t app;
  evix_timer_t* stopped;
  memset(&app, 0, sizeof app);
  app.log = log;
  log[0] = '\0';
  CHECK(pipe(app.pipe) == 0);
  app.loop = evix_loop_create(NULL);
  CHECK(app.loop != NULL);

  /* Nothing to do: the natural end. */
  CHECK(evix_loop_run(app.loop) == 0);
  CHECK(strcmp(log, "") == 0);

  /* Immediates first in first out, before a timer of zero delay, nested ones too. */
  evix_timer_create(app.loop, 0, 0, on_once, &app);
  evix_loop_add_callback(app.loop, on_start, &app);
  evix_loop_add_callback(app.loop, on_immediate, &app);
  CHECK(evix_io_create(app.loop, app.pipe[0], EVIX_IO_READ | EVIX_IO_ONESHOT, on_readable, &app) !=
        NULL);
  CHECK(evix_loop_run(app.loop) == 0);
  CHECK(strcmp(log, "sinor") == 0);

  /* A persistent watcher until it is stopped, a repeating timer, a stopped timer. */
  log[0] = '\0';
  app.io = evix_io_create(app.loop, app.pipe[1], EVIX_IO_WRITE, on_writable, &app);
  app.tick = evix_timer_create(app.loop, 5, 1, on_tick, &app);
  stopped = evix_timer_create(app.loop, 1, 0, on_never, &app);
  evix_timer_stop(app.loop, stopped);
  evix_timer_destroy(stopped);
  CHECK(evix_loop_run(app.loop) == 0);
  CHECK(strcmp(log, "wttt") == 0);

  /* A stop from before run is forgotten; one inside ends it early. */
  log[0] = '\0';
  evix_loop_stop(app.loop);
  evix_timer_create(app.loop, 1, 0, on_stop, &app);
  evix_timer_create(app.loop, 3600 * SEC_TO_MS, 0, on_never, &app);
  CHECK(evix_loop_run(app.loop) == 0);
  CHECK(strcmp(log, "S") == 0);

  evix_loop_destroy(app.loop);
  close(app.pipe[0]);
  close(app.pipe[1]);
  CHECK(MS_TO_NS == 1000000);
  return 0;
}
