/* A signal is an event of the loop: the callback may do anything, unlike a signal handler. */
#include <signal.h>
#include <stdio.h>

#include "evix.h"

static void on_signal(evix_signal_t* watcher, int number, void* data) {
  (void)data;
  printf("caught %s inside the loop\n", number == SIGTERM ? "SIGTERM" : "another signal");
  /* With its last watcher the signal has its earlier disposition back. */
  evix_signal_destroy(watcher);
}

static void send_signal(void* data) {
  (void)data;
  raise(SIGTERM);
}

int main(void) {
  evix_loop_t* loop = evix_loop_create(NULL);
  if (loop == NULL) return 1;
  if (evix_signal_create(loop, SIGTERM, on_signal, NULL) == NULL) {
    fprintf(stderr, "%s\n", evix_last_error());
    return 1;
  }
  puts("waiting for a signal");
  evix_timer_create(loop, 10, 0, send_signal, NULL);
  evix_loop_run(loop);
  puts("ended");
  evix_loop_destroy(loop);
  return 0;
}
