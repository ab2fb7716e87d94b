#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <map>
#include <set>

#include "base/prng.hpp"
#include "poll/naive_poller.hpp"
#include "poll/poll_fixture.hpp"

/** @file
 * Traps of identity and lifetime. Each scenario runs on evix::Poller, where it must hold, and on a
 * NaivePoller with the mistake that the trap is about, where it must fail: that is the proof that
 * the test would notice.
 */
namespace evix::detail {
namespace {

constexpr Ready both = Ready::readable | Ready::writable;

// T001: a descriptor's number is reused while its old event is still in the list.

struct ReuseCounts {
  int stale = 0;  ///< events of the removed interest
  int fresh = 0;  ///< events of the idle one that took its number
};

template <class AnyPoller>
ReuseCounts reuse_in_batch(AnyPoller& poller) {
  Pair pairs[2] = {stream_pair(), stream_pair()};
  std::map<std::uint64_t, IdOf<AnyPoller>> ids;
  for (const std::uint64_t token : {0, 1}) {
    put(pairs[token].b);
    ids[token] = poller.add(pairs[token].a.get(), Ready::readable, Trigger::level, token).value();
  }
  EXPECT_TRUE(poller.wait(Duration::zero()));
  const auto first = poller.next();
  EXPECT_TRUE(first);
  const std::uint64_t other = 1 - first->token;
  const int number = pairs[other].a.get();
  poller.remove(ids[other]);
  pairs[other].a.reset();
  std::vector<Pair> idle_pairs;
  do idle_pairs.push_back(stream_pair());
  while (idle_pairs.back().a.get() != number && idle_pairs.back().b.get() != number);
  EXPECT_TRUE(poller.add(number, Ready::readable, Trigger::level, 2));
  ReuseCounts counts;
  for (int wait = 0; wait < 3; ++wait) {
    while (const auto event = poller.next()) {
      counts.stale += event->token == other ? 1 : 0;
      counts.fresh += event->token == 2 ? 1 : 0;
    }
    EXPECT_TRUE(poller.wait(Duration::zero()));
  }
  return counts;
}

TEST_P(PollerSuite, TrapT001FdReuseInBatch) {
  Poller poller = make();
  const ReuseCounts counts = reuse_in_batch(poller);
  EXPECT_EQ(counts.stale, 0);
  EXPECT_EQ(counts.fresh, 0);
}

TEST_P(PollerSuite, TrapT001IsNoticed) {
  NaivePoller by_number(GetParam(), Mistake::by_number);
  EXPECT_EQ(reuse_in_batch(by_number).fresh, 1);
  NaivePoller no_recheck(GetParam(), Mistake::no_recheck);
  EXPECT_EQ(reuse_in_batch(no_recheck).stale, 1);
}

/**
 * 500 readable descriptors; walking them, others are closed and their numbers taken by idle ones.
 * dup2(2) closes and takes the number in one call.
 */
template <class AnyPoller>
class ReuseAmongMany {
 public:
  explicit ReuseAmongMany(AnyPoller& poller) : poller_(poller) {
    for (std::size_t i = 0; i < count; ++i) {
      watches_.push_back({own(::dup(ready_.get())), {}, 0, true});
      start(watches_.back(), true);
    }
  }

  /** @return how many events went to a removed interest or an idle descriptor. */
  int wrong_events(std::uint64_t seed) {
    Prng random(seed);
    int wrong = 0;
    std::set<std::uint64_t> silent;
    EXPECT_EQ(*poller_.wait(Duration::zero()), count);
    while (const auto event = poller_.next()) {
      wrong += silent.contains(event->token) ? 1 : 0;
      if (random.below(8) != 0) continue;
      Watch& victim = watches_[random.below(count)];
      silent.insert(victim.token);
      restart(victim, false);
      silent.insert(victim.token);
    }
    EXPECT_TRUE(poller_.wait(Duration::zero()));
    while (const auto event = poller_.next()) wrong += silent.contains(event->token) ? 1 : 0;
    for (Watch& watch : watches_) {
      if (!watch.ready) restart(watch, true);
    }
    return wrong;
  }

 private:
  static constexpr std::size_t count = 500;
  struct Watch {
    Fd fd;
    IdOf<AnyPoller> id;
    std::uint64_t token;
    bool ready;
  };

  void start(Watch& watch, bool ready) {
    watch.ready = ready;
    watch.token = next_token_++;
    watch.id = poller_.add(watch.fd.get(), Ready::readable, Trigger::level, watch.token).value();
  }

  void restart(Watch& watch, bool ready) {
    poller_.remove(watch.id);
    const int source = ready ? ready_.get() : idle_.get();
    EXPECT_EQ(::dup2(source, watch.fd.get()), watch.fd.get());
    start(watch, ready);
  }

  AnyPoller& poller_;
  const Fd ready_ = own(::eventfd(1, EFD_CLOEXEC));
  const Fd idle_ = own(::eventfd(0, EFD_CLOEXEC));
  std::vector<Watch> watches_;
  std::uint64_t next_token_ = 0;
};

TEST_P(PollerSuite, TrapT001FdReuseAmong500) {
  Poller poller = make(500);
  ReuseAmongMany<Poller> many(poller);
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    ASSERT_EQ(many.wrong_events(seed), 0) << "seed " << seed;
  }
  EXPECT_EQ(poller.size(), 500U);
  EXPECT_EQ(calls.count(CallId::epoll_create), is_epoll() ? 1U : 0U) << "no rebuild was needed";
}

TEST_P(PollerSuite, TrapT001Among500IsNoticed) {
  NaivePoller poller(GetParam(), Mistake::by_number, 500);
  ReuseAmongMany<NaivePoller> many(poller);
  EXPECT_GT(many.wrong_events(1), 10);
}

// T003: the second half of an event meets another file under the same number.

struct SplitCounts {
  int callbacks = 0;
  std::int64_t file_size = 0;
};

template <class AnyPoller>
SplitCounts split_readiness(AnyPoller& poller) {
  Pair pair = stream_pair();
  put(pair.b);
  const int number = pair.a.get();
  const auto id = poller.add(number, both, Trigger::level, 1).value();
  EXPECT_TRUE(poller.wait(Duration::zero()));
  SplitCounts counts;
  Fd file;
  while (const auto event = poller.next()) {
    ++counts.callbacks;
    if (any(event->ready, Ready::readable)) {
      poller.remove(id);
      pair.a.reset();
      file = own(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
      EXPECT_EQ(file.get(), number);
    } else {
      EXPECT_EQ(::write(event->handle, "meant for the socket", 20), 20);
    }
  }
  struct stat status{};
  EXPECT_EQ(::fstat(file.get(), &status), 0);
  counts.file_size = status.st_size;
  return counts;
}

TEST_P(PollerSuite, TrapT003SplitReadiness) {
  Poller poller = make();
  const SplitCounts counts = split_readiness(poller);
  EXPECT_EQ(counts.callbacks, 1);
  EXPECT_EQ(counts.file_size, 0);
}

TEST_P(PollerSuite, TrapT003IsNoticed) {
  NaivePoller poller(GetParam(), Mistake::split_bits);
  const SplitCounts counts = split_readiness(poller);
  EXPECT_EQ(counts.callbacks, 2);
  EXPECT_EQ(counts.file_size, 20);
}

// T004, K6: a duplicate keeps the description, and with it the kernel's registration, alive.

TEST_P(PollerSuite, TrapT004SharedDescriptionJunkEvents) {
  Poller poller = make();
  Pair pair = stream_pair();
  const auto id = poller.add_now(pair.a.get(), Ready::readable, Trigger::level, 1);
  const Fd duplicate = own(::dup(pair.a.get()));
  EXPECT_TRUE(poller.remove(*id));
  pair.a.reset();
  put(pair.b);
  const Idle seen = idle(poller);
  expect_no_spin(seen);
  EXPECT_EQ(seen.events, 0);
}

TEST_P(PollerSuite, TrapT004DescriptionHeldByAChild) {
  Poller poller = make();
  Pair pair = stream_pair();
  const auto id = poller.add_now(pair.a.get(), Ready::readable, Trigger::level, 1);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) ::pause();
  }
  EXPECT_TRUE(poller.remove(*id));
  pair.a.reset();
  put(pair.b);
  const Idle seen = idle(poller);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  expect_no_spin(seen);
  EXPECT_EQ(seen.events, 0);
}

/** Forgotten although a duplicate exists: the kernel goes on about a key that nobody has. */
template <class AnyPoller>
Idle forgotten_with_duplicate(AnyPoller& poller) {
  Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::readable, Trigger::level, 1).value();
  EXPECT_TRUE(poller.wait(Duration::zero()));
  const Fd duplicate = own(::dup(pair.a.get()));
  EXPECT_TRUE(poller.forget(id));
  pair.a.reset();
  put(pair.b);
  return idle(poller);
}

TEST_P(PollerSuite, TrapT004JunkKeyRebuildsTheSetOnce) {
  Poller poller = make();
  const Pair other = stream_pair();
  ASSERT_TRUE(poller.add(other.a.get(), Ready::readable, Trigger::level, 2));
  const Idle seen = forgotten_with_duplicate(poller);
  expect_no_spin(seen);
  EXPECT_EQ(seen.events, 0);
  EXPECT_EQ(calls.count(CallId::epoll_create), is_epoll() ? 2U : 0U);
  put(other.b);
  EXPECT_EQ(tokens_now(poller), Tokens{2}) << "others keep working";
}

TEST(PollerTraps, T004IsNoticed) {
  NaivePoller poller(BackendKind::epoll, Mistake::no_rebuild);
  EXPECT_GT(forgotten_with_duplicate(poller).waits, 1000);
}

TEST_P(PollerSuite, TrapT004ClosedBehindTheBack) {
  Poller poller = make();
  const Pair other = stream_pair();
  ASSERT_TRUE(poller.add(other.a.get(), Ready::readable, Trigger::level, 2));
  Pair pair = stream_pair();
  const auto id = poller.add(pair.a.get(), Ready::readable, Trigger::level, 1);
  EXPECT_EQ(tokens_now(poller), Tokens{});
  const Fd duplicate = own(::dup(pair.a.get()));
  pair.a.reset();
  put(pair.b);
  int invalid = 0;
  int events = 0;
  const std::int64_t start = now_ns();
  while (invalid == 0) {
    ASSERT_TRUE(poller.wait(std::chrono::seconds(1)));
    while (const auto event = poller.next()) {
      ++events;
      EXPECT_EQ(event->id, *id);
      if (any(event->ready, Ready::invalid)) ++invalid;
    }
    ASSERT_LT(now_ns() - start, 1'000'000'000) << events << " events, none of them invalid";
  }
  EXPECT_LE(events, 1100);
  EXPECT_EQ(poller.remove(*id).error(), Errc::stale_handle) << "the interest has been removed";
  expect_no_spin(idle(poller));
  put(other.b);
  EXPECT_EQ(tokens_now(poller), Tokens{2});
}

TEST_P(EpollSuite, TrapT004ClosedAndNumberReused) {
  Poller poller = make();
  Pair pair = stream_pair();
  const int number = pair.a.get();
  const auto id = poller.add(number, Ready::readable, Trigger::level, 1);
  EXPECT_EQ(tokens_now(poller), Tokens{});
  const Fd duplicate = own(::fcntl(number, F_DUPFD_CLOEXEC, 100));
  pair.a.reset();
  const Fd unrelated = own(::eventfd(0, EFD_CLOEXEC));
  ASSERT_EQ(unrelated.get(), number);
  put(pair.b);
  int invalid = 0;
  for (int wait = 0; wait < 2'000; ++wait) {
    for (const PollEvent& event : events_now(poller)) {
      if (any(event.ready, Ready::invalid)) ++invalid;
    }
  }
  EXPECT_EQ(invalid, 1);
  EXPECT_FALSE(poller.remove(*id));
  expect_no_spin(idle(poller));
}

TEST_P(PollerSuite, NumberReusedWithoutRemoveIsAddedWhereTheKernelCanTell) {
  Poller poller = make();
  Pair pair = stream_pair();
  const int number = pair.a.get();
  const auto old_id = poller.add_now(number, Ready::readable, Trigger::level, 1);
  pair.a.reset();
  const Pair next = stream_pair();
  ASSERT_EQ(next.a.get(), number);
  const auto id = poller.add_now(number, Ready::writable, Trigger::level, 2);
  if (!is_epoll()) {
    EXPECT_EQ(id.error(), Errc::already_registered);
    return;
  }
  ASSERT_TRUE(id);
  const auto events = events_now(poller);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].id, *id);
  EXPECT_EQ(events[0].ready, Ready::writable);
  EXPECT_EQ(events[1].id, *old_id);
  EXPECT_EQ(events[1].ready, Ready::invalid);
  EXPECT_EQ(tokens_now(poller), Tokens{2});
}

// T006: removals must not be batched past the close.

/** The numbers that the process's epoll object has. */
std::set<int> kernel_set() {
  std::set<int> numbers;
  for (int fd = 0; fd < 1'000; ++fd) {
    char target[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (::readlink(link.c_str(), target, sizeof target - 1) < 0) continue;
    if (std::string(target) != "anon_inode:[eventpoll]") continue;
    std::ifstream info("/proc/self/fdinfo/" + std::to_string(fd));
    for (std::string word; info >> word;) {
      int number = -1;
      if (word == "tfd:" && info >> number) numbers.insert(number);
    }
  }
  return numbers;
}

/** @return the live numbers, which have to be the kernel's set. */
template <class AnyPoller>
std::set<int> churn(AnyPoller& poller, std::vector<Pair>& live) {
  std::set<int> numbers;
  for (std::uint64_t token = 0; token < 10; ++token) {
    live.push_back(stream_pair());
    numbers.insert(live.back().a.get());
    EXPECT_TRUE(poller.add(live.back().a.get(), Ready::readable, Trigger::level, token));
  }
  EXPECT_TRUE(poller.wait(Duration::zero()));
  Fd fd = own(::eventfd(1, EFD_CLOEXEC));
  const int number = fd.get();
  for (std::uint64_t round = 0; round < 10'000; ++round) {
    const auto id = poller.add(number, Ready::readable, Trigger::level, 100 + round).value();
    poller.remove(id);
    fd.reset();
    fd = own(::eventfd(0, EFD_CLOEXEC));
    EXPECT_EQ(fd.get(), number);
  }
  EXPECT_TRUE(poller.add(number, Ready::readable, Trigger::level, 10));
  numbers.insert(number);
  live.push_back({std::move(fd), {}});
  return numbers;
}

TEST_P(PollerSuite, TrapT006BatchedCtlVersusCloseOrder) {
  Poller poller = make();
  std::vector<Pair> live;
  const std::set<int> numbers = churn(poller, live);
  expect_no_spin(idle(poller));
  EXPECT_EQ(poller.size(), 11U);
  if (is_epoll()) {
    EXPECT_EQ(kernel_set(), numbers);
  }
  for (int i = 0; i < 10; ++i) put(live[i].b);
  const std::uint64_t one = 1;
  ASSERT_EQ(::write(live[10].a.get(), &one, sizeof one), 8);
  EXPECT_EQ(tokens_now(poller), (Tokens{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

TEST_P(PollerSuite, TrapT006WithCommitInEachRound) {
  Poller poller = make();
  Fd fd = own(::eventfd(1, EFD_CLOEXEC));
  const int number = fd.get();
  for (int round = 0; round < 10'000; ++round) {
    const auto id = poller.add(number, Ready::readable, Trigger::level, 1);
    poller.commit();
    ASSERT_TRUE(poller.disable(*id));
    ASSERT_TRUE(poller.enable(*id));
    ASSERT_TRUE(poller.remove(*id));
    fd.reset();
    fd = own(::eventfd(0, EFD_CLOEXEC));
    ASSERT_EQ(fd.get(), number);
  }
  EXPECT_EQ(tokens_now(poller), Tokens{});
  if (is_epoll()) {
    EXPECT_EQ(kernel_set(), std::set<int>{});
  }
}

TEST(PollerTraps, T006IsNoticed) {
  NaivePoller poller(BackendKind::epoll, Mistake::batched_removal);
  std::vector<Pair> live;
  const std::set<int> numbers = churn(poller, live);
  EXPECT_TRUE(poller.wait(Duration::zero()));
  EXPECT_NE(kernel_set(), numbers);
}

// T009: poll(2) says POLLNVAL for ever about a descriptor that others closed.

struct ClosedCounts {
  int invalid = 0;
  Idle after;
};

template <class AnyPoller>
ClosedCounts closed_by_others(AnyPoller& poller) {
  Pair pair = pipe_pair();
  EXPECT_TRUE(poller.add(pair.a.get(), Ready::readable, Trigger::level, 1));
  EXPECT_TRUE(poller.wait(Duration::zero()));
  pair.a.reset();
  ClosedCounts counts;
  EXPECT_TRUE(poller.wait(std::chrono::milliseconds(100)));
  while (const auto event = poller.next()) {
    counts.invalid += event->ready == Ready::invalid ? 1 : 0;
  }
  counts.after = idle(poller);
  return counts;
}

TEST_P(PollerSuite, TrapT009PollnvalSpin) {
  Poller poller = make();
  const ClosedCounts counts = closed_by_others(poller);
  EXPECT_EQ(counts.invalid, is_epoll() ? 0 : 1) << "epoll cannot see it";
  EXPECT_EQ(counts.after.events, 0);
  expect_no_spin(counts.after);
  EXPECT_EQ(poller.size(), is_epoll() ? 1U : 0U);
}

TEST(PollerTraps, T009IsNoticed) {
  NaivePoller poller(BackendKind::poll, Mistake::ignore_invalid);
  const ClosedCounts counts = closed_by_others(poller);
  EXPECT_EQ(counts.invalid, 0);
  EXPECT_GT(counts.after.waits, 1000);
}

// T013: what is stopped by an earlier callback of the same list gets nothing.

template <class AnyPoller>
int cross_stop(AnyPoller& poller) {
  constexpr std::uint64_t count = 64;
  std::vector<Pair> pairs;
  std::vector<IdOf<AnyPoller>> ids;
  for (std::uint64_t token = 0; token < count; ++token) {
    pairs.push_back(stream_pair());
    ids.push_back(poller.add(pairs.back().a.get(), Ready::writable, Trigger::level, token).value());
  }
  EXPECT_EQ(*poller.wait(Duration::zero()), count);
  int callbacks = 0;
  while (const auto event = poller.next()) {
    if (++callbacks > 1) continue;
    for (std::uint64_t token = 0; token < count; ++token) {
      if (token != event->token) poller.remove(ids[token]);
    }
  }
  return callbacks;
}

TEST_P(PollerSuite, TrapT013CrossStopInBatch) {
  Poller poller = make();
  EXPECT_EQ(cross_stop(poller), 1);
  EXPECT_EQ(poller.size(), 1U);
  EXPECT_EQ(calls.count(CallId::epoll_create), is_epoll() ? 1U : 0U) << "no rebuild was needed";
}

TEST_P(PollerSuite, TrapT013IsNoticed) {
  NaivePoller poller(GetParam(), Mistake::no_recheck);
  EXPECT_EQ(cross_stop(poller), 64);
}

}  // namespace
}  // namespace evix::detail
