#ifndef EVIX_H
#define EVIX_H

/** @file
 * evix for C: one header, C99 and C++, no header of the operating system.
 *
 * Conventions, by number, as the functions below refer to them:
 *
 *  1. Names. Every function is evix_THING_VERB and takes the thing first; callbacks come last, with
 *     their `data`. Times end in their unit. A delay or period is unsigned, EVIX_NEVER is never; a
 *     timeout is signed, and negative (EVIX_FOREVER) is no limit.
 *  2. Ownership. What a _create, _new, _listen, _connect or _adopt function returns is yours until
 *     you pass it to its _destroy or _close (an evix_io_t: its _stop). A one-shot timer or watcher
 *     frees itself when it fires. evix_loop_destroy() frees whatever belongs to the loop. Strings
 *     and structures that you pass are copied; bytes to send are not, unless the name says so.
 *  3. Stale handles. The pointers are no addresses: they carry kind, slot and generation, and every
 *     function checks them. One that was freed, has fired, belonged to a destroyed loop, was never
 *     valid or is NULL gives EVIX_ESTALE (a pointer: NULL; nothing else happens). A handle freed
 *     twice is the same. Never dereference one.
 *  4. Errors. A function that returns int returns 0 (or a count, where it says so) or a negative
 *     code: one of EVIX_E... or a negative errno (-ECONNREFUSED; <errno.h> has the names). One that
 *     returns a pointer returns NULL. evix_last_error() has the words, on the calling thread.
 *     Errors never abort, and no C++ exception leaves a function. Out of memory is -ENOMEM.
 *  5. Threads. A loop and its handles belong to the thread that runs the loop; while nobody runs
 *     it, to any one thread at a time. Other calls give EVIX_EWRONGTHREAD. From any thread, at any
 *     time: evix_loop_post(), evix_loop_add_callback(), evix_loop_wake(), evix_loop_stop(),
 *     evix_loop_stop_all(), evix_loop_counters(), evix_waker_wake(), everything of evix_poster_t,
 *     and evix_loop_thread_post(), _stop(), _loop().
 *  6. Callbacks run on the loop's thread, inside a run function, and never inside the function that
 *     started the operation. In any callback every handle may be stopped, restarted or freed, its
 *     own included, and the loop may be stopped or run again; it may not be destroyed (EVIX_EBUSY).
 *     A `status` is 0 or a code as in 4, and evix_last_error() then has its words. A callback must
 *     not leave by longjmp or a C++ exception.
 *  7. Structures that may grow begin with `size`: set it to sizeof. Fields that are zero have their
 *     defaults.
 *  8. Text that a function writes into your buffer is cut to fit and always ends in NUL; the result
 *     is the whole length without it, as snprintf(3) has it.
 */

#include <stddef.h>
#include <stdint.h>

#ifndef EVIX_API
#if defined(__GNUC__)
#define EVIX_API __attribute__((visibility("default")))
#else
#define EVIX_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define EVIX_VERSION_MAJOR 0
#define EVIX_VERSION_MINOR 1
#define EVIX_VERSION_PATCH 0
/** One number that grows: 102 is 0.1.2. */
#define EVIX_VERSION (EVIX_VERSION_MAJOR * 10000 + EVIX_VERSION_MINOR * 100 + EVIX_VERSION_PATCH)

/** The version of the library that is linked, as EVIX_VERSION writes it. */
EVIX_API int evix_version(void);
/** The same as "0.1.0". */
EVIX_API const char* evix_version_text(void);

#define SEC_TO_MS 1000
#define MS_TO_NS 1000000

/** As a timeout: no limit. */
#define EVIX_FOREVER (-1)
/** As a delay or period: never. */
#define EVIX_NEVER UINT64_MAX

/** What can go wrong that errno(3) has no number for; functions return these, statuses carry them.
 */
enum {
  EVIX_ECLOSED = -5001,         /**< the handle, or the loop it belongs to, is closed */
  EVIX_EWRONGTHREAD = -5002,    /**< called from a thread that may not use the loop now */
  EVIX_EFORKED = -5003,         /**< the process forked; evix_loop_after_fork() comes first */
  EVIX_EQUEUEFULL = -5004,      /**< the send queue is at its hard cap */
  EVIX_EADDRESS = -5005,        /**< the text is not ADDRESS:PORT */
  EVIX_EBACKENDUNKNOWN = -5006, /**< no backend has that name */
  EVIX_EBACKEND = -5007,        /**< this backend cannot be used here; `evix doctor` says why */
  EVIX_EREGISTERED = -5008,     /**< the descriptor is registered in a way that cannot be shared */
  EVIX_EBUSY = -5009,           /**< already in flight, or not allowed inside this callback */
  EVIX_ENOTCONNECTED = -5010,   /**< the stream is not connected: not yet, or no more */
  EVIX_ESTALE = -5011,          /**< the handle was freed, has ended, or never existed */
  EVIX_ECONNECTIONS = -5012, /**< as many connections are open as the loop may have; accepting goes
                                on when one is closed */
  EVIX_ETHROWN = -5100       /**< a callback broke convention 6: a C++ exception came out of it */
};

/**
 * What went wrong in the last call of this thread that failed, or what the status of the running
 * callback means: `connect 127.0.0.1:1: connection refused`. A call that succeeds leaves it alone.
 * @return never NULL; "" when nothing failed. Valid until the next failure on this thread.
 */
EVIX_API const char* evix_last_error(void);
/** The code that belongs to evix_last_error(); 0 when nothing failed. */
EVIX_API int evix_last_error_code(void);
/** Words for any code, without its circumstances; valid until the next call on this thread. */
EVIX_API const char* evix_error_text(int code);

/* ---- types ---------------------------------------------------------------------------------- */

typedef struct evix_loop evix_loop_t;         /**< an event loop */
typedef struct evix_timer evix_timer_t;       /**< calls back after a time */
typedef struct evix_io evix_io_t;             /**< calls back when a descriptor is ready */
typedef struct evix_signal evix_signal_t;     /**< calls back after a signal */
typedef struct evix_waker evix_waker_t;       /**< calls back after any thread woke it */
typedef struct evix_listener evix_listener_t; /**< a listening TCP socket */
typedef struct evix_stream evix_stream_t;     /**< a TCP connection */
typedef struct evix_poster evix_poster_t;     /**< posts to a loop, also when it may be dead */
typedef struct evix_loop_thread evix_loop_thread_t; /**< a loop that owns its thread */
typedef struct evix_poller evix_poller_t;           /**< the readiness layer by itself */
typedef struct evix_timer_queue evix_timer_queue_t; /**< the timers by themselves */

/** The plain callback. */
typedef void (*evix_callback_fn)(void* data);

/* ---- backends ------------------------------------------------------------------------------- */

/**
 * A way to wait. A program may bring its own: five functions, of which init and destroy may be
 * NULL. evix calls them on the thread that uses the loop.
 */
typedef struct evix_backend {
  /** Once, inside evix_loop_create(); other than 0 fails it (destroy is then not called). */
  int (*init)(evix_loop_t* loop);
  /** Once, inside evix_loop_destroy(). */
  void (*destroy)(evix_loop_t* loop);
  /**
   * Waits for at most `timeout_ms` (-1: no limit, 0: only looks) and calls evix_backend_ready() for
   * each descriptor that is ready. It may return earlier.
   * @return negative when it failed: -1 with errno, or a negative errno. EINTR is no failure.
   */
  int (*poll)(evix_loop_t* loop, int timeout_ms);
  /**
   * Begins to watch a descriptor, level-triggered. One call for each descriptor, with the union of
   * what its watchers want; a change is io_del, then io_add. The descriptor is not checked. One of
   * evix's own is among them when another thread may have to wake the loop.
   * @param events EVIX_IO_READ, EVIX_IO_WRITE or both; EVIX_IO_PRIORITY when a watcher wants it.
   * @return negative when it failed, as poll; EPERM: the descriptor is then always ready.
   */
  int (*io_add)(evix_loop_t* loop, int fd, int events);
  /** Ends watching it. */
  int (*io_del)(evix_loop_t* loop, int fd);
} evix_backend_t;

/**
 * The built-in backends, to pass to evix_loop_create(). NULL where this version or the platform has
 * none (evix_last_error() says which). Their fields are for evix only.
 */
EVIX_API evix_backend_t* evix_epoll_backend(void);
EVIX_API evix_backend_t* evix_kqueue_backend(void);
EVIX_API evix_backend_t* evix_io_uring_backend(void);
EVIX_API evix_backend_t* evix_poll_backend(void);
/** Simulated: virtual time, seeded order. */
EVIX_API evix_backend_t* evix_sim_backend(void);
/**
 * The built-in backend with this name ("io_uring", "epoll", "poll", "sim" ...); NULL:
 * evix_last_error().
 */
EVIX_API evix_backend_t* evix_backend_by_name(const char* name);

/**
 * For a program's own backend, inside its poll: this descriptor is ready.
 * @param events what it is ready for: EVIX_IO_READ ... EVIX_IO_HANGUP. Several calls add up.
 * @return EVIX_ESTALE when the descriptor is not watched, EVIX_EBUSY outside poll, -EINVAL for
 *         no or unknown events.
 */
EVIX_API int evix_backend_ready(evix_loop_t* loop, int fd, int events);
/** A pointer for the loop's backend; evix does not look at it. Allowed in all five functions. */
EVIX_API int evix_loop_set_backend_data(evix_loop_t* loop, void* data);
/** NULL when none was set, or when the loop is stale. */
EVIX_API void* evix_loop_backend_data(evix_loop_t* loop);

/* ---- the loop ------------------------------------------------------------------------------- */

/**
 * Makes a loop.
 * @param backend NULL: evix chooses (the environment variable EVIX_BACKEND may choose for it); a
 *        built-in one; or the program's own, which is copied.
 * @return NULL with a reason in evix_last_error().
 */
EVIX_API evix_loop_t* evix_loop_create(evix_backend_t* backend);

/** See convention 7. */
typedef struct evix_loop_options {
  size_t size;                 /**< sizeof(evix_loop_options_t) */
  evix_backend_t* backend;     /**< as for evix_loop_create() */
  uint64_t sim_seed;           /**< of the simulated backend's ready order; default 1 */
  uint32_t immediate_budget;   /**< immediates a turn runs beyond those it began with; 1024 */
  uint32_t completion_budget;  /**< finished operations a turn dispatches at most; 4096 */
  size_t buffer_size_bytes;    /**< of one receive buffer; 64 KiB */
  size_t send_queue_bytes_max; /**< of all streams of the loop; 256 MiB */
  size_t connections_max;      /**< accepted and open at once; 0: no limit. See EVIX_ECONNECTIONS */
} evix_loop_options_t;

/** @param options NULL: all defaults. @return as evix_loop_create(); -EINVAL for an unknown size.
 */
EVIX_API evix_loop_t* evix_loop_create_ex(const evix_loop_options_t* options);

/**
 * Cancels everything, frees the loop and all its handles. No callback runs any more, not even those
 * of cancelled operations. Not inside a callback of the loop: EVIX_EBUSY.
 */
EVIX_API int evix_loop_destroy(evix_loop_t* loop);

/**
 * Runs turns until nothing is left to do, or evix_loop_stop(). A turn: (1) the immediate callbacks,
 * first in first out; (2) a wait, at most until the nearest deadline; (3) what became ready; (4)
 * the timers that are due. May be called inside a callback. A stop from before the call is
 * forgotten, unless the loop is running.
 * @return 0 at the natural end and after a stop.
 */
EVIX_API int evix_loop_run(evix_loop_t* loop);
/** One turn, which waits for at most `timeout_ns`. A stop from before it ends it at once, once. */
EVIX_API int evix_loop_run_once(evix_loop_t* loop, int64_t timeout_ns);
/** One turn that does not wait. */
EVIX_API int evix_loop_run_ready(evix_loop_t* loop);
/** Turns for `duration_ns`, or until nothing is left to do, or a stop. */
EVIX_API int evix_loop_run_for(evix_loop_t* loop, uint64_t duration_ns);
/** Ends the innermost run before its next callback. Any thread. */
EVIX_API int evix_loop_stop(evix_loop_t* loop);
/** Ends every nested run. Any thread. */
EVIX_API int evix_loop_stop_all(evix_loop_t* loop);
/** 1 inside a run function, else 0. */
EVIX_API int evix_loop_running(evix_loop_t* loop);
/** 1 when a run would have something to do, else 0. */
EVIX_API int evix_loop_alive(evix_loop_t* loop);

/** Queues an immediate callback for the next first phase. Any thread. */
EVIX_API int evix_loop_add_callback(evix_loop_t* loop, evix_callback_fn callback, void* data);
/**
 * The same, named for its use from other threads: never merged, never lost, in order for each
 * thread, and it wakes the loop. When the loop may be destroyed meanwhile, this gives EVIX_ESTALE.
 */
EVIX_API int evix_loop_post(evix_loop_t* loop, evix_callback_fn callback, void* data);
/** Makes the current or next wait return; several merge. Any thread. */
EVIX_API int evix_loop_wake(evix_loop_t* loop);

/** Keeps the run from ending until the matching evix_loop_unref(); they count. */
EVIX_API int evix_loop_ref(evix_loop_t* loop);
/** @return -EINVAL without a matching evix_loop_ref(). */
EVIX_API int evix_loop_unref(evix_loop_t* loop);

/** The time of this turn on the loop's monotonic clock; 0 when the loop is stale. */
EVIX_API uint64_t evix_loop_now_ns(evix_loop_t* loop);
/** Reads the clock anew, for callbacks that work long. */
EVIX_API int evix_loop_update_now(evix_loop_t* loop);

/** "io_uring", "epoll", "poll", "sim", "custom"; NULL when the loop is stale. */
EVIX_API const char* evix_loop_backend_name(evix_loop_t* loop);
/**
 * How the backend was chosen: a line on who decided, one for each backend (`*` chosen, `+` works,
 * `-` does not or was not tried), one for each fallback. Convention 8.
 */
EVIX_API int evix_loop_backend_report(evix_loop_t* loop, char* text, size_t size);

/** A pointer of the program's; evix does not look at it. */
EVIX_API int evix_loop_set_data(evix_loop_t* loop, void* data);
/** NULL when none was set, or when the loop is stale. */
EVIX_API void* evix_loop_data(evix_loop_t* loop);

/**
 * Calls `before` directly before and `after` directly after each wait. Either may be NULL; both
 * NULL: none. They may do what a callback may, except run the loop.
 */
EVIX_API int evix_loop_set_wait_hooks(evix_loop_t* loop, evix_callback_fn before,
                                      evix_callback_fn after, void* data);

/**
 * In the child after fork(2), before anything else. Until then running gives EVIX_EFORKED. A
 * program's own backend cannot be rebuilt (-EOPNOTSUPP): make a new loop in the child. A loop that
 * another thread of the parent was running (also that of a loop thread, which the child does not
 * have) is nobody's in the child; it is whole if that thread was waiting when the process forked.
 */
EVIX_API int evix_loop_after_fork(evix_loop_t* loop);

/**
 * Makes the loop's kernel objects anew, as who the process is now (after setuid(2), say); whatever
 * is in flight goes on. Allowed in callbacks. A program's own backend cannot be rebuilt
 * (-EOPNOTSUPP), a child calls evix_loop_after_fork() first (EVIX_EFORKED). When the kernel refuses
 * them, an epoll set stays as it was, and a ring is tried again by each run.
 */
EVIX_API int evix_loop_rebuild(evix_loop_t* loop);

/** What a loop has done and has to do; convention 7 (`size` says which fields are filled). */
typedef struct evix_counters {
  size_t size;                /**< sizeof(evix_loop_counters_t) */
  uint64_t turns;             /**< turns that were begun */
  uint64_t waits;             /**< times the backend was asked to wait or look */
  uint64_t callbacks;         /**< callbacks that were called */
  uint64_t time_asleep_ns;    /**< in waits that could block */
  uint64_t immediates_queued; /**< that wait for their turn */
  uint64_t timers_armed;      /**< that wait for their time */
  uint64_t handles;           /**< that exist */
  uint64_t handles_active;    /**< that keep the run from ending */
  uint64_t send_queue_bytes;  /**< of all streams */
  uint64_t connections;       /**< that were accepted and are open */
} evix_loop_counters_t;

/** Any thread. */
EVIX_API int evix_loop_counters(evix_loop_t* loop, evix_loop_counters_t* counters);

/** One handle, for evix_loop_each_handle(); the pointers are valid during the call. */
typedef struct evix_handle_info {
  size_t size;           /**< sizeof(evix_handle_info_t) of the library */
  void* handle;          /**< the evix_timer_t*, evix_io_t* ... */
  const char* kind;      /**< "timer", "watcher", "signal", "listener", "stream", "waker" */
  const char* name;      /**< "" when it has none */
  const char* waits_for; /**< "readable", "deadline in 3 ms" ...; "" when it is stopped */
  const char* file;      /**< where it was made: see EVIX_LOCATIONS; "" when unknown */
  int line;              /**< 0 when unknown */
  int active;            /**< 1: started and not finished */
  int referenced;        /**< 1: keeps the run from ending while active */
  int fd;                /**< descriptor or signal number; -1: none */
} evix_handle_info_t;

typedef void (*evix_handle_info_fn)(const evix_handle_info_t* info, void* data);

/**
 * Calls back for every handle of the loop, at once, before it returns. The callback may free
 * handles; those that it makes are not visited.
 * @return how many were visited.
 */
EVIX_API int evix_loop_each_handle(evix_loop_t* loop, evix_handle_info_fn callback, void* data);

/* ---- any handle: evix_timer_t, evix_io_t, evix_signal_t, evix_waker_t, evix_listener_t,
        evix_stream_t -------------------------------------------------------------------------- */

/** A pointer of the program's; evix does not look at it. */
EVIX_API int evix_handle_set_data(void* handle, void* data);
/** NULL when none was set, or when the handle is stale. */
EVIX_API void* evix_handle_data(void* handle);
/** A name for lists and messages, copied; NULL or "": none. */
EVIX_API int evix_handle_set_name(void* handle, const char* name);
/** Convention 8. */
EVIX_API int evix_handle_name(void* handle, char* text, size_t size);
/** The loop that it belongs to; NULL when the handle is stale. */
EVIX_API evix_loop_t* evix_handle_loop(void* handle);
/** An active handle that is referenced (the default, but for wakers) keeps the run from ending. */
EVIX_API int evix_handle_ref(void* handle);
EVIX_API int evix_handle_unref(void* handle);
/** 1 or 0. */
EVIX_API int evix_handle_referenced(void* handle);
/** 1 when something is started and not finished, else 0. */
EVIX_API int evix_handle_active(void* handle);

/* ---- timers --------------------------------------------------------------------------------- */

/**
 * Starts a timer. It never fires early, and always after the immediate callbacks that are queued.
 * @param delay_ms before the first call; 0: in the next turn.
 * @param repeat_ms between further calls, counted from deadline to deadline; 0: one-shot, which
 *        frees itself before its callback is called.
 * @return NULL with a reason in evix_last_error().
 */
EVIX_API evix_timer_t* evix_timer_create(evix_loop_t* loop, uint64_t delay_ms, uint64_t repeat_ms,
                                         evix_callback_fn callback, void* data);
/** The same in nanoseconds. */
EVIX_API evix_timer_t* evix_timer_create_ns(evix_loop_t* loop, uint64_t delay_ns,
                                            uint64_t repeat_ns, evix_callback_fn callback,
                                            void* data);
/** Stops it and keeps it: evix_timer_again() starts it again. -EINVAL: it is of another loop. */
EVIX_API int evix_timer_stop(evix_loop_t* loop, evix_timer_t* timer);
/** Stops and frees it. */
EVIX_API int evix_timer_destroy(evix_timer_t* timer);

/** What a repeating timer does about calls that it missed because the loop was busy. */
enum {
  EVIX_MISSED_SKIP = 0,  /**< one call, then the next multiple of the period */
  EVIX_MISSED_BURST = 1, /**< one call for each, one a turn */
  EVIX_MISSED_DELAY = 2  /**< one call, then a full period from then */
};

/** A timer that is not started, and does not free itself when it fires. */
EVIX_API evix_timer_t* evix_timer_new(evix_loop_t* loop);
/**
 * Starts it, or starts it anew.
 * @param repeat_ns 0: one call.
 * @param missed EVIX_MISSED_...
 */
EVIX_API int evix_timer_start_ns(evix_timer_t* timer, uint64_t delay_ns, uint64_t repeat_ns,
                                 int missed, evix_callback_fn callback, void* data);
/** One call at a time of evix_loop_now_ns(). */
EVIX_API int evix_timer_start_at_ns(evix_timer_t* timer, uint64_t deadline_ns,
                                    evix_callback_fn callback, void* data);
/**
 * Starts again with the same callback and period (for one call: the same delay), counted from now:
 * what an idle time-out does at each activity. Does nothing when it was never started.
 */
EVIX_API int evix_timer_again(evix_timer_t* timer);
/** Time left; 0: due or stopped, INT64_MAX: never; negative: a code. */
EVIX_API int64_t evix_timer_remaining_ns(evix_timer_t* timer);
/** Calls that the last one stood for beyond its own; negative: a code. */
EVIX_API int64_t evix_timer_missed(evix_timer_t* timer);

/* ---- readiness ------------------------------------------------------------------------------ */

/** Events. Interests are READ, WRITE and PRIORITY; ONESHOT is a flag beside them. */
enum {
  EVIX_IO_READ = 1,         /**< bytes, a connection or the end can be read */
  EVIX_IO_WRITE = 2,        /**< there is room to write, or a connect has ended */
  EVIX_IO_ONESHOT = 4,      /**< fires once and is then gone */
  EVIX_IO_PRIORITY = 8,     /**< urgent data */
  EVIX_IO_ERROR = 16,       /**< reported only: an error is pending, or a pipe has no reader */
  EVIX_IO_HANGUP = 32,      /**< reported only: both directions are shut */
  EVIX_IO_READ_CLOSED = 64, /**< reported only: the peer has shut its sending side */
  EVIX_IO_INVALID = 128     /**< reported only: the descriptor is not open any more */
};

/**
 * Watches a descriptor and calls back at each turn in which it is ready, hang-ups and errors
 * included. Any number of watchers may watch one descriptor. Regular files and directories are
 * always ready. The descriptor stays yours: evix_io_stop() first, then close it.
 * @param events EVIX_IO_READ, EVIX_IO_WRITE or both; with EVIX_IO_ONESHOT it frees itself before
 *        its only call.
 * @return NULL with a reason: -EBADF for a descriptor that is not open, -EINVAL for no or unknown
 *         events, EVIX_EREGISTERED when a stream or listener of the loop has it.
 */
EVIX_API evix_io_t* evix_io_create(evix_loop_t* loop, int fd, int events, evix_callback_fn callback,
                                   void* data);
/** Stops and frees it; the descriptor may be closed afterwards. -EINVAL: it is of another loop. */
EVIX_API int evix_io_stop(evix_loop_t* loop, evix_io_t* io);

/** @param events what it is ready for: EVIX_IO_READ ... EVIX_IO_INVALID. */
typedef void (*evix_io_fn)(evix_io_t* io, int events, void* data);
/** As evix_io_create(), and the callback is told what happened. */
EVIX_API evix_io_t* evix_io_create_ex(evix_loop_t* loop, int fd, int events, evix_io_fn callback,
                                      void* data);
/** Watches for something else. @param events without EVIX_IO_ONESHOT, which stays as it was. */
EVIX_API int evix_io_set_events(evix_io_t* io, int events);
/** The descriptor, or a negative code. */
EVIX_API int evix_io_fd(evix_io_t* io);

/* ---- signals -------------------------------------------------------------------------------- */

typedef void (*evix_signal_fn)(evix_signal_t* signal, int number, void* data);

/**
 * Calls back in the loop after a signal was caught, never inside the handler. Signals that arrive
 * while one is pending merge. The earlier disposition comes back with the last watcher of a signal.
 * @return NULL; -EINVAL for numbers that cannot be caught.
 */
EVIX_API evix_signal_t* evix_signal_create(evix_loop_t* loop, int number, evix_signal_fn callback,
                                           void* data);
/** One call; it frees itself before that. */
EVIX_API evix_signal_t* evix_signal_create_once(evix_loop_t* loop, int number,
                                                evix_signal_fn callback, void* data);
/** Stops and frees it. */
EVIX_API int evix_signal_destroy(evix_signal_t* signal);

/* ---- other threads -------------------------------------------------------------------------- */

/** A waker: started from birth, and not referenced (it does not keep the run from ending). */
EVIX_API evix_waker_t* evix_waker_create(evix_loop_t* loop, evix_callback_fn callback, void* data);
/**
 * One call of its callback begins after this; several before it merge. Any thread.
 * @return EVIX_ECLOSED or EVIX_ESTALE when it is gone.
 */
EVIX_API int evix_waker_wake(evix_waker_t* waker);
/** No call begins after this. */
EVIX_API int evix_waker_destroy(evix_waker_t* waker);

/** Posts to a loop from any thread, also after the loop has died. */
EVIX_API evix_poster_t* evix_poster_create(evix_loop_t* loop);
/** As evix_loop_post(). @return EVIX_ECLOSED when the loop is dead. */
EVIX_API int evix_poster_post(evix_poster_t* poster, evix_callback_fn callback, void* data);
/** As evix_loop_wake(); 0 also when the loop is dead. */
EVIX_API int evix_poster_wake(evix_poster_t* poster);
EVIX_API int evix_poster_destroy(evix_poster_t* poster);

typedef void (*evix_loop_begin_fn)(evix_loop_t* loop, void* data);

/**
 * Makes a loop on a thread of its own, which runs until evix_loop_thread_join() and then to its
 * natural end, or until evix_loop_thread_stop(). The loop is destroyed on its thread.
 * @param options NULL: all defaults.
 * @param begin runs first, on the new thread; make handles there. NULL: nothing.
 */
EVIX_API evix_loop_thread_t* evix_loop_thread_create(const evix_loop_options_t* options,
                                                     evix_loop_begin_fn begin, void* data);
/** Its loop, for the calls that any thread may make. */
EVIX_API evix_loop_t* evix_loop_thread_loop(evix_loop_thread_t* thread);
/** Runs the callback on its thread. @return EVIX_ECLOSED when the loop has ended. */
EVIX_API int evix_loop_thread_post(evix_loop_thread_t* thread, evix_callback_fn callback,
                                   void* data);
/** Ends the loop before its next callback. */
EVIX_API int evix_loop_thread_stop(evix_loop_thread_t* thread);
/**
 * Lets the loop come to its natural end (what was posted before still runs), waits for the thread,
 * and frees it. Not from the loop's own thread: EVIX_EWRONGTHREAD. Not in a forked child, which has
 * no such thread: EVIX_EFORKED.
 * @return what evix_loop_run() returned there.
 */
EVIX_API int evix_loop_thread_join(evix_loop_thread_t* thread);

/* ---- TCP ------------------------------------------------------------------------------------ */

/* Addresses are text: `127.0.0.1:3000`, `[::1]:3000`; names are not looked up. Port 0: the kernel
   chooses. Descriptors are close-on-exec, and no SIGPIPE is raised. */

typedef void (*evix_accept_fn)(evix_listener_t* listener, int status, evix_stream_t* stream,
                               void* data);
typedef void (*evix_stream_fn)(evix_stream_t* stream, int status, void* data);
/** @param size 0 with status 0: the end of the stream. @param bytes valid during the call. */
typedef void (*evix_receive_fn)(evix_stream_t* stream, int status, const void* bytes, size_t size,
                                void* data);

/** Convention 7. */
typedef struct evix_listen_options {
  size_t size;             /**< sizeof(evix_listen_options_t) */
  int backlog_max;         /**< connections that wait; 4096, cut to net.core.somaxconn */
  int no_reuse_address;    /**< 1: without SO_REUSEADDR */
  int reuse_port;          /**< 1: SO_REUSEPORT */
  int ipv6_only;           /**< 1: IPV6_V6ONLY */
  uint64_t retry_delay_ns; /**< after an accept failed for want of descriptors; 100 ms */
  int no_delay;            /**< 1: TCP_NODELAY for all that are accepted, without a call for each */
} evix_listen_options_t;

/**
 * Binds, listens, and calls back for each connection until evix_listener_close().
 * @param options NULL: all defaults.
 * @param callback gets a status of 0 and a stream, which is yours; or a code and NULL, when
 *        accepting failed (it goes on). NULL: nothing is accepted until
 *        evix_listener_accept_start().
 * @return NULL with what failed: `listen 127.0.0.1:80: permission denied`.
 */
EVIX_API evix_listener_t* evix_tcp_listen(evix_loop_t* loop, const char* address,
                                          const evix_listen_options_t* options,
                                          evix_accept_fn callback, void* data);
EVIX_API int evix_listener_accept_start(evix_listener_t* listener, evix_accept_fn callback,
                                        void* data);
/** One connection. */
EVIX_API int evix_listener_accept(evix_listener_t* listener, evix_accept_fn callback, void* data);
EVIX_API int evix_listener_accept_stop(evix_listener_t* listener);
/** The address that it is bound to, with the port that the kernel chose. Convention 8. */
EVIX_API int evix_listener_address(evix_listener_t* listener, char* text, size_t size);
/** The descriptor, or a negative code. It stays the listener's. */
EVIX_API int evix_listener_fd(evix_listener_t* listener);
/** Closes and frees it; the port is free when this returns. */
EVIX_API int evix_listener_close(evix_listener_t* listener);

/** Convention 7. */
typedef struct evix_connect_options {
  size_t size;               /**< sizeof(evix_connect_options_t) */
  uint64_t timeout_ns;       /**< then -ETIMEDOUT; 0: no limit of evix's own */
  const char* local_address; /**< to bind to; NULL: the kernel's choice */
  int allow_self_connect;    /**< 1: a socket may be connected to itself */
} evix_connect_options_t;

/**
 * Connects. A status of 0 means connected; the error is the true one.
 * The stream is yours also when it failed: evix_stream_close() it.
 * @param options NULL: all defaults.
 * @return NULL when it cannot be begun: EVIX_EADDRESS, EVIX_ESTALE ...; the callback is not called.
 */
EVIX_API evix_stream_t* evix_tcp_connect(evix_loop_t* loop, const char* address,
                                         const evix_connect_options_t* options,
                                         evix_stream_fn callback, void* data);
/** Takes over a connected stream socket: sets it non-blocking and closes it. */
EVIX_API evix_stream_t* evix_tcp_adopt(evix_loop_t* loop, int fd);

/** One call: bytes, the end, or a code (EVIX_EBUSY: another one is in flight). */
EVIX_API int evix_stream_receive(evix_stream_t* stream, evix_receive_fn callback, void* data);
/** A call for each piece until the end, an error or evix_stream_receive_stop(). */
EVIX_API int evix_stream_receive_start(evix_stream_t* stream, evix_receive_fn callback, void* data);
/** No further call; bytes that were not read stay in the kernel. */
EVIX_API int evix_stream_receive_stop(evix_stream_t* stream);
/** Once, into your memory, which must stay valid until the callback. Ended by close only. */
EVIX_API int evix_stream_receive_into(evix_stream_t* stream, void* bytes, size_t size,
                                      evix_receive_fn callback, void* data);

/**
 * Sends all of it, behind what was sent before; the callback is called once.
 * @param bytes must stay valid until the callback.
 */
EVIX_API int evix_stream_send(evix_stream_t* stream, const void* bytes, size_t size,
                              evix_stream_fn callback, void* data);
/**
 * Sends without a callback; what the kernel does not take at once is copied. A later failure is
 * reported to the next operation. With io_uring up to 4 KiB go out at the end of the turn, or at
 * exit(3) of the loop's thread; not at all when the process ends otherwise before that. After
 * evix_stream_close() these are sent still, as with evix_stream_try_send().
 * @return EVIX_EQUEUEFULL: nothing was taken.
 */
EVIX_API int evix_stream_send_copy(evix_stream_t* stream, const void* bytes, size_t size);
/**
 * Sends what the kernel takes now; with io_uring up to 4 KiB are taken before the kernel is asked,
 * at the end of the turn. After evix_stream_close() they are sent still, and keep the loop running
 * until they are, for a minute at most; if they cannot be, the peer is told by a reset.
 * @return how many bytes, or a negative code.
 */
EVIX_API int64_t evix_stream_try_send(evix_stream_t* stream, const void* bytes, size_t size);
/** Half-close: the peer sees the end after all queued sends. @param callback may be NULL. */
EVIX_API int evix_stream_shutdown(evix_stream_t* stream, evix_stream_fn callback, void* data);

enum {
  EVIX_WATER_FULL = 0,   /**< the send queue has reached its high mark: stop producing */
  EVIX_WATER_DRAINED = 1 /**< it has come down to its low mark after that */
};
typedef void (*evix_water_mark_fn)(evix_stream_t* stream, int mark, void* data);

/** Bounds of the send queue in bytes; 0: the default (16 KiB, 64 KiB, 16 MiB). */
EVIX_API int evix_stream_set_water_marks(evix_stream_t* stream, size_t low_bytes, size_t high_bytes,
                                         size_t hard_bytes_max, evix_water_mark_fn callback,
                                         void* data);
/** Bytes in the send queue, or a negative code. */
EVIX_API int64_t evix_stream_send_queue_bytes(evix_stream_t* stream);
/** A receive that gets nothing for so long ends with -ETIMEDOUT. EVIX_FOREVER: none. */
EVIX_API int evix_stream_set_receive_timeout_ns(evix_stream_t* stream, int64_t timeout_ns);
/** Queued sends without progress for so long fail the stream with -ETIMEDOUT. */
EVIX_API int evix_stream_set_send_timeout_ns(evix_stream_t* stream, int64_t timeout_ns);
/** TCP_NODELAY. */
EVIX_API int evix_stream_set_no_delay(evix_stream_t* stream, int enabled);
/** SO_KEEPALIVE after so many idle seconds; 0: off. */
EVIX_API int evix_stream_set_keep_alive(evix_stream_t* stream, unsigned idle_seconds);
/** Convention 8. */
EVIX_API int evix_stream_local_address(evix_stream_t* stream, char* text, size_t size);
EVIX_API int evix_stream_peer_address(evix_stream_t* stream, char* text, size_t size);
/** The descriptor, or a negative code. It stays the stream's. */
EVIX_API int evix_stream_fd(evix_stream_t* stream);
/** 1 or 0. */
EVIX_API int evix_stream_connected(evix_stream_t* stream);

/**
 * Closes and frees it. Its operations end with -ECANCELED, each with its callback; the handle that
 * those are given is stale already.
 */
EVIX_API int evix_stream_close(evix_stream_t* stream);
/** The same; the callback comes after those of the operations. */
EVIX_API int evix_stream_close_then(evix_stream_t* stream, evix_callback_fn callback, void* data);
/**
 * Sends what is queued, shuts the sending side, drops input until the peer's end, then closes. The
 * handle is stale from the call on.
 * @param drain_bytes_max input that is dropped at most; 0: 1 MiB.
 * @param timeout_ns of the whole; 0: 5 s.
 * @param callback may be NULL.
 */
EVIX_API int evix_stream_close_gracefully(evix_stream_t* stream, size_t drain_bytes_max,
                                          uint64_t timeout_ns, evix_callback_fn callback,
                                          void* data);
/** Closes with a reset, throws away what is queued, and frees it. */
EVIX_API int evix_stream_abort(evix_stream_t* stream);

/* ---- the low layer, without a loop ---------------------------------------------------------- */

/* A poller and a timer queue are used by one thread at a time, which evix does not check. */

enum {
  EVIX_TRIGGER_LEVEL = 0,  /**< an event at every wait, as long as it is ready */
  EVIX_TRIGGER_EDGE = 1,   /**< each time it becomes ready; epoll only */
  EVIX_TRIGGER_ONESHOT = 2 /**< once, then disabled until evix_poller_enable() */
};

/** An interest of a poller, or a timer of a queue; 0 is none. */
typedef uint64_t evix_id_t;

typedef struct evix_poll_event {
  uint64_t token; /**< yours, from evix_poller_add() */
  evix_id_t id;   /**< of the interest */
  int fd;         /**< its descriptor */
  int events;     /**< EVIX_IO_READ ... EVIX_IO_INVALID; in a failure: 0 */
  int status;     /**< 0, or the code of a failure */
} evix_poll_event_t;

/** @param backend NULL, evix_epoll_backend() or evix_poll_backend(). */
EVIX_API evix_poller_t* evix_poller_create(evix_backend_t* backend);
EVIX_API int evix_poller_destroy(evix_poller_t* poller);
/**
 * Registers an interest; changes go to the kernel together, with the next commit or wait.
 * @param events EVIX_IO_READ, _WRITE, _PRIORITY; 0 is as if disabled.
 * @param id gets its name; may be NULL.
 */
EVIX_API int evix_poller_add(evix_poller_t* poller, int fd, int events, int trigger, uint64_t token,
                             evix_id_t* id);
EVIX_API int evix_poller_modify(evix_poller_t* poller, evix_id_t id, int events, int trigger);
EVIX_API int evix_poller_set_token(evix_poller_t* poller, evix_id_t id, uint64_t token);
EVIX_API int evix_poller_enable(evix_poller_t* poller, evix_id_t id);
EVIX_API int evix_poller_disable(evix_poller_t* poller, evix_id_t id);
/** At once: the descriptor may be closed afterwards. */
EVIX_API int evix_poller_remove(evix_poller_t* poller, evix_id_t id);
/** @return how many changes were refused. */
EVIX_API int evix_poller_commit(evix_poller_t* poller);
/** The failures of the last commit or wait, by number from 0. @return 1, or 0 beyond the last. */
EVIX_API int evix_poller_failure(evix_poller_t* poller, size_t index, evix_poll_event_t* failure);
/** @return the number of events, 0 after the timeout, or a negative code (-EINTR too). */
EVIX_API int evix_poller_wait(evix_poller_t* poller, int64_t timeout_ns);
/** The next event. @return 1, or 0 when there is no more. */
EVIX_API int evix_poller_next(evix_poller_t* poller, evix_poll_event_t* event);

EVIX_API evix_timer_queue_t* evix_timer_queue_create(void);
/** Not inside one of its callbacks: EVIX_EBUSY. */
EVIX_API int evix_timer_queue_destroy(evix_timer_queue_t* queue);
/** One call inside evix_timer_queue_run(), at least `delay_ns` from now. @return 0: it failed. */
EVIX_API evix_id_t evix_timer_queue_add(evix_timer_queue_t* queue, uint64_t delay_ns,
                                        evix_callback_fn callback, void* data);
/** @return 1; 0 when it has run or was cancelled before. */
EVIX_API int evix_timer_queue_cancel(evix_timer_queue_t* queue, evix_id_t id);
/**
 * Runs what is due. @return how long a wait may last now: 0 when something is due, INT64_MAX when
 * it is empty; a negative code.
 */
EVIX_API int64_t evix_timer_queue_run(evix_timer_queue_t* queue);
/** How many timers wait, or a negative code. */
EVIX_API int64_t evix_timer_queue_size(evix_timer_queue_t* queue);

/* ---- places --------------------------------------------------------------------------------- */

/** Remembers a place for the next handle that this thread makes; EVIX_LOCATIONS calls it. */
EVIX_API void evix_here(const char* file, int line);

/* A program that defines EVIX_LOCATIONS before this header has the place of each call below in
   evix_loop_each_handle(). It is not the default, because a macro of the name of a function would
   be in the way of programs that define or qualify that name. */
#ifdef EVIX_LOCATIONS
#define evix_timer_create(...) (evix_here(__FILE__, __LINE__), evix_timer_create(__VA_ARGS__))
#define evix_timer_create_ns(...) (evix_here(__FILE__, __LINE__), evix_timer_create_ns(__VA_ARGS__))
#define evix_timer_new(...) (evix_here(__FILE__, __LINE__), evix_timer_new(__VA_ARGS__))
#define evix_io_create(...) (evix_here(__FILE__, __LINE__), evix_io_create(__VA_ARGS__))
#define evix_io_create_ex(...) (evix_here(__FILE__, __LINE__), evix_io_create_ex(__VA_ARGS__))
#define evix_signal_create(...) (evix_here(__FILE__, __LINE__), evix_signal_create(__VA_ARGS__))
#define evix_signal_create_once(...) \
  (evix_here(__FILE__, __LINE__), evix_signal_create_once(__VA_ARGS__))
#define evix_waker_create(...) (evix_here(__FILE__, __LINE__), evix_waker_create(__VA_ARGS__))
#define evix_tcp_listen(...) (evix_here(__FILE__, __LINE__), evix_tcp_listen(__VA_ARGS__))
#define evix_tcp_connect(...) (evix_here(__FILE__, __LINE__), evix_tcp_connect(__VA_ARGS__))
#define evix_tcp_adopt(...) (evix_here(__FILE__, __LINE__), evix_tcp_adopt(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif

#endif /* EVIX_H */
