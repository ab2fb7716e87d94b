/* A server that accepts connections. Its three clients live in the same loop. */
#include <stdio.h>

#include "evix.h"

#define CLIENTS 3

static void on_accept(evix_listener_t* listener, int status, evix_stream_t* stream, void* data) {
  int* accepted = data;
  if (status != 0) {
    /* For example no more descriptors: told once, and accepting goes on. */
    fprintf(stderr, "%s\n", evix_last_error());
    return;
  }
  printf("accepted %d\n", ++*accepted);
  evix_stream_close(stream);
  if (*accepted == CLIENTS) evix_listener_close(listener);
}

static void on_connect(evix_stream_t* stream, int status, void* data) {
  (void)data;
  if (status != 0) fprintf(stderr, "%s\n", evix_last_error());
  evix_stream_close(stream);
}

int main(void) {
  char address[64];
  int accepted = 0;
  int client;
  evix_listener_t* listener;
  evix_loop_t* loop = evix_loop_create(NULL);
  if (loop == NULL) return 1;
  listener = evix_tcp_listen(loop, "127.0.0.1:0", NULL, on_accept, &accepted);
  if (listener == NULL) {
    fprintf(stderr, "%s\n", evix_last_error());
    return 1;
  }
  puts("listening");
  evix_listener_address(listener, address, sizeof address);
  for (client = 0; client < CLIENTS; ++client) {
    evix_tcp_connect(loop, address, NULL, on_connect, NULL);
  }
  evix_loop_run(loop);
  puts("ended");
  evix_loop_destroy(loop);
  return 0;
}
