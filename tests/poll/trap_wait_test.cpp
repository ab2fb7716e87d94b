#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include <map>

#include "poll/naive_poller.hpp"
#include "poll/poll_fixture.hpp"
#include "support/resident_bytes.hpp"

/** @file
 * Traps of waiting, of odd descriptors and of fork; as in trap_identity_test.cpp, each scenario
 * also runs on a NaivePoller that falls in.
 */
namespace evix::detail {
namespace {

constexpr Ready both = Ready::readable | Ready::writable;

// T049: hang-ups and errors are reported whatever the mask, so no interest is not in the set.

Fd inet_socket(int type) { return own(::socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

sockaddr_in bind_loopback(const Fd& fd) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(fd.get(), name, size), 0);
  EXPECT_EQ(::getsockname(fd.get(), name, &size), 0);
  return address;
}

Pair tcp_pair() {
  const Fd listener = inet_socket(SOCK_STREAM);
  const sockaddr_in address = bind_loopback(listener);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  Fd client = own(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
            0);
  Fd server = own(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  EXPECT_TRUE(server);
  return {std::move(server), std::move(client)};
}

/** One descriptor in each state that hangs up or fails without anybody asking. */
std::vector<Pair> hung_up() {
  std::vector<Pair> list;
  list.push_back(pipe_pair());
  list.back().b.reset();
  list.push_back(tcp_pair());
  const linger reset{1, 0};
  ::setsockopt(list.back().b.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  list.back().b.reset();
  list.push_back(tcp_pair());
  ::shutdown(list.back().a.get(), SHUT_WR);
  list.back().b.reset();
  list.push_back({inet_socket(SOCK_DGRAM), {}});
  {
    const Fd nobody = inet_socket(SOCK_DGRAM);
    const sockaddr_in address = bind_loopback(nobody);
    ::connect(list.back().a.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  EXPECT_EQ(::send(list.back().a.get(), "x", 1, 0), 1);
  list.push_back({inet_socket(SOCK_STREAM), {}});
  return list;
}

TEST_P(PollerSuite, TrapT049MaskZeroStillHup) {
  Poller poller = make();
  const std::vector<Pair> list = hung_up();
  std::vector<InterestId> ids;
  for (const Pair& pair : list) {
    ids.push_back(*poller.add(pair.a.get(), Ready::readable, Trigger::level, ids.size()));
  }
  EXPECT_EQ(tokens_now(poller), (Tokens{0, 1, 2, 3, 4}));
  for (const bool by_interest : {false, true}) {
    for (const InterestId id : ids) {
      ASSERT_TRUE(by_interest ? poller.modify(id, Ready::none, Trigger::level)
                              : poller.disable(id));
    }
    const Idle seen = idle(poller);
    expect_no_spin(seen);
    EXPECT_EQ(seen.events, 0);
    for (const InterestId id : ids) {
      ASSERT_TRUE(poller.modify(id, Ready::readable, Trigger::level));
      ASSERT_TRUE(poller.enable(id));
    }
    std::map<std::uint64_t, Ready> ready;
    for (const PollEvent& event : events_now(poller)) ready[event.token] = event.ready;
    ASSERT_EQ(ready.size(), 5U) << "on resume the state is delivered";
    constexpr Ready end = Ready::readable | Ready::hangup | Ready::read_closed;
    EXPECT_EQ(ready[0], Ready::hangup);
    EXPECT_EQ(ready[1], end | Ready::error);
    EXPECT_EQ(ready[2], end);
    EXPECT_EQ(ready[3], Ready::error);
    EXPECT_EQ(ready[4], Ready::hangup);
  }
}

TEST_P(PollerSuite, TrapT049IsNoticed) {
  NaivePoller poller(GetParam(), Mistake::mask_zero);
  const Pair pipe = std::move(hung_up()[0]);
  ASSERT_TRUE(poller.add(pipe.a.get(), Ready::readable, Trigger::level, 1));
  poller.disable(pipe.a.get());
  EXPECT_GT(idle(poller).waits, 1000);
}

// T077: epoll refuses what poll(2) calls always ready.

TEST_P(PollerSuite, TrapT077EpollEperm) {
  for (const char* path : {"/etc/passwd", "/dev/null", "/dev/zero", "/"}) {
    for (const Ready interest : {Ready::readable, Ready::writable, both}) {
      SCOPED_TRACE(testing::Message() << path << " " << static_cast<int>(interest));
      Poller poller = make();
      const Fd fd = own(::open(path, O_RDONLY | O_CLOEXEC));
      const Pair other = stream_pair();
      ASSERT_TRUE(poller.add(other.a.get(), Ready::readable, Trigger::level, 2));
      const auto id = poller.add(fd.get(), interest, Trigger::level, 1);
      ASSERT_TRUE(id);
      for (int wait = 0; wait < 10; ++wait) {
        EXPECT_EQ(poller.wait(forever), 1U);
        const auto event = poller.next();
        ASSERT_TRUE(event);
        EXPECT_EQ(event->token, 1U);
        EXPECT_EQ(event->handle, fd.get());
        EXPECT_EQ(event->ready, interest);
        EXPECT_FALSE(poller.next());
      }
      put(other.b);
      EXPECT_EQ(tokens_now(poller), (Tokens{1, 2}));
      EXPECT_EQ(drain(other.a.get()), 1U);
      EXPECT_TRUE(poller.failures().empty());
      EXPECT_TRUE(poller.disable(*id));
      EXPECT_EQ(tokens_now(poller), Tokens{});
      EXPECT_TRUE(poller.enable(*id));
      EXPECT_EQ(tokens_now(poller), Tokens{1});
      EXPECT_TRUE(poller.remove(*id));
      EXPECT_EQ(tokens_now(poller), Tokens{});
      const auto now = poller.add_now(fd.get(), interest, Trigger::level, 3);
      ASSERT_TRUE(now);
      EXPECT_EQ(tokens_now(poller), Tokens{3});
    }
  }
}

TEST(PollerTraps, T077IsNoticed) {
  NaivePoller poller(BackendKind::epoll, Mistake::refuse_files);
  const Fd null = own(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(poller.add(null.get(), both, Trigger::level, 1).error(),
            std::errc::operation_not_permitted);
}

// T084: a remainder below a millisecond, rounded down, becomes a busy loop.

struct TickCounts {
  int fires = 0;
  int waits = 0;
  std::int64_t cpu_ns = 0;
};

template <class AnyPoller>
TickCounts tick_for_two_seconds(AnyPoller& poller) {
  constexpr std::int64_t period_ns = 1'500'000;
  TickCounts counts;
  const std::int64_t cpu_start = cpu_ns();
  const std::int64_t end = now_ns() + 2'000'000'000;
  std::int64_t due = now_ns() + period_ns;
  for (std::int64_t now = now_ns(); now < end; now = now_ns()) {
    if (now >= due) {
      ++counts.fires;
      due = now + period_ns;
    }
    EXPECT_TRUE(poller.wait(Duration(due - now)));
    ++counts.waits;
  }
  counts.cpu_ns = cpu_ns() - cpu_start;
  return counts;
}

TEST_P(PollerSuite, TrapT084SubMsRemainderSpins) {
  Poller poller = make();
  calls.refuse(CallId::epoll_wait_ns, ENOSYS);
  const TickCounts counts = tick_for_two_seconds(poller);
  EXPECT_LE(counts.waits, 2 * (counts.fires + 1));
  EXPECT_GT(counts.fires, 100);
  EXPECT_LT(counts.cpu_ns, 60'000'000) << "3 %";
}

TEST_P(PollerSuite, TrapT084IsNoticed) {
  NaivePoller poller(GetParam(), Mistake::round_down);
  const TickCounts counts = tick_for_two_seconds(poller);
  EXPECT_GT(counts.waits, 4 * (counts.fires + 1));
}

// T158: nothing is sized by the number of a descriptor.

class DescriptorLimit {
 public:
  /** Raises the limit, if need be beyond the hard one, which only a privileged process may. */
  explicit DescriptorLimit(rlim_t wanted) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit raised{wanted, std::max(wanted, before_.rlim_max)};
    raised_ = ::setrlimit(RLIMIT_NOFILE, &raised) == 0;
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  bool raised() const { return raised_; }
  static rlim_t hard() {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_max;
  }

 private:
  rlimit before_{};
  bool raised_ = false;
};

void watch_high_number(Poller& poller, int number) {
  const Pair pair = stream_pair();
  const Fd high = own(::fcntl(pair.a.get(), F_DUPFD_CLOEXEC, number));
  ASSERT_EQ(high.get(), number);
  const std::int64_t before = test::resident_bytes();
  std::vector<Trigger> triggers{Trigger::level, Trigger::one_shot};
  if (poller.supports_edge()) triggers.push_back(Trigger::edge);
  for (const Trigger trigger : triggers) {
    const auto id = poller.add(number, both, trigger, 1);
    ASSERT_TRUE(id);
    EXPECT_EQ(poller.add(number, both, trigger, 2).error(), Errc::already_registered);
    put(pair.b);
    const auto events = events_now(poller);
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].handle, number);
    EXPECT_EQ(events[0].ready, both);
    EXPECT_EQ(drain(number), 1U);
    EXPECT_TRUE(poller.remove(*id));
  }
  EXPECT_LT(test::resident_bytes() - before, 4 << 20);
}

TEST_P(PollerSuite, TrapT158FdOver1024) {
  const rlim_t hard = DescriptorLimit::hard();
  const rlim_t count = std::min<rlim_t>(hard, 200'000);
  ASSERT_GT(count, 1'024U);
  const DescriptorLimit limit(count);
  ASSERT_TRUE(limit.raised());
  Poller poller = make();
  watch_high_number(poller, static_cast<int>(count) - 1);
}

TEST_P(PollerSuite, TrapT158Fd199999) {
  const DescriptorLimit limit(200'000);
  if (!limit.raised()) {
    GTEST_SKIP() << "the hard limit of descriptors is " << DescriptorLimit::hard()
                 << " and may not be raised to 200,000 here";
  }
  Poller poller = make();
  watch_high_number(poller, 199'999);
}

TEST(PollerTraps, T158IsNoticed) {
  NaivePoller poller(BackendKind::poll, Mistake::number_limit);
  const Pair pair = stream_pair();
  const Fd high = own(::fcntl(pair.a.get(), F_DUPFD_CLOEXEC, 1'024));
  EXPECT_EQ(poller.add(high.get(), both, Trigger::level, 1).error(), std::errc::value_too_large);
}

// T159: more are ready than one list holds.

struct Fairness {
  int least = INT_MAX;
  int most = 0;
  int longest_gap = 0;  ///< waits between two events of one descriptor
};

template <class AnyPoller>
Fairness serve_in_batches(AnyPoller& poller, int waits) {
  constexpr std::size_t count = 5'000;
  std::vector<Fd> fds;
  for (std::uint64_t token = 0; token < count; ++token) {
    fds.push_back(own(::eventfd(1, EFD_CLOEXEC)));
    EXPECT_TRUE(poller.add(fds.back().get(), Ready::readable, Trigger::level, token));
  }
  std::vector<int> served(count, 0);
  std::vector<int> last(count, 0);
  Fairness result;
  for (int wait = 1; wait <= waits; ++wait) {
    EXPECT_EQ(*poller.wait(Duration::zero()), 64U);
    while (const auto event = poller.next()) {
      ++served[event->token];
      result.longest_gap = std::max(result.longest_gap, wait - last[event->token]);
      last[event->token] = wait;
    }
  }
  result.least = *std::min_element(served.begin(), served.end());
  result.most = *std::max_element(served.begin(), served.end());
  return result;
}

TEST_P(PollerSuite, TrapT159HandlerIoInWrongBatchSize) {
  Poller poller = make(64);
  const Fairness fairness = serve_in_batches(poller, 10'000);
  EXPECT_LE(fairness.most - fairness.least, 2);
  EXPECT_GE(fairness.least, 10'000 * 64 / 5'000 - 1);
  EXPECT_LE(fairness.longest_gap, (5'000 + 63) / 64 + 1);
}

TEST(PollerTraps, T159IsNoticed) {
  NaivePoller poller(BackendKind::poll, Mistake::first_come, 64);
  const Fairness fairness = serve_in_batches(poller, 100);
  EXPECT_EQ(fairness.least, 0);
  EXPECT_EQ(fairness.most, 100);
}

// T032: one epoll object in two processes with different descriptor tables.

/** Counts that a child writes for its parent to read. */
struct ForkCounts {
  int parent = 0;         ///< the parent's events of its pipe; right: 1
  int child_of_pipe = 0;  ///< the child's events before its own socket is written to; right: 0
  int child_own = 0;      ///< right: 1
  int parent_late = 0;    ///< the parent's events after its own was read; right: 0
};

void signal_peer(const Fd& fd) { EXPECT_EQ(::write(fd.get(), "s", 1), 1); }
void await_peer(const Fd& fd) {
  char byte = 0;
  EXPECT_EQ(::read(fd.get(), &byte, 1), 1);
}

template <class AnyPoller>
int count_events(AnyPoller& poller, Duration timeout) {
  if (!poller.wait(timeout)) return -1;
  int count = 0;
  while (poller.next()) ++count;
  return count;
}

Pair blocking_pipe() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  return {own(fds[0]), own(fds[1])};
}

/** The child of T032: leaves the pipe, watches a socket under the pipe's number. */
template <class AnyPoller>
void watch_other_in_child(AnyPoller& poller, IdOf<AnyPoller> id, Pair& pipe, const Pair& to_child,
                          const Pair& to_parent) {
  const int number = pipe.a.get();
  (void)poller.after_fork();
  (void)poller.remove(id);
  pipe.a.reset();
  const Pair own_pair = stream_pair();
  (void)poller.add(own_pair.a.get() == number ? number : own_pair.b.get(), Ready::readable,
                   Trigger::level, 2);
  ForkCounts counts;
  counts.child_of_pipe += count_events(poller, Duration::zero());
  signal_peer(to_parent.b);  // the set is made
  await_peer(to_child.a);    // the pipe has been written to
  counts.child_of_pipe += count_events(poller, std::chrono::milliseconds(100));
  put(own_pair.a.get() == number ? own_pair.b : own_pair.a);
  counts.child_own = count_events(poller, std::chrono::seconds(5));
  EXPECT_EQ(::write(to_parent.b.get(), &counts, sizeof counts), sizeof counts);
  await_peer(to_child.a);  // the parent has looked once more
  ::_exit(0);
}

template <class AnyPoller>
ForkCounts fork_and_watch(AnyPoller& poller) {
  Pair pipe = pipe_pair();
  const Pair to_child = blocking_pipe();
  const Pair to_parent = blocking_pipe();
  const auto id = poller.add(pipe.a.get(), Ready::readable, Trigger::level, 1).value();
  EXPECT_TRUE(poller.wait(Duration::zero()));
  const pid_t child = ::fork();
  if (child == 0) watch_other_in_child(poller, id, pipe, to_child, to_parent);
  await_peer(to_parent.a);
  put(pipe.b);
  const int parent = count_events(poller, std::chrono::milliseconds(500));
  signal_peer(to_child.b);
  ForkCounts counts;
  EXPECT_EQ(::read(to_parent.a.get(), &counts, sizeof counts), sizeof counts);
  counts.parent = parent;
  drain(pipe.a.get());
  counts.parent_late = count_events(poller, Duration::zero());
  signal_peer(to_child.b);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return counts;
}

TEST_P(PollerSuite, TrapT032EpollSharedOverFork) {
  Poller poller = make();
  const ForkCounts counts = fork_and_watch(poller);
  EXPECT_EQ(counts.parent, 1);
  EXPECT_EQ(counts.child_of_pipe, 0);
  EXPECT_EQ(counts.child_own, 1);
  EXPECT_EQ(counts.parent_late, 0);
}

TEST(PollerTraps, T032IsNoticed) {
  NaivePoller poller(BackendKind::epoll, Mistake::shared_set);
  EXPECT_NE(fork_and_watch(poller).parent, 1) << "the child's removal took the parent's watch";
}

/** The inherited object is never changed: only a new one is made, then the old number closed. */
TEST_P(PollerSuite, TrapT032AfterForkLeavesTheInheritedObjectAlone) {
  if (!is_epoll()) {
    Poller poller = make();
    EXPECT_TRUE(poller.after_fork());
    EXPECT_EQ(calls.total(), 0U) << "poll(2) has no object";
    return;
  }
  Poller poller = make();
  const Pair pair = stream_pair();
  ASSERT_TRUE(poller.add_now(pair.a.get(), Ready::writable, Trigger::level, 1));
  calls.reset_counts();
  std::vector<CallId> made;
  calls.before = [&](CallId id) { made.push_back(id); };
  EXPECT_TRUE(poller.after_fork());
  calls.before = nullptr;
  EXPECT_EQ(made, (std::vector{CallId::epoll_create, CallId::close, CallId::epoll_control}));
  EXPECT_EQ(tokens_now(poller), Tokens{1});
}

TEST_P(PollerSuite, AfterForkWithoutANewObjectIsAnErrorAndCanBeRepeated) {
  if (!is_epoll()) return;
  Poller poller = make();
  const Pair pair = stream_pair();
  ASSERT_TRUE(poller.add_now(pair.a.get(), Ready::writable, Trigger::level, 1));
  calls.fail(CallId::epoll_create, 1, EMFILE);
  EXPECT_EQ(poller.after_fork().error(), std::errc::too_many_files_open);
  EXPECT_TRUE(poller.after_fork());
  EXPECT_EQ(tokens_now(poller), Tokens{1});
}

// T043: after a fork each descriptor has its own result.

/** @return 0, or the number of the first check that failed. */
int check_after_fork(Poller& poller, const InterestId& closed, const Pair& normal) {
  if (!poller.after_fork()) return 1;
  if (poller.failures().size() != 1) return 2;
  if (poller.failures()[0].id != closed) return 3;
  if (poller.failures()[0].token != 3) return 4;
  if (!(poller.failures()[0].error == std::errc::bad_file_descriptor)) return 5;
  put(normal.b);
  if (tokens_now(poller) != Tokens{1, 2, 4}) return 6;
  if (poller.size() != 5) return 7;
  return 0;
}

TEST_P(PollerSuite, TrapT043InternalFdReAddAfterFork) {
  Poller poller = make();
  const Pair normal = stream_pair();
  const Fd file = own(::open("/etc/passwd", O_RDONLY | O_CLOEXEC));
  Pair closed = stream_pair();
  const Fd event = own(::eventfd(1, EFD_CLOEXEC));
  const Pair disabled = stream_pair();
  const Pair pending = stream_pair();
  ASSERT_TRUE(poller.add(normal.a.get(), Ready::readable, Trigger::level, 1));
  ASSERT_TRUE(poller.add(file.get(), Ready::readable, Trigger::level, 2));
  const auto id = poller.add(closed.a.get(), Ready::readable, Trigger::level, 3);
  ASSERT_TRUE(poller.add(event.get(), Ready::readable, Trigger::level, 4));
  const auto off = poller.add(disabled.a.get(), Ready::writable, Trigger::level, 5);
  EXPECT_EQ(poller.commit(), 0U);
  ASSERT_TRUE(poller.disable(*off));
  ASSERT_TRUE(poller.add(pending.a.get(), Ready::readable, Trigger::level, 6));
  closed.a.reset();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(check_after_fork(poller, *id, normal));
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "exit status " << WEXITSTATUS(status);
}

/** The new kernel object takes the lowest free number: that of the descriptor closed by others. */
TEST_P(EpollSuite, TrapT043NumberTakenByThePollerItself) {
  Poller poller = make();
  Pair closed = stream_pair();
  const auto id = poller.add_now(closed.a.get(), Ready::readable, Trigger::level, 1);
  closed.a.reset();
  ASSERT_TRUE(poller.after_fork());
  ASSERT_EQ(poller.failures().size(), 1U);
  EXPECT_EQ(poller.failures()[0].id, *id);
  EXPECT_EQ(poller.failures()[0].error, std::errc::bad_file_descriptor);
}

TEST(PollerTraps, T043IsNoticed) {
  NaivePoller poller(BackendKind::epoll, Mistake::strict_fork);
  const Pair normal = stream_pair();
  Pair closed = stream_pair();
  ASSERT_TRUE(poller.add(normal.a.get(), Ready::readable, Trigger::level, 1));
  ASSERT_TRUE(poller.add(closed.a.get(), Ready::readable, Trigger::level, 2));
  closed.a.reset();
  EXPECT_FALSE(poller.after_fork());
}

}  // namespace
}  // namespace evix::detail
