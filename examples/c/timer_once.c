/* A one-shot timer. It frees itself when it fires, so nothing is left to clean up. */
#include <stdio.h>

#include "evix.h"

struct wait {
  evix_loop_t* loop;
  uint64_t started_ns;
};

static void on_timer(void* data) {
  struct wait* wait = data;
  uint64_t waited_ns;
  evix_loop_update_now(wait->loop);
  waited_ns = evix_loop_now_ns(wait->loop) - wait->started_ns;
  printf("fired once, %s\n", waited_ns >= 20u * MS_TO_NS ? "not early" : "early");
}

int main(void) {
  struct wait wait;
  wait.loop = evix_loop_create(NULL);
  if (wait.loop == NULL) return 1;
  wait.started_ns = evix_loop_now_ns(wait.loop);
  if (evix_timer_create(wait.loop, 20, 0, on_timer, &wait) == NULL) {
    fprintf(stderr, "%s\n", evix_last_error());
    return 1;
  }
  puts("waiting 20 ms");
  evix_loop_run(wait.loop);
  evix_loop_destroy(wait.loop);
  return 0;
}
