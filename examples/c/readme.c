#include <evix.h>
#include <stdio.h>

static evix_loop_t* loop;
static evix_timer_t* tick;
static void on_tick(void* data) {
  (void)data;
  puts("tick");
}
static void on_limit(void* data) {
  (void)data;
  evix_timer_stop(loop, tick);
}

int main(void) {
  loop = evix_loop_create(NULL);
  tick = evix_timer_create(loop, 100, 100, on_tick, NULL);
  evix_timer_create(loop, 350, 0, on_limit, NULL);
  int code = evix_loop_run(loop);
  evix_loop_destroy(loop);
  return code;
}
