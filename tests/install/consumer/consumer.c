#include <stdio.h>

#include "evix.h"

static void on_callback(void* data) { *(int*)data += 1; }

int main(void) {
  int calls = 0;
  int status;
  evix_loop_t* loop = evix_loop_create(NULL);
  if (loop == NULL) return 1;
  evix_loop_add_callback(loop, on_callback, &calls);
  status = evix_loop_run(loop);
  evix_loop_destroy(loop);
  if (calls == 1) printf("callback ran, run returned %d\n", status);
  return calls == 1 ? 0 : 1;
}
