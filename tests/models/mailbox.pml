/*
 * The protocol of src/loop/mailbox.hpp, of the loop's turn around it (src/loop/core.cpp) and of a
 * waker (src/io/waker.cpp), for spin, which visits every interleaving. tests/models/run says how
 * many processes of each kind there are, which mistake is made, and what must come of it.
 *
 * One step is one atomic access of the code, in the code's order. That is what may happen when
 * every access is sequentially consistent; what the weaker ones may do besides is the matter of
 * tests/loop/mailbox_model_test.cpp.
 *
 * A post's node comes from a heap that gives the same one again as soon as it is free: a push meets
 * an address that has come back. What must hold:
 *
 * - nobody sleeps with something to do: `timeout`, when no other process can take a step;
 * - an accepted post runs, or is thrown away at the close, once; those of a thread in their order;
 * - a WakeSender::wake() that says true is followed by a call that begins after it;
 * - the event is not written when it is closed, and nothing is touched when it is freed.
 */

/* What a mistaken protocol does otherwise; the numbers of tests/models/run. */
#define LOOKS_BEFORE_ASLEEP 1     /* the loop at the stack, and then says `asleep` */
#define LOOKS_BEFORE_PUSH 2       /* a poster at `asleep`, and then pushes */
#define EVENT_BEFORE_RESET 3      /* a poster writes the event, and then takes `asleep` down */
#define EVENT_IS_AN_EDGE 4        /* a write before the wait is lost */
#define TAKES_IN_TWO_STEPS 5      /* a load and a store, not an exchange */
#define PUSHES_IN_TWO_STEPS 6     /* the same of a poster */
#define NOT_REVERSED 7
#define NO_LOOK_AT_SIGNALS 8
#define NO_LOOK_AT_STOP 9
#define NO_LOOK_AT_WAKE 10
#define CLOSE_WAITS_FOR_NO_WRITER 11
#define NUMBER_BEFORE_WRITERS 12  /* reads the event's number, and then says that it is writing */
#define POSTERS_HOLD_NOTHING 13   /* no reference to the mailbox */
#define PENDING_RESET_AFTER_CALL 14
#define WAKE_RESET_BEFORE_WAIT 15
#define INNER_WAITS_WITH_QUEUE 16 /* an inner run forgets what the outer one has queued */
#define CLOSE_LEAVES_STACK_OPEN 17
#define SENDERS_HOLD_NOTHING 18   /* no reference to the waker's node */

#define NODES 6
#define POSTERS_MAX 3
#define WAKER_NODE NODES /* not from the heap */
#define NOBODY 14        /* the empty stack, the last node's next */
#define CLOSED 15        /* closed_mark() */

/* Set in init. */
byte mistake, posters, senders, nudgers, signallers, stoppers;
byte acts;    /* of each of these */
byte others;  /* times that something else may end a wait */
bool closes;  /* the loop may be destroyed at any time, not only when nothing is left to do */
bool nests;   /* a callback may run the loop */

/* Mailbox */
byte head = NOBODY;
bool asleep, wake_asked, signals;
bool event;             /* the descriptor's counter is not 0 */
bool event_is_open = true;
bool event_number = true; /* event_; false: no_handle */
byte writers, references = 1;
bool freed;

/* The loop, as far as others see it */
bool stop;
byte interruptions;     /* interrupters that are not done */
bool waits;             /* in the kernel */

/* The waker's node */
bool pending, waker_closed, waker_freed;
byte waker_references = 1;

/* Works: those of the heap, and the waker's node */
byte next[NODES + 1];
bool used[NODES];
byte owner[NODES], number[NODES];

/* What has happened */
bool wake_due, call_due;
byte accepted[POSTERS_MAX], came[POSTERS_MAX];
hidden byte not_counted;

#define mailbox(access) d_step { assert(!freed); access }
#define waker(access) d_step { assert(!waker_freed); access }

inline release_mailbox() {
  mailbox(references--; freed = (references == 0));
}

inline release_waker() {
  waker(waker_references--; waker_freed = (waker_references == 0); flag = waker_freed);
  if
  :: flag -> release_mailbox()
  :: else
  fi
}

inline write_event() {
  if
  :: mistake == NUMBER_BEFORE_WRITERS -> mailbox(flag = event_number); mailbox(writers++)
  :: else -> mailbox(writers++); mailbox(flag = event_number)
  fi;
  if
  :: flag ->
    d_step {
      assert(event_is_open);
      event = (event || mistake != EVENT_IS_AN_EDGE || waits)
    }
  :: else
  fi;
  mailbox(writers--)
}

inline wake_if_asleep() {
  mailbox(flag = asleep);
  if
  :: flag && mistake == EVENT_BEFORE_RESET -> write_event(); mailbox(asleep = false)
  :: flag && mistake != EVENT_BEFORE_RESET ->
    mailbox(flag = asleep; asleep = false);
    if
    :: flag -> write_event()
    :: else
    fi
  :: else
  fi
}

/* `work`, counted in `counter`. Afterwards `pushed` says whether the mailbox was open. */
inline push(counter) {
  pushed = false;
  early = (mistake == LOOKS_BEFORE_PUSH);
  if
  :: early -> mailbox(saw_asleep = asleep)
  :: else
  fi;
  mailbox(seen = head);
  do
  :: seen == CLOSED || pushed -> break
  :: else ->
    next[work] = seen;
    if
    :: mistake == PUSHES_IN_TWO_STEPS -> mailbox(head = work; pushed = true; counter++)
    :: else ->
      d_step {
        assert(!freed);
        if
        :: head == seen -> head = work; pushed = true; counter++
        :: else -> seen = head
        fi
      }
    fi
  od;
  if
  :: !pushed
  :: pushed && early ->
    if
    :: saw_asleep -> wake_if_asleep()
    :: else
    fi
  :: pushed && !early -> wake_if_asleep()
  fi
}

/* ---- Other threads and signal handlers ------------------------------------------------------ */

/* Poster::post() */
proctype poster(byte me) {
  byte work, seen, count;
  bool flag, pushed, early, saw_asleep;
  do
  :: count == acts -> break
  :: else ->
    mailbox(flag = (head == CLOSED));
    if
    :: flag -> break
    :: else
    fi;
    d_step {
      work = 0;
      do
      :: !used[work] -> break
      :: else -> work++
      od;
      used[work] = true; owner[work] = me; number[work] = count
    }
    push(accepted[me]);
    if
    :: !pushed -> d_step { used[work] = false; next[work] = 0 };
      break
    :: else -> count++
    fi
  od;
  if
  :: mistake != POSTERS_HOLD_NOTHING -> release_mailbox()
  :: else
  fi
}

/* WakeSender::wake() */
proctype sender() {
  byte work = WAKER_NODE, seen, count;
  bool flag, pushed, early, saw_asleep;
  do
  :: count == acts -> break
  :: else ->
    waker(flag = waker_closed);
    if
    :: flag -> break
    :: else
    fi;
    waker(flag = pending; pending = true; call_due = true);
    if
    :: flag
    :: else ->
      waker(waker_references++);
      push(not_counted);
      if
      :: !pushed -> release_waker()
      :: else
      fi
    fi;
    count++
  od;
  if
  :: mistake != SENDERS_HOLD_NOTHING -> release_waker()
  :: else
  fi
}

/* Poster::wake() */
proctype nudger() {
  byte count;
  bool flag;
  do
  :: count == acts -> break
  :: else ->
    mailbox(wake_asked = true; wake_due = true);
    wake_if_asleep();
    count++
  od;
  release_mailbox()
}

/* Mailbox::note_signal(), and Loop::stop() with `is_stop`. Either ends before the loop does. */
proctype interrupter(bool is_stop) {
  byte count;
  bool flag;
  do
  :: count == acts -> break
  :: else ->
    if
    :: is_stop -> stop = true
    :: else -> mailbox(signals = true)
    fi;
    wake_if_asleep();
    count++
  od;
  interruptions--
}

/* ---- The loop -------------------------------------------------------------------------------- */

/* `left`, linked newest first, to the end of the queue, oldest first. */
inline queue_all(left) {
  atomic {
    if
    :: mistake == NOT_REVERSED ->
      do
      :: left == NOBODY -> break
      :: else -> queue!left; left = next[left]
      od
    :: else ->
      oldest = NOBODY;
      do
      :: left == NOBODY -> break
      :: else -> work = left; left = next[work]; next[work] = oldest; oldest = work
      od;
      do
      :: oldest == NOBODY -> break
      :: else -> queue!oldest; oldest = next[oldest]
      od
    fi;
    work = 0; oldest = 0; left = NOBODY
  }
}

/* Runs `work`, or throws it away. */
inline run_work() {
  if
  :: work == WAKER_NODE ->
    if
    :: mistake == PENDING_RESET_AFTER_CALL -> call_due = false; waker(pending = false)
    :: else -> waker(pending = false; call_due = false)
    fi;
    release_waker()
  :: else ->
    d_step {
      assert(used[work]);
      assert(number[work] == came[owner[work]]);
      came[owner[work]]++;
      used[work] = false; next[work] = 0; number[work] = 0; owner[work] = 0
    }
  fi;
  work = 0
}

inline fall_asleep() {
  sleeps = true;
  if
  :: mistake == LOOKS_BEFORE_ASLEEP
  :: else -> mailbox(asleep = true)
  fi;
  mailbox(sleeps = (head == NOBODY));
  if
  :: sleeps && mistake != NO_LOOK_AT_SIGNALS -> mailbox(sleeps = !signals)
  :: else
  fi;
  if
  :: sleeps && mistake != NO_LOOK_AT_WAKE -> mailbox(sleeps = !wake_asked)
  :: else
  fi;
  if
  :: sleeps && mistake != NO_LOOK_AT_STOP -> sleeps = !stop
  :: else
  fi;
  if
  :: mistake == LOOKS_BEFORE_ASLEEP && sleeps -> mailbox(asleep = true)
  :: else
  fi
}

inline wake_up() {
  mailbox(asleep = false);
  if
  :: mistake != WAKE_RESET_BEFORE_WAIT -> wait_is_over()
  :: else -> wake_due = false
  fi
}

/* What was asked for until now has got its wait ended. */
inline wait_is_over() {
  mailbox(flag = wake_asked);
  if
  :: flag -> mailbox(wake_asked = false; wake_due = false)
  :: else
  fi
}

#define nothing_to_do                                                                \
  (head == NOBODY && len(queue) == 0 && !signals && !stop && !wake_due && !call_due && \
   accepted[0] == came[0] && accepted[1] == came[1] && accepted[2] == came[2])

inline fall_asleep_and_wait() {
  fall_asleep();
  if
  :: sleeps ->
    waits = true;
    if
    :: event
    :: others > 0 -> others-- /* a descriptor that is ready, or a timer */
    :: timeout ->
      assert(nothing_to_do);
      over = true
    fi;
    waits = false
  :: else
  fi;
  wake_up()
}

proctype loop() {
  byte work, oldest, left = NOBODY;
  bool flag, sleeps, inner, over;
  chan queue = [NODES + 1] of { byte };

turn:
  skip; /* a jump may not lead into a d_step */
  mailbox(left = head);
  if
  :: left == NOBODY
  :: left != NOBODY && mistake == TAKES_IN_TWO_STEPS -> mailbox(head = NOBODY); queue_all(left)
  :: left != NOBODY && mistake != TAKES_IN_TWO_STEPS ->
    mailbox(left = head; head = NOBODY);
    queue_all(left)
  fi;

immediates:
  do
  :: len(queue) > 0 ->
    queue?work;
    run_work();
    if
    :: nests && !inner -> inner = true; goto turn
    :: true
    fi
  :: true -> break /* there are no more, or a stop, or the budget */
  od;

  if
  :: mistake == WAKE_RESET_BEFORE_WAIT -> mailbox(wake_asked = false)
  :: else
  fi;
  mailbox(flag = (head != NOBODY));
  if
  :: flag || stop || (len(queue) > 0 && !(inner && mistake == INNER_WAITS_WITH_QUEUE)) ->
    sleeps = false
  :: else ->
    if
    :: sleeps = false /* run_ready(), or the backend has leftovers */
    :: fall_asleep_and_wait()
    fi
  fi;
  if
  :: event -> event = false
  :: true /* a stop comes before the event is read: it is still there at the next wait */
  fi;
  if
  :: over -> inner = false; goto close
  :: else
  fi;
  if
  :: signals -> mailbox(signals = false)
  :: !signals
  fi;
  flag = stop;
  if
  :: flag -> stop = false
  :: else
  fi;
  if
  :: inner && (flag || len(queue) == 0) -> inner = false; goto immediates
  :: inner && !flag -> goto turn
  :: !inner && closes && interruptions == 0 -> goto close
  :: !inner -> goto turn
  fi;

close:
  waker_closed = true;
  release_waker();
  mailbox(left = head; head = (mistake == CLOSE_LEAVES_STACK_OPEN -> NOBODY : CLOSED));
  queue_all(left);
  mailbox(event_number = false);
  if
  :: mistake == CLOSE_WAITS_FOR_NO_WRITER
  :: else -> (writers == 0)
  fi;
  event_is_open = false;
  do
  :: len(queue) > 0 -> queue?work; run_work()
  :: else -> break
  od;
  release_mailbox()
}

/* ---------------------------------------------------------------------------------------------- */

c_code {
\#include <stdlib.h>
static unsigned char given(const char* name) {
  const char* text = getenv(name);
  return text == 0 ? 0 : (unsigned char)atoi(text);
}
}

init {
  byte count;
  c_code {
    now.mistake = given("MISTAKE");
    now.posters = given("POSTERS");
    now.senders = given("SENDERS");
    now.nudgers = given("NUDGERS");
    now.signallers = given("SIGNALLERS");
    now.stoppers = given("STOPPERS");
    now.acts = given("ACTS");
    now.others = given("OTHERS");
    now.closes = given("CLOSES");
    now.nests = given("NESTS");
  };
  atomic {
    interruptions = signallers + stoppers;
    references = 2 + nudgers + (mistake == POSTERS_HOLD_NOTHING -> 0 : posters);
    waker_references = 1 + (mistake == SENDERS_HOLD_NOTHING -> 0 : senders);
    run loop();
    for (count : 1 .. posters) { run poster(count - 1) }
    for (count : 1 .. senders) { run sender() }
    for (count : 1 .. nudgers) { run nudger() }
    for (count : 1 .. signallers) { run interrupter(false) }
    for (count : 1 .. stoppers) { run interrupter(true) }
    count = 0
  }
  (_nr_pr == 1);
  assert(freed && waker_freed && !event_is_open);
  assert(accepted[0] == came[0] && accepted[1] == came[1] && accepted[2] == came[2])
}
