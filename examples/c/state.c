/* Where the state of a callback lives: in a struct around the handle, in the data of the loop, or
   in the data of the handle. */
#include <stdio.h>

#include "evix.h"

/* The timer comes first, so a pointer to the struct is all that the callback needs. */
struct counter {
  evix_timer_t* timer;
  evix_loop_t* loop;
  int count;
};

static void on_tick(void* data) {
  struct counter* counter = data;
  counter->count += 1;
  if (counter->count < 3) return;
  printf("the counter with its timer inside: %d\n", counter->count);
  printf("data of the loop: %s\n", (const char*)evix_loop_data(counter->loop));
  printf("data of the timer: %s\n", (const char*)evix_handle_data(counter->timer));
  evix_timer_destroy(counter->timer);
}

int main(void) {
  static char shared[] = "shared";
  static char mine[] = "mine";
  struct counter counter = {NULL, NULL, 0};
  counter.loop = evix_loop_create(NULL);
  if (counter.loop == NULL) return 1;
  counter.timer = evix_timer_create(counter.loop, 1, 1, on_tick, &counter);
  evix_loop_set_data(counter.loop, shared);
  evix_handle_set_data(counter.timer, mine);
  evix_loop_run(counter.loop);
  evix_loop_destroy(counter.loop);
  return 0;
}
