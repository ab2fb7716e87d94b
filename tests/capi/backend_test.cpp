#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "evix.h"

#include "support/offered.hpp"

// A program's own backend: what evix calls, how often, with what.

namespace {

// No such descriptors are open: a program's own backend gets whatever number the program gives.
constexpr int own_fds = 1'000'000;
constexpr int fd = own_fds;
constexpr int other_fd = own_fds + 1;

/** Scripted: it never waits, and says ready what the test tells it to. */
struct Script {
  evix_backend_t functions{&init, &destroy, &poll, &io_add, &io_del};
  int init_result = 0;
  int poll_result = 0;
  int poll_errno = 0;
  int add_result = 0;
  int add_errno = 0;
  std::vector<std::string> calls;
  std::vector<int> timeouts;
  std::map<int, int> watched;
  /** What the next polls report, one entry each: (descriptor, events). */
  std::vector<std::vector<std::pair<int, int>>> reports;
  std::function<void(evix_loop_t*)> in_poll;

  static inline Script* current = nullptr;
  Script() { current = this; }
  ~Script() { current = nullptr; }

  static int init(evix_loop_t*) {
    current->calls.push_back("init");
    return current->init_result;
  }
  static void destroy(evix_loop_t*) { current->calls.push_back("destroy"); }
  static int poll(evix_loop_t* loop, int timeout_ms) {
    current->calls.push_back("poll");
    current->timeouts.push_back(timeout_ms);
    if (current->in_poll) current->in_poll(loop);
    if (!current->reports.empty()) {
      for (const auto& [number, events] : current->reports.front()) {
        EXPECT_EQ(evix_backend_ready(loop, number, events), 0);
      }
      current->reports.erase(current->reports.begin());
    }
    errno = current->poll_errno;
    return current->poll_result;
  }
  static int io_add(evix_loop_t*, int number, int events) {
    // In a process that has had another thread, evix's own descriptor is among them.
    if (number < own_fds) return 0;
    current->calls.push_back("add " + std::to_string(number) + " " + std::to_string(events));
    errno = current->add_errno;
    if (current->add_result == 0) {
      EXPECT_TRUE(current->watched.emplace(number, events).second) << "added twice";
    }
    return current->add_result;
  }
  static int io_del(evix_loop_t*, int number) {
    if (number < own_fds) return 0;
    current->calls.push_back("del " + std::to_string(number));
    EXPECT_EQ(current->watched.erase(number), 1U) << "deleted, but not added";
    return 0;
  }
};

using Calls = std::vector<std::string>;

void count(void* data) { ++*static_cast<int*>(data); }
void add_events(evix_io_t*, int events, void* data) { *static_cast<int*>(data) |= events; }

TEST(OwnBackend, InitOnceAtCreateDestroyOnceAtDestroy) {
  Script script;
  evix_loop_t* loop = evix_loop_create(&script.functions);
  ASSERT_NE(loop, nullptr) << evix_last_error();
  EXPECT_EQ(script.calls, Calls{"init"});
  EXPECT_STREQ(evix_loop_backend_name(loop), "custom");
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
  ASSERT_GE(script.calls.size(), 2U);
  EXPECT_EQ(std::count(script.calls.begin(), script.calls.end(), "init"), 1);
  EXPECT_EQ(std::count(script.calls.begin(), script.calls.end(), "destroy"), 1);
  EXPECT_EQ(script.calls.back(), "destroy");
}

TEST(OwnBackend, FailedInitGivesNoLoopAndNoDestroy) {
  Script script;
  script.init_result = -ENOSPC;
  EXPECT_EQ(evix_loop_create(&script.functions), nullptr);
  EXPECT_EQ(evix_last_error_code(), -ENOSPC);
  EXPECT_NE(std::string(evix_last_error()).find("init"), std::string::npos) << evix_last_error();
  EXPECT_EQ(script.calls, Calls{"init"});
}

TEST(OwnBackend, MissingFunctionIsRefusedBeforeInit) {
  Script script;
  for (int missing = 0; missing < 3; ++missing) {
    evix_backend_t functions = script.functions;
    if (missing == 0) functions.poll = nullptr;
    if (missing == 1) functions.io_add = nullptr;
    if (missing == 2) functions.io_del = nullptr;
    EXPECT_EQ(evix_loop_create(&functions), nullptr);
    EXPECT_EQ(evix_last_error_code(), -EINVAL);
  }
  EXPECT_TRUE(script.calls.empty());
}

TEST(OwnBackend, OneAddForADescriptorWithTheUnionAndAChangeIsDelThenAdd) {
  Script script;
  evix_loop_t* loop = evix_loop_create(&script.functions);
  int calls = 0;
  evix_io_t* reader = evix_io_create(loop, fd, EVIX_IO_READ, count, &calls);
  EXPECT_EQ(script.watched, (std::map<int, int>{{fd, EVIX_IO_READ}}));
  evix_io_t* writer = evix_io_create(loop, fd, EVIX_IO_WRITE, count, &calls);
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(script.watched, (std::map<int, int>{{fd, EVIX_IO_READ | EVIX_IO_WRITE}}));
  EXPECT_EQ(evix_io_stop(loop, reader), 0);
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(script.watched, (std::map<int, int>{{fd, EVIX_IO_WRITE}}));
  EXPECT_EQ(evix_io_stop(loop, writer), 0);
  EXPECT_TRUE(script.watched.empty()) << "removed before evix_io_stop returns";
  const std::string name = std::to_string(fd);
  Calls io;
  for (const auto& call : script.calls) {
    if (call != "init" && call != "poll") io.push_back(call);
  }
  EXPECT_EQ(io, (Calls{"add " + name + " 1", "del " + name, "add " + name + " 3", "del " + name,
                       "add " + name + " 2", "del " + name}));
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(OwnBackend, AnotherWatcherOfTheSameEventsIsNoChange) {
  Script script;
  evix_loop_t* loop = evix_loop_create(&script.functions);
  int calls = 0;
  evix_io_t* one = evix_io_create(loop, fd, EVIX_IO_READ, count, &calls);
  evix_io_t* two = evix_io_create(loop, fd, EVIX_IO_READ, count, &calls);
  EXPECT_EQ(script.calls, (Calls{"init", "add " + std::to_string(fd) + " 1"}));
  script.reports = {{{fd, EVIX_IO_READ}}};
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(evix_io_stop(loop, one), 0);
  EXPECT_EQ(script.watched.size(), 1U);
  EXPECT_EQ(evix_io_stop(loop, two), 0);
  EXPECT_TRUE(script.watched.empty());
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(OwnBackend, DestroyRemovesWhatIsStillWatched) {
  Script script;
  evix_loop_t* loop = evix_loop_create(&script.functions);
  int calls = 0;
  ASSERT_NE(evix_io_create(loop, fd, EVIX_IO_READ, count, &calls), nullptr);
  ASSERT_NE(evix_io_create(loop, other_fd, EVIX_IO_WRITE, count, &calls), nullptr);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
  EXPECT_TRUE(script.watched.empty());
  EXPECT_EQ(script.calls.back(), "destroy");
}

TEST(OwnBackend, EventsReachTheWatchersThatWantThemAndAddUp) {
  Script script;
  evix_loop_t* loop = evix_loop_create(&script.functions);
  int read_events = 0;
  int write_events = 0;
  int once_calls = 0;
  evix_io_create_ex(loop, fd, EVIX_IO_READ, add_events, &read_events);
  evix_io_create_ex(loop, fd, EVIX_IO_WRITE, add_events, &write_events);
  evix_io_create(loop, other_fd, EVIX_IO_READ | EVIX_IO_ONESHOT, count, &once_calls);
  script.reports = {{{fd, EVIX_IO_READ}, {other_fd, EVIX_IO_READ}, {fd, EVIX_IO_HANGUP}},
                    {{fd, EVIX_IO_WRITE}}};
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(read_events, EVIX_IO_READ | EVIX_IO_HANGUP);
  EXPECT_EQ(write_events, EVIX_IO_HANGUP);
  EXPECT_EQ(once_calls, 1);
  EXPECT_EQ(script.watched.count(other_fd), 0U) << "a one-shot that fired is gone";
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(write_events, EVIX_IO_HANGUP | EVIX_IO_WRITE);
  EXPECT_EQ(read_events, EVIX_IO_READ | EVIX_IO_HANGUP);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(OwnBackend, CannotBeRebuiltAndLosesNothingByIt) {
  Script script;
  evix_loop_t* loop = evix_loop_create(&script.functions);
  struct Told {
    evix_loop_t* loop;
    int calls = 0;
  } told{loop};
  const auto rebuild_inside = [](evix_io_t* io, int, void* data) {
    auto& all = *static_cast<Told*>(data);
    ++all.calls;
    EXPECT_EQ(evix_loop_rebuild(all.loop), -EOPNOTSUPP);
    EXPECT_EQ(evix_io_stop(all.loop, io), 0);
  };
  ASSERT_NE(evix_io_create_ex(loop, fd, EVIX_IO_READ, rebuild_inside, &told), nullptr);
  ASSERT_NE(evix_io_create_ex(loop, other_fd, EVIX_IO_READ, rebuild_inside, &told), nullptr);
  script.reports = {{{fd, EVIX_IO_READ}, {other_fd, EVIX_IO_READ}}};
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(told.calls, 2);
  EXPECT_TRUE(script.reports.empty());
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(OwnBackend, TimeoutIsRoundedUpToMillisecondsAndCapped) {
  Script script;
  evix_loop_t* loop = evix_loop_create(&script.functions);
  int calls = 0;
  // It returns at once each time, and is asked again: early returns are allowed.
  const auto timeout_of = [&](std::uint64_t delay_ns) {
    evix_timer_t* timer = evix_timer_create_ns(loop, delay_ns, 0, count, &calls);
    script.timeouts.clear();
    EXPECT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
    evix_timer_destroy(timer);
    return script.timeouts.front();
  };
  EXPECT_EQ(timeout_of(3'600'000'000'000), 3'600'000);
  EXPECT_EQ(timeout_of(3'600'000'000'001), 3'600'001);
  EXPECT_EQ(timeout_of(30ULL * 24 * 3600 * 1'000'000'000), INT_MAX);
  EXPECT_EQ(timeout_of(EVIX_NEVER), -1);
  EXPECT_EQ(timeout_of(0), 0);
  script.timeouts.clear();
  ASSERT_NE(evix_io_create(loop, fd, EVIX_IO_READ, count, &calls), nullptr);
  EXPECT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
  EXPECT_EQ(evix_loop_run_once(loop, 1'500'000), 0);
  EXPECT_EQ(evix_loop_run_once(loop, 0), 0);
  EXPECT_EQ(script.timeouts, (std::vector<int>{-1, 2, 0}));
  EXPECT_EQ(evix_loop_add_callback(loop, count, &calls), 0);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(OwnBackend, FailingPollEndsRunWithItsCodeAndEintrDoesNot) {
  Script script;
  evix_loop_t* loop = evix_loop_create(&script.functions);
  int calls = 0;
  ASSERT_NE(evix_io_create(loop, fd, EVIX_IO_READ, count, &calls), nullptr);
  script.poll_result = -1;
  script.poll_errno = EINTR;
  EXPECT_EQ(evix_loop_run_once(loop, EVIX_FOREVER), 0);
  script.poll_errno = ENOMEM;
  EXPECT_EQ(evix_loop_run(loop), -ENOMEM);
  EXPECT_EQ(evix_last_error_code(), -ENOMEM);
  script.poll_result = -EBADF;
  EXPECT_EQ(evix_loop_run(loop), -EBADF);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(OwnBackend, RefusedAddGivesNoWatcher) {
  Script script;
  evix_loop_t* loop = evix_loop_create(&script.functions);
  int calls = 0;
  script.add_result = -1;
  script.add_errno = ENOSPC;
  EXPECT_EQ(evix_io_create(loop, fd, EVIX_IO_READ, count, &calls), nullptr);
  EXPECT_EQ(evix_last_error_code(), -ENOSPC);
  script.add_errno = 0;
  EXPECT_EQ(evix_io_create(loop, fd, EVIX_IO_READ, count, &calls), nullptr);
  EXPECT_EQ(evix_last_error_code(), -EIO);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(OwnBackend, ReadyOutsidePollOrForAStrangerIsAnError) {
  Script script;
  evix_loop_t* loop = evix_loop_create(&script.functions);
  evix_loop_t* builtin = evix_loop_create(nullptr);
  EXPECT_EQ(evix_backend_ready(loop, fd, EVIX_IO_READ), EVIX_EBUSY);
  EXPECT_EQ(evix_backend_ready(builtin, fd, EVIX_IO_READ), EVIX_EBUSY);
  std::vector<int> codes;
  script.in_poll = [&](evix_loop_t* own) {
    codes = {evix_backend_ready(own, fd, EVIX_IO_READ),
             evix_backend_ready(own, fd, 0),
             evix_backend_ready(own, fd, 1 << 20),
             evix_loop_run(own),
             evix_loop_destroy(own),
             evix_loop_set_data(own, nullptr)};
  };
  EXPECT_EQ(evix_loop_run_ready(loop), 0);
  EXPECT_EQ(codes,
            (std::vector<int>{EVIX_ESTALE, -EINVAL, -EINVAL, EVIX_EBUSY, EVIX_EBUSY, EVIX_EBUSY}));
  EXPECT_EQ(evix_loop_destroy(builtin), 0);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(OwnBackend, MoreReadyThanOneWaitGivesComeInTheNextOnes) {
  Script script;
  evix_loop_t* loop = evix_loop_create(&script.functions);
  constexpr int descriptors = 1000;
  std::vector<int> calls(descriptors, 0);
  std::vector<std::pair<int, int>> all;
  for (int i = 0; i < descriptors; ++i) {
    ASSERT_NE(evix_io_create(loop, fd + i, EVIX_IO_READ | EVIX_IO_ONESHOT, count, &calls[i]),
              nullptr);
    all.emplace_back(fd + i, EVIX_IO_READ);
  }
  script.reports = {all};
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(calls, std::vector<int>(descriptors, 1));
  EXPECT_TRUE(script.watched.empty());
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

/** Waits in poll(2). */
struct Waiting {
  evix_backend_t functions{&init, nullptr, &poll, &io_add, &io_del};
  static inline std::map<int, int> watched;
  static inline int adds = 0;

  static int init(evix_loop_t*) {
    watched.clear();
    adds = 0;
    return 0;
  }
  static int poll(evix_loop_t* loop, int timeout_ms) {
    std::vector<pollfd> fds;
    for (const auto& [number, events] : watched) {
      fds.push_back({number,
                     static_cast<short>((events & EVIX_IO_READ ? POLLIN : 0) |
                                        (events & EVIX_IO_WRITE ? POLLOUT : 0)),
                     0});
    }
    if (::poll(fds.data(), fds.size(), timeout_ms) < 0) return -1;
    for (const pollfd& entry : fds) {
      if (entry.revents & POLLIN) evix_backend_ready(loop, entry.fd, EVIX_IO_READ);
      if (entry.revents & POLLOUT) evix_backend_ready(loop, entry.fd, EVIX_IO_WRITE);
    }
    return 0;
  }
  static int io_add(evix_loop_t*, int number, int events) {
    ++adds;
    watched[number] = events;
    return 0;
  }
  static int io_del(evix_loop_t*, int number) {
    watched.erase(number);
    return 0;
  }
};

TEST(OwnBackend, PostFromAnotherThreadEndsItsWait) {
  Waiting waiting;
  evix_loop_t* loop = evix_loop_create(&waiting.functions);
  struct Context {
    evix_loop_t* loop;
    int calls = 0;
  } context{loop};
  evix_loop_ref(loop);
  std::thread other([&] {
    evix_loop_post(
        loop,
        [](void* data) {
          auto& self = *static_cast<Context*>(data);
          ++self.calls;
          evix_loop_unref(self.loop);
        },
        &context);
  });
  EXPECT_EQ(evix_loop_run(loop), 0);
  other.join();
  EXPECT_EQ(context.calls, 1);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(OwnBackend, SignalsAndTcpWorkOverIt) {
  Waiting waiting;
  evix_loop_t* loop = evix_loop_create(&waiting.functions);
  int accepted = 0;
  evix_listener_t* listener = evix_tcp_listen(
      loop, "127.0.0.1:0", nullptr,
      [](evix_listener_t* self, int status, evix_stream_t* stream, void* data) {
        if (status == 0) ++*static_cast<int*>(data);
        evix_stream_close(stream);
        evix_listener_close(self);
      },
      &accepted);
  char address[64];
  ASSERT_GT(evix_listener_address(listener, address, sizeof address), 0);
  int connected = -1;
  evix_tcp_connect(
      loop, address, nullptr,
      [](evix_stream_t* stream, int status, void* data) {
        *static_cast<int*>(data) = status;
        evix_stream_close(stream);
      },
      &connected);
  EXPECT_EQ(evix_loop_run(loop), 0);
  EXPECT_EQ(accepted, 1);
  EXPECT_EQ(connected, 0);
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(BuiltinBackends, ByFunctionAndByName) {
  EXPECT_EQ(evix_kqueue_backend(), nullptr);
  EXPECT_EQ(evix_last_error_code(), EVIX_EBACKEND);
  EXPECT_EQ(evix_backend_by_name("epoll"), evix_epoll_backend());
  EXPECT_EQ(evix_backend_by_name("poll"), evix_poll_backend());
  EXPECT_EQ(evix_backend_by_name("sim"), evix_sim_backend());
  EXPECT_EQ(evix_backend_by_name("io_uring"), evix_io_uring_backend());
  EXPECT_EQ(evix_backend_by_name("kqueue"), nullptr);
  EXPECT_EQ(evix_last_error_code(), EVIX_EBACKEND);
  for (const char* name : {"", "automatic", "custom", "select"}) {
    EXPECT_EQ(evix_backend_by_name(name), nullptr);
    EXPECT_EQ(evix_last_error_code(), EVIX_EBACKENDUNKNOWN) << name;
  }
  EXPECT_EQ(evix_backend_by_name(nullptr), nullptr);
  for (const char* name : {"epoll", "poll", "sim", "io_uring"}) {
    if (!evix::test::is_offered(*evix::backend_kind(name))) continue;
    evix_loop_t* loop = evix_loop_create(evix_backend_by_name(name));
    ASSERT_NE(loop, nullptr) << evix_last_error();
    EXPECT_STREQ(evix_loop_backend_name(loop), name);
    EXPECT_EQ(evix_loop_destroy(loop), 0);
  }
}

}  // namespace
