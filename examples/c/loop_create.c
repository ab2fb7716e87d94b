/* A loop is made, run and destroyed by hand; a program may have as many as it likes. */
#include <stdio.h>

#include "evix.h"

int main(void) {
  /* NULL: evix chooses. evix_epoll_backend(), evix_poll_backend() ... choose one. */
  evix_loop_t* loop = evix_loop_create(NULL);
  if (loop == NULL) {
    fprintf(stderr, "%s\n", evix_last_error());
    return 1;
  }
  puts("a loop was created");

  printf("it ran and ended: %d\n", evix_loop_run(loop));

  if (evix_loop_destroy(loop) == 0) puts("it was destroyed");

  /* The pointer is stale now; using it is an error, not a crash. */
  return evix_loop_run(loop) == EVIX_ESTALE ? 0 : 1;
}
