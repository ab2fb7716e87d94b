#include <evix/evix.hpp>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "backend/stimulus.hpp"
#include "support/fault_calls.hpp"
#include "support/resident_bytes.hpp"

// The traps of sections A, F and S that are about watchers.
namespace evix::test {
namespace {

struct SocketPair {
  OwnDescriptor here;
  OwnDescriptor there;

  explicit SocketPair(int type = SOCK_STREAM) {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    here = OwnDescriptor(ends[0]);
    there = OwnDescriptor(ends[1]);
  }
  void give_byte() const { ASSERT_EQ(write(there.get(), "x", 1), 1); }
};

/** The same description under exactly this number, which must be free or its own. */
OwnDescriptor moved_to(OwnDescriptor made, int number) {
  if (made.get() == number) return made;
  EXPECT_EQ(fcntl(number, F_GETFD), -1) << "the number is in use";
  EXPECT_EQ(dup2(made.get(), number), number);
  return OwnDescriptor(number);
}

OwnDescriptor idle_descriptor_at(int number) {
  return moved_to(OwnDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), number);
}

class WatcherTraps : public Conformance {
 protected:
  void SetUp() override {
    EVIX_SKIP_ON(BackendKind::sim, "watches real descriptors");
    Conformance::SetUp();
  }
};
EVIX_OVER_BACKENDS(WatcherTraps);

TEST_P(WatcherTraps, TrapT001DescriptorReusedInOneBatch) {
  SocketPair a;
  SocketPair b;
  a.give_byte();
  b.give_byte();
  std::array<Watcher, 2> watchers{Watcher(loop), Watcher(loop)};
  std::array<SocketPair*, 2> pairs{&a, &b};
  Watcher fresh(loop);
  OwnDescriptor reused;
  int calls = 0;
  const auto first = [&](std::size_t self) {
    ++calls;
    watchers[self].stop();
    const std::size_t other = 1 - self;
    const int number = pairs[other]->here.get();
    watchers[other].stop();
    pairs[other]->here.reset();
    reused = idle_descriptor_at(number);
    ASSERT_TRUE(fresh.start(number, Ready::readable, [](Ready) { FAIL() << "a stale event"; }));
  };
  for (std::size_t index = 0; index < 2; ++index) {
    ASSERT_TRUE(watchers[index].start(pairs[index]->here.get(), Ready::readable,
                                      [&first, index](Ready) { first(index); }));
  }
  for (int turn = 0; turn < 3; ++turn) EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, 1);
}

/** 500 readable descriptors; each callback takes numbers of others away and gives them out anew. */
void reuse_many(Loop& loop, unsigned seed) {
  constexpr std::size_t count = 500;
  std::minstd_rand random(seed);
  std::vector<OwnDescriptor> descriptors(count);
  std::deque<Watcher> watchers;
  std::vector<bool> called(count);
  std::vector<bool> taken(count);
  std::deque<Watcher> fresh;
  std::vector<std::size_t> order(count);
  for (std::size_t index = 0; index < count; ++index) {
    descriptors[index] = readable_descriptor();
    watchers.emplace_back(loop);
    order[index] = index;
  }
  std::shuffle(order.begin(), order.end(), random);
  const auto take_another = [&] {
    const std::size_t victim = random() % count;
    if (taken[victim] || called[victim]) return;
    taken[victim] = true;
    const int number = descriptors[victim].get();
    watchers[victim].stop();
    descriptors[victim].reset();
    descriptors[victim] = idle_descriptor_at(number);
    ASSERT_TRUE(fresh.emplace_back(loop).start(number, Ready::readable,
                                               [](Ready) { FAIL() << "a stale event"; }));
  };
  for (const std::size_t index : order) {
    ASSERT_TRUE(watchers[index].once(descriptors[index].get(), Ready::readable, [&, index](Ready) {
      EXPECT_FALSE(taken[index]) << "called after stop()";
      called[index] = true;
      take_another();
      take_another();
    }));
  }
  for (int turn = 0; turn < 4; ++turn) ASSERT_EQ(loop.run_ready(), 0);
  for (std::size_t index = 0; index < count; ++index) ASSERT_NE(called[index], taken[index]);
}

// 1000 seeds in the full run, 20 by default.
TEST_P(WatcherTraps, TrapT001DescriptorsReusedAtRandom) {
  for (unsigned seed = 1; seed <= scaled(1000, 20); ++seed) {
    reuse_many(loop, seed);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST_P(WatcherTraps, TrapT003SplitReadiness) {
  SocketPair pair;
  pair.give_byte();
  Watcher watcher(loop);
  OwnDescriptor file;
  int calls = 0;
  const int number = pair.here.get();
  ASSERT_TRUE(watcher.start(number, Ready::readable | Ready::writable, [&](Ready ready) {
    ++calls;
    EXPECT_EQ(ready, Ready::readable | Ready::writable);
    if (calls > 1) (void)!write(number, "x", 1);
    watcher.stop();
    pair.here.reset();
    file = moved_to(OwnDescriptor(memfd_create("trap", MFD_CLOEXEC)), number);
  }));
  for (int turn = 0; turn < 3; ++turn) EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, 1);
  struct stat status{};
  ASSERT_EQ(fstat(number, &status), 0);
  EXPECT_EQ(status.st_size, 0);
}

TEST_P(WatcherTraps, TrapT004DuplicateKeepsTheDescriptionOpen) {
  SocketPair pair;
  const OwnDescriptor duplicate(dup(pair.here.get()));
  Watcher watcher(loop);
  ASSERT_TRUE(watcher.start(pair.here.get(), Ready::readable, [](Ready) { FAIL(); }));
  EXPECT_EQ(loop.run_ready(), 0);
  watcher.stop();
  pair.here.reset();
  pair.give_byte();
  EXPECT_TRUE(rests());
}

TEST_P(WatcherTraps, TrapT004AnotherProcessKeepsTheDescriptionOpen) {
  SocketPair pair;
  SocketPair life;
  Watcher watcher(loop);
  ASSERT_TRUE(watcher.start(pair.here.get(), Ready::readable, [](Ready) { FAIL(); }));
  EXPECT_EQ(loop.run_ready(), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    life.here.reset();
    fcntl(life.there.get(), F_SETFL, 0);
    char byte = 0;
    (void)!read(life.there.get(), &byte, 1);  // until the parent closes its end
    std::_Exit(0);
  }
  watcher.stop();
  pair.here.reset();
  pair.give_byte();
  EXPECT_TRUE(rests());
  life.here.reset();
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
}

TEST_P(WatcherTraps, TrapT004ClosedBehindTheBackOfTheLoop) {
  SocketPair pair;
  const OwnDescriptor duplicate(dup(pair.here.get()));
  Watcher watcher(loop);
  Watcher other(loop);
  const OwnDescriptor quiet(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  int other_calls = 0;
  int invalid = 0;
  ASSERT_TRUE(watcher.start(pair.here.get(), Ready::readable,
                            [&](Ready ready) { invalid += any(ready, Ready::invalid) ? 1 : 0; }));
  ASSERT_TRUE(other.once(quiet.get(), Ready::readable, [&](Ready) { ++other_calls; }));
  EXPECT_EQ(loop.run_ready(), 0);
  pair.here.reset();
  pair.give_byte();
  EXPECT_EQ(loop.run_for(1s), 0);
  EXPECT_TRUE(rests()) << "after a second at most";
  EXPECT_EQ(invalid, 1);
  EXPECT_FALSE(watcher.active());
  const std::uint64_t one = 1;
  ASSERT_EQ(write(quiet.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  EXPECT_TRUE(run_until([&] { return other_calls == 1; })) << "other watchers keep working";
}

/** The descriptors in the epoll sets of this process: lines "tfd:" of /proc/self/fdinfo. */
std::multiset<int> kernel_set() {
  std::multiset<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.find("eventpoll") == std::string::npos) continue;
    std::ifstream lines("/proc/self/fdinfo/" + entry.path().filename().string());
    for (std::string word; lines >> word;) {
      if (word != "tfd:") continue;
      int number = -1;
      lines >> number;
      found.insert(number);
    }
  }
  return found;
}

TEST_P(WatcherTraps, TrapT006BatchedChangesAgainstTheOrderOfCloses) {
  Watcher watcher(loop);
  Watcher live(loop);
  Watcher reusing(loop);
  const OwnDescriptor quiet(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const int number = 600;
  OwnDescriptor reused;
  loop.post([&] {
    for (int round = 0; round < 10'000; ++round) {
      reused = OwnDescriptor();
      reused = idle_descriptor_at(number);
      ASSERT_TRUE(watcher.start(number, Ready::readable, [](Ready) { FAIL(); }));
      const Ready changed = round % 2 == 0 ? Ready::readable : Ready::priority;
      ASSERT_TRUE(watcher.set_interest(changed));
      watcher.stop();
    }
    ASSERT_TRUE(live.start(quiet.get(), Ready::readable, [](Ready) { FAIL(); }));
    ASSERT_TRUE(reusing.start(number, Ready::readable, [](Ready) { FAIL(); }));
  });
  EXPECT_EQ(loop.run_ready(), 0);
  if (GetParam() == BackendKind::epoll) {
    const std::multiset<int> set = kernel_set();
    EXPECT_EQ(set.count(number), 1U) << "a removal that came late would have taken it out";
    EXPECT_EQ(set.count(quiet.get()), 1U);
    EXPECT_LE(set.size(), 3U) << "the wake descriptor at most beside them";
  }
  EXPECT_TRUE(rests());
}

TEST_P(WatcherTraps, TrapT009ClosedDescriptorSpins) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const OwnDescriptor writer(ends[1]);
  Watcher watcher(loop);
  std::vector<Ready> calls;
  ASSERT_TRUE(watcher.start(ends[0], Ready::readable, [&](Ready r) { calls.push_back(r); }));
  EXPECT_EQ(loop.run_once(1ms), 0);  // the loop has its own descriptors now
  close(ends[0]);
  EXPECT_EQ(loop.run_once(100ms), 0);
  if (GetParam() == BackendKind::poll) {
    EXPECT_EQ(calls, std::vector<Ready>{Ready::invalid});
    EXPECT_FALSE(watcher.active());
  } else {
    EXPECT_TRUE(calls.empty()) << "epoll cannot see it";
  }
  EXPECT_TRUE(rests());
}

TEST_P(WatcherTraps, TrapT013SixtyFourReadyTheFirstStopsTheRest) {
  std::vector<OwnDescriptor> descriptors;
  std::deque<Watcher> watchers;
  int calls = 0;
  for (int number = 0; number < 64; ++number) {
    descriptors.push_back(readable_descriptor());
    ASSERT_TRUE(
        watchers.emplace_back(loop).start(descriptors.back().get(), Ready::readable, [&](Ready) {
          ++calls;
          for (Watcher& each : watchers) each.stop();
        }));
  }
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 1);
}

TEST_P(WatcherTraps, TrapT019SeveralWaitersOnOneDescriptor) {
  SocketPair pair;
  std::deque<Watcher> waiters;
  std::array<int, 4> calls{};
  for (int number = 0; number < 4; ++number) waiters.emplace_back(loop);
  const auto wait = [&](std::size_t index, std::function<void()> more = {}) {
    ASSERT_TRUE(waiters[index].once(pair.here.get(), Ready::readable,
                                    [&calls, index, more = std::move(more)](Ready) {
                                      ++calls[index];
                                      if (more) more();
                                    }));
  };
  wait(0, [&] {
    waiters[1].stop();
    wait(3);
  });
  wait(1);
  wait(2);
  pair.give_byte();
  EXPECT_EQ(loop.run_once(), 0);
  EXPECT_EQ(calls, (std::array<int, 4>{1, 0, 1, 0})) << "the fourth waits for the next readiness";
  EXPECT_EQ(loop.run_once(), 0);
  EXPECT_EQ(calls, (std::array<int, 4>{1, 0, 1, 1}));
  EXPECT_FALSE(loop.alive());
}

TEST_P(WatcherTraps, TrapT019AWaiterThatThrowsIsRemovedAlone) {
  SocketPair pair;
  std::array<Watcher, 3> waiters{Watcher(loop), Watcher(loop), Watcher(loop)};
  std::array<int, 3> calls{};
  for (std::size_t index = 0; index < 3; ++index) {
    ASSERT_TRUE(waiters[index].once(pair.here.get(), Ready::readable, [&calls, index](Ready) {
      ++calls[index];
      if (index == 1) throw std::runtime_error("waiter");
    }));
  }
  pair.give_byte();
  EXPECT_THROW(loop.run(), std::runtime_error);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, (std::array<int, 3>{1, 1, 1}));
}

// ---- Section F: which bits go where ------------------------------------------------------------

OwnDescriptor tcp_socket() {
  return OwnDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/** Two blocking ends of a TCP connection over loopback. */
struct RawConnection {
  OwnDescriptor here;
  OwnDescriptor there;

  RawConnection() {
    const OwnDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), name, size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), name, &size), 0);
    here = OwnDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(here.get(), name, size), 0);
    there = OwnDescriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
};

/** A UDP socket with a pending ECONNREFUSED. */
OwnDescriptor refused_udp() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  OwnDescriptor gone(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(bind(gone.get(), name, size), 0);
  EXPECT_EQ(getsockname(gone.get(), name, &size), 0);
  gone.reset();
  OwnDescriptor udp(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  EXPECT_EQ(connect(udp.get(), name, size), 0);
  EXPECT_EQ(send(udp.get(), "x", 1, 0), 1);
  return udp;
}

TEST_P(WatcherTraps, TrapT049NoInterestIsNotInTheKernelsSet) {
  std::array<int, 2> reader_gone{};
  std::array<int, 2> writer_gone{};
  ASSERT_EQ(pipe2(reader_gone.data(), O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(writer_gone.data(), O_CLOEXEC), 0);
  close(reader_gone[0]);
  close(writer_gone[1]);
  RawConnection reset;
  const linger at_once{1, 0};
  setsockopt(reset.there.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  reset.there.reset();
  RawConnection finished;
  shutdown(finished.there.get(), SHUT_WR);
  shutdown(finished.here.get(), SHUT_WR);
  const OwnDescriptor write_end(reader_gone[1]);
  const OwnDescriptor read_end(writer_gone[0]);
  const OwnDescriptor udp = refused_udp();
  const OwnDescriptor never_connected = tcp_socket();
  struct Case {
    int descriptor;
    Ready interest;
    Ready expected;
  };
  const std::array<Case, 6> cases{{{write_end.get(), Ready::writable, Ready::error},
                                   {read_end.get(), Ready::readable, Ready::hangup},
                                   {reset.here.get(), Ready::readable, Ready::error},
                                   {finished.here.get(), Ready::readable, Ready::hangup},
                                   {udp.get(), Ready::readable, Ready::error},
                                   {never_connected.get(), Ready::readable, Ready::hangup}}};
  std::deque<Watcher> watchers;
  std::array<Ready, 6> got{};
  for (std::size_t index = 0; index < cases.size(); ++index) {
    ASSERT_TRUE(watchers.emplace_back(loop).start(
        cases[index].descriptor, cases[index].interest, [&got, &watchers, index](Ready ready) {
          got[index] = ready;
          ASSERT_TRUE(watchers[index].set_interest(Ready::none));
        }));
    ASSERT_TRUE(watchers[index].set_interest(Ready::none));
  }
  EXPECT_TRUE(rests()) << "nobody is interested";
  EXPECT_EQ(got, (std::array<Ready, 6>{}));
  for (std::size_t index = 0; index < cases.size(); ++index) {
    ASSERT_TRUE(watchers[index].set_interest(cases[index].interest));
  }
  EXPECT_EQ(loop.run_once(), 0);
  for (std::size_t index = 0; index < cases.size(); ++index) {
    EXPECT_TRUE(any(got[index], cases[index].expected)) << index;
  }
  EXPECT_TRUE(rests()) << "and paused in the callback";
}

/** A kernel that says exactly these bits of one descriptor, once. */
class SayingCalls final : public detail::FaultCalls {
 public:
  SayingCalls() { ask_poll_of_ring(); }
  int descriptor = -1;
  short bits = 0;

  int epoll_control(int epoll_fd, int operation, int fd, epoll_event* event) noexcept override {
    if (fd == descriptor) registered_ = operation == EPOLL_CTL_DEL ? 0 : event->data.u64;
    return detail::FaultCalls::epoll_control(epoll_fd, operation, fd, event);
  }
  int epoll_wait_ns(int, epoll_event* events, int, std::int64_t) noexcept override {
    if (bits == 0 || registered_ == 0) return 0;
    events[0].events = static_cast<std::uint32_t>(std::exchange(bits, 0));
    events[0].data.u64 = registered_;
    return 1;
  }
  int poll(pollfd* entries, std::size_t count, std::int64_t) noexcept override {
    int found = 0;
    for (std::size_t index = 0; index < count; ++index) {
      const bool it = entries[index].fd == descriptor && bits != 0;
      entries[index].revents = it ? std::exchange(bits, 0) : 0;
      found += it ? 1 : 0;
    }
    return found;
  }

 private:
  std::uint64_t registered_ = 0;
};

TEST_P(WatcherTraps, TrapT051EverySubsetOfBits) {
  SayingCalls calls;
  Loop own(LoopOptions{.backend = GetParam(), .system_calls = &calls});
  constexpr std::array<Ready, 6> all{Ready::readable, Ready::writable, Ready::priority,
                                     Ready::error,    Ready::hangup,   Ready::read_closed};
  const SocketPair pair;
  calls.descriptor = pair.here.get();
  for (const Ready interest : {Ready::readable, Ready::writable, Ready::readable | Ready::writable,
                               Ready::priority, Ready::none}) {
    for (unsigned subset = 0; subset < 64; ++subset) {
      Ready said = Ready::none;
      for (unsigned bit = 0; bit < 6; ++bit) {
        if ((subset >> bit & 1U) != 0) said |= all[bit];
      }
      Watcher watcher(own);
      std::vector<Ready> got;
      ASSERT_TRUE(watcher.start(pair.here.get(), interest, [&](Ready r) { got.push_back(r); }));
      calls.bits = static_cast<short>(said);
      for (int turn = 0; turn < 3; ++turn) EXPECT_EQ(own.run_ready(), 0);
      Ready wanted = interest | Ready::error | Ready::hangup;
      if (any(interest, Ready::readable)) wanted |= Ready::read_closed;
      const Ready expected = interest == Ready::none ? Ready::none : said & wanted;
      const auto once = any(expected) ? std::vector<Ready>{expected} : std::vector<Ready>{};
      EXPECT_EQ(got, once) << "interest " << static_cast<int>(interest) << " bits "
                           << static_cast<int>(said);
      calls.bits = 0;
    }
  }
}

// 10,000 runs in the full run, 40 by default.
TEST_P(WatcherTraps, TrapT052HangUpHidesData) {
  const std::array<std::size_t, 4> sizes{0, 1, 65536, 1 << 20};
  for (std::size_t run = 0; run < scaled(10'000, 40); ++run) {
    const std::size_t size = sizes[run % sizes.size()];
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const std::vector<char> bytes(65536, 'x');
      for (std::size_t left = size; left > 0;) {
        const ssize_t count = write(ends[1], bytes.data(), std::min(left, bytes.size()));
        if (count <= 0) std::_Exit(1);
        left -= static_cast<std::size_t>(count);
      }
      std::_Exit(0);
    }
    close(ends[1]);
    const OwnDescriptor reader(ends[0]);
    std::size_t received = 0;
    int ended = 0;
    Watcher watcher(loop);
    ASSERT_TRUE(watcher.start(reader.get(), Ready::readable, [&](Ready) {
      std::array<char, 65536> bytes;
      const ssize_t count = read(reader.get(), bytes.data(), bytes.size());
      ASSERT_GE(count, 0);
      received += static_cast<std::size_t>(count);
      if (count > 0) return;
      ++ended;
      watcher.stop();
    }));
    ASSERT_TRUE(run_until([&] { return ended != 0; }));
    EXPECT_EQ(received, size);
    EXPECT_EQ(loop.run(), 0);
    EXPECT_EQ(ended, 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
}

TEST_P(WatcherTraps, TrapT077WhatEpollRefusesIsAlwaysReady) {
  struct Case {
    OwnDescriptor descriptor;
    const char* name;
  };
  std::vector<Case> cases;
  cases.push_back({OwnDescriptor(memfd_create("trap", MFD_CLOEXEC)), "file in memory"});
  cases.push_back({OwnDescriptor(open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)), "file"});
  cases.push_back({OwnDescriptor(open("/dev/null", O_RDWR | O_CLOEXEC)), "/dev/null"});
  cases.push_back({OwnDescriptor(open("/dev/zero", O_RDWR | O_CLOEXEC)), "/dev/zero"});
  cases.push_back({OwnDescriptor(open("/", O_RDONLY | O_CLOEXEC)), "directory"});
  for (const auto& [descriptor, name] : cases) {
    ASSERT_GE(descriptor.get(), 0) << name;
    for (const Ready interest :
         {Ready::readable, Ready::writable, Ready::readable | Ready::writable}) {
      SocketPair pair;
      pair.give_byte();
      Watcher watcher(loop);
      Watcher other(loop);
      std::vector<Ready> calls;
      int other_calls = 0;
      ASSERT_TRUE(watcher.start(descriptor.get(), interest, [&](Ready ready) {
        calls.push_back(ready);
      })) << name;
      ASSERT_TRUE(other.start(pair.here.get(), Ready::readable, [&](Ready) { ++other_calls; }));
      for (int turn = 0; turn < 10; ++turn) EXPECT_EQ(loop.run_once(), 0);
      EXPECT_EQ(calls, std::vector<Ready>(10, interest)) << name;
      EXPECT_EQ(other_calls, 10) << name;
      watcher.stop();
      other.stop();
      EXPECT_EQ(loop.run(), 0);
      EXPECT_EQ(calls.size(), 10U) << name;
    }
  }
}

TEST_P(WatcherTraps, TrapT077OneShotAndPausedOnARegularFile) {
  const OwnDescriptor file(memfd_create("trap", MFD_CLOEXEC));
  Watcher once(loop);
  Watcher paused(loop);
  int calls = 0;
  ASSERT_TRUE(once.once(file.get(), Ready::readable, [&](Ready) { ++calls; }));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 1);
  ASSERT_TRUE(paused.start(file.get(), Ready::readable, [&](Ready) { ++calls; }));
  ASSERT_TRUE(paused.set_interest(Ready::none));
  EXPECT_TRUE(rests());
  EXPECT_EQ(calls, 1);
}

// ---- Section S: many and large descriptors -----------------------------------------------------

/** Raises the descriptor limit as far as it goes, up to `wanted`; takes it back at the end. */
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t wanted) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit raised{wanted, std::max(wanted, before_.rlim_max)};
    if (setrlimit(RLIMIT_NOFILE, &raised) != 0) {  // not root
      raised = {std::min(wanted, before_.rlim_max), before_.rlim_max};
      setrlimit(RLIMIT_NOFILE, &raised);
    }
    limit = raised.rlim_cur;
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  rlim_t limit = 0;

 private:
  rlimit before_{};
};

TEST_P(WatcherTraps, TrapT158DescriptorNumbersAbove1024) {
  const DescriptorLimit raised(200'000);
  const int number = static_cast<int>(raised.limit) - 1;
  ASSERT_GT(number, 1024);
  RecordProperty("descriptor", number);
  SocketPair pair;
  const std::int64_t before = resident_bytes();
  const OwnDescriptor high(fcntl(pair.here.get(), F_DUPFD_CLOEXEC, number));
  ASSERT_EQ(high.get(), number);
  Watcher reader(loop);
  Watcher writer(loop);
  Watcher once(loop);
  int reads = 0;
  int writes = 0;
  ASSERT_TRUE(reader.start(number, Ready::readable, [&](Ready) {
    ++reads;
    char byte = 0;
    ASSERT_EQ(read(number, &byte, 1), 1);
    reader.stop();
  }));
  ASSERT_TRUE(writer.start(number, Ready::writable, [&](Ready) {
    ++writes;
    writer.stop();
  }));
  ASSERT_TRUE(once.once(number, Ready::readable | Ready::writable, [&](Ready) { ++writes; }));
  auto stream = TcpStream::adopt(loop, dup3(pair.there.get(), number - 1, O_CLOEXEC));
  ASSERT_TRUE(stream) << stream.error().message();
  ASSERT_TRUE(stream->send_copy("x"));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(writes, 2);
  EXPECT_LT(resident_bytes() - before, 4 << 20);
}

// 10,000 waits in the full run, 100 by default. The loop takes up to 1024 events from one wait.
TEST_P(WatcherTraps, TrapT159MoreReadyDescriptorsThanOneBatch) {
  constexpr std::size_t count = 5000;
  const DescriptorLimit raised(20'000);
  std::vector<OwnDescriptor> descriptors;
  std::deque<Watcher> watchers;
  std::vector<std::uint64_t> calls(count);
  for (std::size_t index = 0; index < count; ++index) {
    descriptors.push_back(readable_descriptor());
    ASSERT_GE(descriptors.back().get(), 0);
    ASSERT_TRUE(watchers.emplace_back(loop).start(descriptors.back().get(), Ready::readable,
                                                  [&calls, index](Ready) { ++calls[index]; }));
  }
  for (std::uint64_t wait = 0; wait < scaled(10'000, 100); ++wait) {
    ASSERT_EQ(loop.run_ready(), 0);
    if (wait == 5) {
      EXPECT_GE(*std::min_element(calls.begin(), calls.end()), 1U) << "ceil(5000 / 1024) + 1";
    }
  }
  const auto [least, most] = std::minmax_element(calls.begin(), calls.end());
  EXPECT_GE(*least, 1U);
  EXPECT_LE(*most - *least, 2U);
}

}  // namespace
}  // namespace evix::test
