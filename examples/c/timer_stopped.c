/* A repeating timer that another timer stops. */
#include <stdio.h>

#include "evix.h"

struct program {
  evix_loop_t* loop;
  evix_timer_t* ticker;
  int ticks;
};

static void on_tick(void* data) {
  struct program* program = data;
  if (program->ticks++ == 0) puts("first tick");
}

static void on_limit(void* data) {
  struct program* program = data;
  evix_timer_stop(program->loop, program->ticker);
  evix_timer_destroy(program->ticker);
  puts("stopped by the other timer");
}

int main(void) {
  struct program program = {NULL, NULL, 0};
  program.loop = evix_loop_create(NULL);
  if (program.loop == NULL) return 1;
  program.ticker = evix_timer_create(program.loop, 10, 10, on_tick, &program);
  evix_timer_create(program.loop, 55, 0, on_limit, &program);
  evix_loop_run(program.loop);
  puts("ended");
  evix_loop_destroy(program.loop);
  return 0;
}
