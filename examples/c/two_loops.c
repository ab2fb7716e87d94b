/* Two loops, each on a thread of its own; they share nothing. */
#include <stdio.h>

#include "evix.h"

struct worker {
  evix_timer_t* timer;
  int ticks;
};

static void on_tick(void* data) {
  struct worker* worker = data;
  worker->ticks += 1;
  if (worker->ticks == 3) evix_timer_destroy(worker->timer);
}

/* Runs first on the new thread. */
static void begin(evix_loop_t* loop, void* data) {
  struct worker* worker = data;
  worker->timer = evix_timer_create(loop, 5, 5, on_tick, worker);
}

int main(void) {
  struct worker workers[2] = {{NULL, 0}, {NULL, 0}};
  evix_loop_thread_t* threads[2];
  int i;
  for (i = 0; i < 2; ++i) {
    threads[i] = evix_loop_thread_create(NULL, begin, &workers[i]);
    if (threads[i] == NULL) {
      fprintf(stderr, "%s\n", evix_last_error());
      return 1;
    }
  }
  for (i = 0; i < 2; ++i) {
    evix_loop_thread_join(threads[i]); /* waits until that loop has nothing left to do */
    printf("loop %d: %d ticks\n", i + 1, workers[i].ticks);
  }
  return 0;
}
