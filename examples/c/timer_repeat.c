/* A repeating timer with another delay before its first call. */
#include <stdio.h>

#include "evix.h"

struct ticker {
  evix_timer_t* timer;
  int ticks;
};

static void on_tick(void* data) {
  struct ticker* ticker = data;
  ticker->ticks += 1;
  printf("tick %d%s\n", ticker->ticks, ticker->ticks == 1 ? ", after the first delay" : "");
  /* The last handle is gone, so the loop ends by itself. */
  if (ticker->ticks == 3) evix_timer_destroy(ticker->timer);
}

int main(void) {
  struct ticker ticker = {NULL, 0};
  evix_loop_t* loop = evix_loop_create(NULL);
  if (loop == NULL) return 1;
  ticker.timer = evix_timer_create(loop, 30, 10, on_tick, &ticker);
  if (ticker.timer == NULL) {
    fprintf(stderr, "%s\n", evix_last_error());
    return 1;
  }
  evix_loop_run(loop);
  puts("ended");
  evix_loop_destroy(loop);
  return 0;
}
