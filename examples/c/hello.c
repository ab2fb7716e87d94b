/* Nothing to wait for: a loop ends at once. */
#include <stdio.h>

#include "evix.h"

int main(void) {
  evix_loop_t* loop = evix_loop_create(NULL);
  if (loop == NULL) {
    fprintf(stderr, "%s\n", evix_last_error());
    return 1;
  }
  puts("hello, world");
  printf("the empty loop ended at once: %d\n", evix_loop_run(loop));
  evix_loop_destroy(loop);
  return 0;
}
