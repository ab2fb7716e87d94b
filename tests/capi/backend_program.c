/* A program that brings its own backend, over poll(2). */
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "c_programs.h"
#include "evix.h"

#define CHECK(condition) \
  if (!(condition)) return __LINE__
#define FDS_MAX 16

typedef struct {
  struct pollfd fds[FDS_MAX];
  int count;
} set_t;

static struct backend_counts* counts;
static set_t set;
static int own[2]; /* descriptors of this program; any other is evix's */

static int is_own(int fd) { return fd == own[0] || fd == own[1]; }

static int my_init(evix_loop_t* loop) {
  counts->init++;
  set.count = 0;
  return evix_loop_set_backend_data(loop, &set);
}

static void my_destroy(evix_loop_t* loop) {
  if (evix_loop_backend_data(loop) == &set) counts->destroy++;
}

static int my_poll(evix_loop_t* loop, int timeout_ms) {
  set_t* mine = evix_loop_backend_data(loop);
  int ready, i;
  counts->poll++;
  counts->last_timeout_ms = timeout_ms;
  ready = poll(mine->fds, (nfds_t)mine->count, timeout_ms);
  if (ready < 0) return -1;
  for (i = 0; i < mine->count; ++i) {
    int events = 0;
    if ((mine->fds[i].revents & (POLLIN | POLLHUP)) != 0) events |= EVIX_IO_READ;
    if ((mine->fds[i].revents & POLLOUT) != 0) events |= EVIX_IO_WRITE;
    if (events != 0) evix_backend_ready(loop, mine->fds[i].fd, events);
  }
  return 0;
}

static int my_io_add(evix_loop_t* loop, int fd, int events) {
  set_t* mine = evix_loop_backend_data(loop);
  struct pollfd* entry = &mine->fds[mine->count];
  if (!is_own(fd)) {
    counts->foreign_adds++;
  } else if (counts->io_add < 8) {
    counts->add_events[counts->io_add++] = events;
  }
  if (mine->count == FDS_MAX) return -1;
  entry->fd = fd;
  entry->events = (short)(((events & EVIX_IO_READ) != 0 ? POLLIN : 0) |
                          ((events & EVIX_IO_WRITE) != 0 ? POLLOUT : 0));
  entry->revents = 0;
  mine->count++;
  return 0;
}

static int my_io_del(evix_loop_t* loop, int fd) {
  set_t* mine = evix_loop_backend_data(loop);
  int i = 0;
  if (is_own(fd)) counts->io_del++;
  while (i < mine->count && mine->fds[i].fd != fd) ++i;
  if (i == mine->count) return -1;
  mine->fds[i] = mine->fds[--mine->count];
  return 0;
}

typedef struct {
  evix_loop_t* loop;
  evix_io_t* io;
  int reads, writes;
  int fd;
} app_t;

static void on_readable(void* data) {
  app_t* app = data;
  char byte;
  if (read(app->fd, &byte, 1) == 1) app->reads++;
  if (app->reads == 2) evix_io_stop(app->loop, app->io);
}

static void on_writable(void* data) { ((app_t*)data)->writes++; }

static void on_write_time(void* data) {
  if (write(*(int*)data, "x", 1) != 1) _exit(1);
}

int backend_program(struct backend_counts* result) {
  evix_backend_t backend = {my_init, my_destroy, my_poll, my_io_add, my_io_del};
  app_t app;
  int* fds = own;
  memset(&app, 0, sizeof app);
  memset(result, 0, sizeof *result);
  counts = result;
  CHECK(pipe(fds) == 0);
  app.fd = fds[0];
  app.loop = evix_loop_create(&backend);
  CHECK(app.loop != NULL);
  CHECK(counts->init == 1);

  /* One persistent reader: added once, however often it fires. */
  app.io = evix_io_create(app.loop, fds[0], EVIX_IO_READ, on_readable, &app);
  CHECK(app.io != NULL);
  evix_timer_create(app.loop, 1, 0, on_write_time, &fds[1]);
  evix_timer_create(app.loop, 2, 0, on_write_time, &fds[1]);
  CHECK(evix_loop_run(app.loop) == 0);
  CHECK(app.reads == 2);
  CHECK(counts->io_add == 1 && counts->io_del == 1);
  CHECK(counts->add_events[0] == EVIX_IO_READ);

  /* A one-shot writer: added, fired, removed. */
  CHECK(evix_io_create(app.loop, fds[1], EVIX_IO_WRITE | EVIX_IO_ONESHOT, on_writable, &app) !=
        NULL);
  CHECK(evix_loop_run(app.loop) == 0);
  CHECK(app.writes == 1);
  CHECK(counts->io_add == 2 && counts->io_del == 2);
  CHECK(counts->add_events[1] == EVIX_IO_WRITE);

  CHECK(counts->destroy == 0);
  evix_loop_destroy(app.loop);
  CHECK(counts->init == 1 && counts->destroy == 1);
  close(fds[0]);
  close(fds[1]);
  return 0;
}
