/* A loop hands slow work to another thread, goes on, and is told when it is done. */
#include <stdio.h>

#include "evix.h"

struct job {
  evix_loop_t* loop;
  evix_loop_thread_t* worker;
  int failed;
};

/* On the loop's thread again. */
static void on_written(void* data) {
  struct job* job = data;
  puts(job->failed ? "the file was not written" : "File written!");
  evix_loop_unref(job->loop); /* nothing is pending any more: the loop ends */
}

/* On the worker's thread: it may block. */
static void write_file(void* data) {
  struct job* job = data;
  FILE* file = tmpfile();
  job->failed = file == NULL || fputs("text\n", file) < 0 || fflush(file) != 0;
  if (file != NULL) fclose(file);
  evix_loop_post(job->loop, on_written, job);
}

static void start(void* data) {
  struct job* job = data;
  puts("Hello");
  evix_loop_ref(job->loop); /* work on another thread does not keep the loop running by itself */
  evix_loop_thread_post(job->worker, write_file, job);
  puts("Write requested");
}

int main(void) {
  struct job job = {NULL, NULL, 0};
  job.loop = evix_loop_create(NULL);
  job.worker = evix_loop_thread_create(NULL, NULL, NULL);
  if (job.loop == NULL || job.worker == NULL) {
    fprintf(stderr, "%s\n", evix_last_error());
    return 1;
  }
  evix_loop_add_callback(job.loop, start, &job);
  evix_loop_run(job.loop);
  evix_loop_thread_join(job.worker);
  evix_loop_destroy(job.loop);
  return 0;
}
