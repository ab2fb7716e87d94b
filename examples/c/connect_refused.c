/* Nobody listens: the client is told the true error, not a broken pipe at its first write. */
#include <errno.h>
#include <stdio.h>

#include "evix.h"

static void on_connect(evix_stream_t* stream, int status, void* data) {
  (void)data;
  /* evix_last_error() has the address too: "connect 127.0.0.1:40000: connection refused". */
  puts(status == -ECONNREFUSED ? evix_error_text(status) : evix_last_error());
  evix_stream_close(stream);
}

int main(void) {
  char address[64];
  evix_listener_t* listener;
  evix_loop_t* loop = evix_loop_create(NULL);
  if (loop == NULL) return 1;

  /* A port that was free a moment ago. */
  listener = evix_tcp_listen(loop, "127.0.0.1:0", NULL, NULL, NULL);
  if (listener == NULL) {
    fprintf(stderr, "%s\n", evix_last_error());
    return 1;
  }
  evix_listener_address(listener, address, sizeof address);
  evix_listener_close(listener);

  puts("connecting");
  if (evix_tcp_connect(loop, address, NULL, on_connect, NULL) == NULL) return 1;
  evix_loop_run(loop);
  puts("ended");
  evix_loop_destroy(loop);
  return 0;
}
