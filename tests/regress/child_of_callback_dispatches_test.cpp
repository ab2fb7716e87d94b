#include <unistd.h>

#include "backend/conformance.hpp"
#include "backend/fork_support.hpp"
#include "backend/stimulus.hpp"

// A child that was forked inside a callback went on with the parent's turn: it ran posts, timers
// and completions that the parent ran too.
namespace evix::test {
namespace {

const int forked_code = static_cast<int>(Errc::forked);

class ChildOfCallbackDispatches : public Conformance {
 protected:
  /** In a callback. The parent goes on when its child has ended, or stops if that went wrong. */
  void fork_here() {
    child = ::fork();
    ASSERT_GE(child, 0);
    forked = true;
    if (child == 0) {
      ::alarm(child_lifetime_s);
      return;
    }
    child_ended = wait_for_child(child);
    if (child_ended != 0) loop.stop();
  }
  void after() {
    if (forked) ++calls_after;
  }
  /** Runs the loop in both, and ends the child: 0 when nothing was dispatched in it. */
  void expect_nothing_in_the_child(int calls_in_parent) {
    const int code = loop.run();
    if (child == 0) {
      const bool right = code == forked_code && calls_after == 0 && loop.run() == forked_code &&
                         loop.error() == Errc::forked && calls_after == 0;
      ::_exit(right ? 0 : code == forked_code ? 100 + calls_after : 99);
    }
    EXPECT_EQ(code, 0);
    ASSERT_EQ(child_ended, 0);
    EXPECT_EQ(calls_after, calls_in_parent);
  }
  pid_t child = -1;
  int child_ended = -1;
  bool forked = false;
  int calls_after = 0;
};
EVIX_OVER_BACKENDS(ChildOfCallbackDispatches);

TEST_P(ChildOfCallbackDispatches, PostAfterPost) {
  loop.post([&] {
    loop.post([&] { after(); });
    fork_here();
  });
  loop.post([&] { after(); });
  expect_nothing_in_the_child(2);
}

TEST_P(ChildOfCallbackDispatches, TimerAfterTimer) {
  Timer first(loop);
  Timer second(loop);
  first.after(0ms, [&] {
    loop.post([&] { after(); });
    fork_here();
  });
  second.after(0ms, [&] { after(); });
  expect_nothing_in_the_child(2);
}

TEST_P(ChildOfCallbackDispatches, TimerAfterPost) {
  Timer timer(loop);
  timer.after(0ms, [&] { after(); });
  loop.post([&] { fork_here(); });
  expect_nothing_in_the_child(1);
}

TEST_P(ChildOfCallbackDispatches, CompletionAfterCompletion) {
  TcpPair pair;
  ASSERT_TRUE(pair.open(loop));
  const auto one = [&](const Result<Buffer>& bytes) {
    ASSERT_TRUE(bytes);
    if (forked) {
      after();
    } else {
      fork_here();
    }
  };
  pair.client.receive(one);
  pair.server.receive(one);
  ASSERT_TRUE(pair.client.send_copy("to the server"));
  ASSERT_TRUE(pair.server.send_copy("to the client"));
  expect_nothing_in_the_child(1);
}

TEST_P(ChildOfCallbackDispatches, FinishedAfterFinished) {
  TcpStream unconnected(loop);
  TcpStream another(loop);
  unconnected.receive([&](const Result<Buffer>&) { fork_here(); });
  another.receive([&](const Result<Buffer>&) { after(); });
  expect_nothing_in_the_child(1);
}

}  // namespace
}  // namespace evix::test
