/* An echo server, and a client that checks a megabyte. evix finishes partial writes; the server
   reads on only when its copy has been sent, so a slow client cannot fill its memory. */
#include <stdio.h>
#include <string.h>

#include "evix.h"

#define SIZE 1048576

static char sent[SIZE];
static size_t received;
static int wrong;

static void on_request(evix_stream_t* peer, int status, const void* bytes, size_t size,
                       void* data) {
  (void)data;
  if (status != 0) fprintf(stderr, "server: %s\n", evix_last_error());
  if (status != 0 || size == 0) { /* an error, or the end */
    evix_stream_close_gracefully(peer, 0, 0, NULL, NULL);
  } else if (evix_stream_send_copy(peer, bytes, size) != 0) {
    fprintf(stderr, "server: %s\n", evix_last_error());
    evix_stream_close(peer);
  }
}

static void on_water_mark(evix_stream_t* peer, int mark, void* data) {
  (void)data;
  if (mark == EVIX_WATER_FULL) {
    evix_stream_receive_stop(peer);
  } else {
    evix_stream_receive_start(peer, on_request, NULL);
  }
}

static void on_accept(evix_listener_t* listener, int status, evix_stream_t* peer, void* data) {
  (void)data;
  evix_listener_close(listener); /* one connection is enough here */
  if (status != 0) return;
  evix_stream_set_water_marks(peer, 0, 0, 0, on_water_mark, NULL);
  evix_stream_receive_start(peer, on_request, NULL);
}

static void on_reply(evix_stream_t* client, int status, const void* bytes, size_t size,
                     void* data) {
  (void)data;
  if (status != 0) fprintf(stderr, "client: %s\n", evix_last_error());
  if (status != 0 || size == 0) {
    printf("received %lu bytes, %s\n", (unsigned long)received,
           wrong == 0 && received == SIZE ? "all as sent" : "not as sent");
    evix_stream_close(client);
    return;
  }
  if (size > SIZE - received || memcmp(sent + received, bytes, size) != 0) wrong = 1;
  received += size;
}

static void on_sent(evix_stream_t* client, int status, void* data) {
  (void)data;
  if (status == 0) printf("sent %d bytes\n", SIZE);
  evix_stream_shutdown(client, NULL, NULL);
}

static void on_connect(evix_stream_t* client, int status, void* data) {
  (void)data;
  if (status != 0) return;
  puts("connected");
  evix_stream_receive_start(client, on_reply, NULL);
  evix_stream_send(client, sent, SIZE, on_sent, NULL);
}

int main(void) {
  char address[64];
  size_t i;
  evix_loop_t* loop = evix_loop_create(NULL);
  evix_listener_t* listener = evix_tcp_listen(loop, "127.0.0.1:0", NULL, on_accept, NULL);
  if (listener == NULL) {
    fprintf(stderr, "%s\n", evix_last_error());
    return 1;
  }
  for (i = 0; i < SIZE; ++i) sent[i] = (char)(i % 251);
  puts("listening");
  evix_listener_address(listener, address, sizeof address);
  evix_tcp_connect(loop, address, NULL, on_connect, NULL);
  evix_loop_run(loop);
  puts("ended");
  evix_loop_destroy(loop);
  return 0;
}
