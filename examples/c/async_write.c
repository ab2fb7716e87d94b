/* Asynchronous writing with back-pressure: the producer stops when the send queue is full and goes
   on when it has drained, however slowly the reader reads. */
#include <stdio.h>

#include "evix.h"

#define CHUNK 16384
#define CHUNKS 512

struct producer {
  int chunks_left;
  int paused;
  int told; /* how many of the two events have been printed */
};

static void produce(evix_stream_t* stream, struct producer* producer) {
  static const char chunk[CHUNK];
  while (!producer->paused && producer->chunks_left > 0) {
    if (evix_stream_send_copy(stream, chunk, sizeof chunk) != 0) {
      fprintf(stderr, "%s\n", evix_last_error());
      return;
    }
    producer->chunks_left -= 1;
  }
  if (producer->chunks_left == 0) evix_stream_close_gracefully(stream, 0, 0, NULL, NULL);
}

static void on_water_mark(evix_stream_t* stream, int mark, void* data) {
  struct producer* producer = data;
  producer->paused = mark == EVIX_WATER_FULL;
  if (producer->told < 2) {
    puts(producer->paused ? "queue full: pausing" : "queue drained: going on");
    producer->told += 1;
  }
  if (!producer->paused) produce(stream, producer);
}

static void on_accept(evix_listener_t* listener, int status, evix_stream_t* stream, void* data) {
  evix_listener_close(listener);
  if (status != 0) return;
  evix_stream_set_water_marks(stream, 4 * CHUNK, 16 * CHUNK, 0, on_water_mark, data);
  produce(stream, data);
}

static void on_bytes(evix_stream_t* stream, int status, const void* bytes, size_t size,
                     void* data) {
  long* received = data;
  (void)bytes;
  *received += (long)size;
  if (status == 0 && size != 0) return;
  printf("all %ld bytes arrived\n", *received);
  evix_stream_close(stream);
}

static void on_connect(evix_stream_t* stream, int status, void* data) {
  if (status == 0) evix_stream_receive_start(stream, on_bytes, data);
}

int main(void) {
  struct producer producer = {CHUNKS, 0, 0};
  long received = 0;
  char address[64];
  evix_loop_t* loop = evix_loop_create(NULL);
  evix_listener_t* listener = evix_tcp_listen(loop, "127.0.0.1:0", NULL, on_accept, &producer);
  if (listener == NULL) {
    fprintf(stderr, "%s\n", evix_last_error());
    return 1;
  }
  evix_listener_address(listener, address, sizeof address);
  evix_tcp_connect(loop, address, NULL, on_connect, &received);
  evix_loop_run(loop);
  evix_loop_destroy(loop);
  return 0;
}
