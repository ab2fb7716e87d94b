#ifndef EVIX_TESTS_CAPI_C_PROGRAMS_H
#define EVIX_TESTS_CAPI_C_PROGRAMS_H

/* Programs in C99, written for the original API. 0, or the line of what went wrong. */

#ifdef __cplusplus
extern "C" {
#endif

/* Immediates, timers, watchers, stop: in the order of the turn. `log` gets one letter for each. */
int original_program(char* log);
/* The same calls over a backend of five functions. */
struct backend_counts {
  int init, destroy, poll, io_add, io_del;
  int last_timeout_ms;
  int foreign_adds;  /* of evix's own descriptor */
  int add_events[8]; /* of the first calls, in order */
};
int backend_program(struct backend_counts* counts);
/* Uses every type and constant once. */
int names_program(void);

#ifdef __cplusplus
}
#endif

#endif
