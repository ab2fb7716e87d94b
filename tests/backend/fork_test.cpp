#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>

#include "backend/conformance.hpp"
#include "backend/fork_support.hpp"

/** @file
 * What a fork does to loops: the parent's goes on, the child's is rebuilt or thrown away.
 */
extern char** environ;

namespace evix::test {
namespace {

constexpr const char* needs_descriptors = "needs real descriptors";

class Fork : public Conformance {};
EVIX_OVER_BACKENDS(Fork);

const int forked_code = static_cast<int>(Errc::forked);

// ---- T032 ------------------------------------------------------------------------------------

// The child takes the parent's pipe out of its loop and puts a socket under the same number.
int child_with_socket_in_place_of(Loop& loop, Watcher& watcher, const Pipe& pipe,
                                  const Pipe& to_child, const Pipe& to_parent) {
  if (!loop.after_fork()) return 1;
  const int number = pipe.read_end();
  watcher.stop();
  int calls = 0;
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) != 0) return 2;
  if (::dup2(sockets[0], number) != number) return 3;
  if (!watcher.start(number, Ready::readable, [&](Ready) { ++calls; })) return 4;
  to_parent.put();
  if (to_child.take() == 0) return 5;  // the parent has written to its pipe
  for (int turn = 0; turn < 3; ++turn) loop.run_ready();
  if (calls != 0) return 6;
  if (::write(sockets[1], "x", 1) != 1) return 7;
  if (loop.run_once(5s) != 0 || calls != 1) return 8;
  to_parent.put();
  if (to_child.take() == 0) return 9;  // the parent has looked whether it sees the socket
  return 0;
}

TEST_P(Fork, TrapT032ParentAndChildDoNotSeeEachOthersEvents) {
  EVIX_SKIP_ON(BackendKind::sim, needs_descriptors);
  const Pipe pipe;
  const Pipe to_child;
  Pipe to_parent;
  int calls = 0;
  Watcher watcher(loop);
  ASSERT_TRUE(watcher.start(pipe.read_end(), Ready::readable, [&](Ready) {
    ++calls;
    pipe.take();
  }));
  ASSERT_EQ(loop.run_ready(), 0);
  const pid_t child = start_child(
      [&] { return child_with_socket_in_place_of(loop, watcher, pipe, to_child, to_parent); });
  to_parent.close_write();  // so that a child that gave up early is seen
  to_parent.take();
  pipe.put();
  to_child.put();
  to_parent.take();
  EXPECT_EQ(calls, 0);  // nobody ran this loop
  EXPECT_EQ(loop.run_once(5s), 0);
  EXPECT_EQ(calls, 1);
  for (int turn = 0; turn < 3; ++turn) loop.run_ready();
  EXPECT_EQ(calls, 1);  // zero for the child's socket, on which there still is something to read
  to_child.put();
  EXPECT_EQ(wait_for_child(child), 0);
}

// ---- A child that did not call after_fork() --------------------------------------------------

/** One of each handle, at work. */
struct Everything {
  Pipe pipe;
  Loop loop;
  Watcher watcher{loop};
  Timer timer{loop};
  SignalWatcher signal{loop};
  TcpListener listener{loop};
  TcpStream client{loop};
  TcpStream server;
  std::optional<Waker> waker;
  int readable = 0;
  int accepted = 0;
  std::string client_got;
  std::string server_got;

  explicit Everything(const LoopOptions& options) : loop(options) {
    waker.emplace(loop, [] {});
    EXPECT_TRUE(watcher.start(pipe.read_end(), Ready::readable, [this](Ready) {
      ++readable;
      pipe.take();
    }));
    timer.after(1h, [] {});
    EXPECT_TRUE(signal.start(SIGUSR2, [](int) {}));
    EXPECT_TRUE(listener.listen("127.0.0.1:0", [this](Result<TcpStream> peer) {
      if (!peer) return;
      if (++accepted == 1) server = std::move(peer).value();
    }));
    client.connect(*listener.local_address(), [](Result<void>) {});
  }
  bool connected() const { return client.connected() && server; }
  void receive() {
    client.receive_start([this](Result<Buffer> chunk) {
      if (chunk) client_got += chunk->text();
    });
    server.receive_start([this](Result<Buffer> chunk) {
      if (chunk) server_got += chunk->text();
    });
  }
};

// Each call is refused with Errc::forked or does nothing.
int use_without_after_fork(Everything& all) {
  if (all.loop.run() != forked_code) return 1;
  if (all.loop.run_once(0s) != forked_code || all.loop.run_ready() != forked_code) return 2;
  if (!(all.loop.error() == Errc::forked)) return 3;
  Watcher watcher(all.loop);
  const auto watched = watcher.start(all.pipe.write_end(), Ready::writable, [](Ready) {});
  if (watched || !(watched.error() == Errc::forked)) return 4;
  SignalWatcher signal(all.loop);
  const auto caught = signal.start(SIGUSR1, [](int) {});
  if (caught || !(caught.error() == Errc::forked)) return 5;
  const auto sent = all.client.send_copy("from the child");
  if (sent || !(sent.error() == Errc::forked)) return 6;
  all.loop.post([] {});
  all.loop.wake();
  return 0;
}

TEST_P(Fork, ChildWithoutAfterForkIsRefusedAndDestroyingLeavesTheParentAlone) {
  EVIX_SKIP_ON(BackendKind::sim, needs_descriptors);
  auto all = std::make_unique<Everything>(options());
  ASSERT_TRUE(run_until(all->loop, [&] { return all->connected(); }));
  all->receive();
  ASSERT_EQ(all->loop.run_ready(), 0);
  EXPECT_EQ(run_child([&] {
              if (const int wrong = use_without_after_fork(*all); wrong != 0) return wrong;
              all->watcher.stop();
              all->timer.stop();
              all->signal.stop();
              all->waker->stop();
              all->listener.close();
              all->server.close_gracefully();
              all->client.abort();
              all.reset();
              return 0;
            }),
            0);
  EXPECT_EQ(run_child([&] {
              all.reset();  // destroyed at work
              return 0;
            }),
            0);
  all->pipe.put();
  EXPECT_TRUE(run_until(all->loop, [&] { return all->readable == 1; }));
  ASSERT_TRUE(all->client.send_copy("question"));
  ASSERT_TRUE(all->server.send_copy("answer"));
  EXPECT_TRUE(run_until(
      all->loop, [&] { return all->server_got == "question" && all->client_got == "answer"; }));
  TcpStream second(all->loop);
  second.connect(*all->listener.local_address(), [](Result<void>) {});
  EXPECT_TRUE(run_until(all->loop, [&] { return all->accepted == 2; }));
  // No child has set the connection to end with a reset.
  bool ended = false;
  all->server.receive_start([&](Result<Buffer> chunk) { ended = chunk && chunk->empty(); });
  all->client.close();
  EXPECT_TRUE(run_until(all->loop, [&] { return !all->server.active(); }));
  EXPECT_TRUE(ended);
}

TEST_P(Fork, AfterForkKeepsTimersPostsAndWatchersOfTheChild) {
  EVIX_SKIP_ON(BackendKind::sim, needs_descriptors);
  const Pipe pipe;
  std::string order;
  Watcher watcher(loop);
  ASSERT_TRUE(watcher.once(pipe.read_end(), Ready::readable, [&](Ready) { order += 'w'; }));
  Timer timer(loop);
  timer.after(1ms, [&] { order += 't'; });
  loop.post([&] { order += 'p'; });
  EXPECT_EQ(run_child([&] {
              if (!loop.after_fork() || !loop.after_fork()) return 1;
              pipe.put();
              if (loop.run() != 0) return 2;
              return order.size() == 3 && order.front() == 'p' ? 0 : 3;
            }),
            0);
  EXPECT_EQ(pipe.take(), 'x');  // the child's
  EXPECT_EQ(order, "");
  pipe.put();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(order.size(), 3U);
}

TEST_P(Fork, ForkInsideACallback) {
  std::optional<int> child_ended;
  int after = 0;
  loop.post([&] {
    child_ended = run_child([&] {
      // Inside run() of the parent's loop: the child rebuilds and goes on in it.
      if (!loop.after_fork()) return 1;
      if (loop.run_once(0s) != 0) return 2;
      return after == 1 ? 0 : 3;
    });
  });
  loop.post([&] { ++after; });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(child_ended, 0);
  EXPECT_EQ(after, 1);
}

// ---- T033 ------------------------------------------------------------------------------------

TEST_P(Fork, TrapT033PendingSignalIsTheParentsOnly) {
  int calls = 0;
  SignalWatcher watcher(loop);
  SignalWatcher second(loop);
  ASSERT_TRUE(watcher.start(SIGHUP, [&](int) { ++calls; }));
  ASSERT_TRUE(second.start(SIGHUP, [&](int) { ++calls; }));
  ASSERT_EQ(loop.run_ready(), 0);
  ASSERT_EQ(std::raise(SIGHUP), 0);
  EXPECT_EQ(run_child([&] {
              if (!loop.after_fork()) return 1;
              watcher.stop();
              for (int turn = 0; turn < 3; ++turn) loop.run_ready();
              if (calls != 0) return 2;
              std::raise(SIGHUP);
              if (loop.run_once(5s) != 0 || calls != 1) return 3;  // its own comes
              second.stop();
              const std::uint64_t turns = loop.counters().turns;
              if (loop.run() != 0) return 4;
              return loop.counters().turns - turns <= 1 ? 0 : 5;
            }),
            0);
  for (int turn = 0; turn < 3; ++turn) loop.run_ready();
  EXPECT_EQ(calls, 2);  // each of the two watchers, once
}

// A thread starts, stops and catches while the process forks: the child has none of the threads
// that may be inside the handler or hold the lock, and must not wait for them.
TEST_P(Fork, ForkWhileAnotherThreadCatchesSignals) {
  const std::uint64_t forks = scaled(1000, 50);
  std::atomic<bool> ended = false;
  std::thread catcher([&] {
    Loop other(options());
    SignalWatcher watcher(other);
    while (!ended) {
      EXPECT_TRUE(watcher.start(SIGUSR1, [](int) {}));
      for (int i = 0; i < 10; ++i) ::pthread_kill(::pthread_self(), SIGUSR1);
      other.run_ready();
      watcher.stop();
    }
  });
  for (std::uint64_t i = 0; i < forks; ++i) {
    const int child_ended = run_child([&] {
      if (!loop.after_fork()) return 1;
      SignalWatcher watcher(loop);
      if (!watcher.start(SIGUSR1, [](int) {})) return 2;
      watcher.stop();
      return 0;
    });
    EXPECT_EQ(child_ended, 0);
    if (child_ended != 0) break;
  }
  ended = true;
  catcher.join();
}

// ---- T037 ------------------------------------------------------------------------------------

TEST_P(Fork, TrapT037ChildDestroysItsCopyAndTheParentsPostStillRuns) {
  const std::uint64_t rounds = scaled(1000, 50);
  std::optional<Loop> parent(std::in_place, options());
  {
    SignalWatcher needs_the_wake_object(*parent);
    ASSERT_TRUE(needs_the_wake_object.start(SIGUSR2, [](int) {}));
  }
  for (std::uint64_t round = 0; round < rounds; ++round) {
    bool ran = false;
    std::thread([&] { parent->post([&] { ran = true; }); }).join();
    ASSERT_EQ(run_child([&] {
                parent.reset();
                return 0;
              }),
              0);
    ASSERT_EQ(parent->run_once(50ms), 0);
    ASSERT_TRUE(ran);
  }
}

// A loop that sleeps in another thread has told its posters to write the wake object. The child's
// copy says the same, but the object is the parent's.
TEST_P(Fork, TrapT037ChildDoesNotWakeTheParent) {
  for (std::uint64_t round = 0; round < scaled(200, 20); ++round) {
    LoopThread sleeper({}, options());
    Loop* inside = nullptr;
    std::uint64_t turn_of_post = 0;
    const Pipe told;
    ASSERT_TRUE(sleeper.post([&](Loop& its_loop) {
      inside = &its_loop;
      turn_of_post = its_loop.counters().turns;
      told.put();
    }));
    told.take();
    // Each turn waits once; when that of the post does, the loop sleeps or is about to.
    while (inside->counters().waits < turn_of_post) std::this_thread::yield();
    const std::uint64_t turns = inside->counters().turns;
    EXPECT_EQ(run_child([&] {
                (void)sleeper.poster().post([] {});
                sleeper.poster().wake();
                inside->wake();
                inside->stop();
                return 0;
              }),
              0);
    EXPECT_EQ(inside->counters().turns, turns);
    EXPECT_EQ(sleeper.join(), 0);
  }
}

// ---- T039 ------------------------------------------------------------------------------------

// What a program that this process starts finds open.
std::string spawned_listing() {
  Pipe output;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output.write_end(), 1);
  const char* const arguments[] = {"ls", "/proc/self/fd", nullptr};
  pid_t child = 0;
  const int error = ::posix_spawn(&child, "/bin/ls", &actions, nullptr,
                                  const_cast<char* const*>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(error, 0);
  if (error != 0) return {};
  output.close_write();
  std::string listing;
  for (char byte = output.take(); byte != 0; byte = output.take()) listing += byte;
  EXPECT_EQ(wait_for_child(child), 0);
  return listing;
}

TEST_P(Fork, TrapT039EveryDescriptorOfTheLibraryIsCloseOnExec) {
  const std::string before = spawned_listing();
  std::atomic<bool> ended = false;
  std::atomic<int> rounds = 0;
  std::vector<std::thread> openers;
  for (int i = 0; i < 4; ++i) {
    openers.emplace_back([&] {
      while (!ended) {
        Loop other(options());
        TcpListener listener(other);
        TcpStream client(other);
        std::vector<TcpStream> accepted;
        ASSERT_TRUE(listener.listen("127.0.0.1:0", [&](Result<TcpStream> peer) {
          ASSERT_TRUE(peer);
          accepted.push_back(std::move(peer).value());
          other.stop();
        }));
        client.connect(*listener.local_address(), [](Result<void>) {});
        EXPECT_EQ(other.run(), 0);
        ++rounds;
      }
    });
  }
  while (rounds < 4) std::this_thread::yield();
  const std::uint64_t spawns = scaled(2000, 40);
  for (std::uint64_t i = 0; i < spawns && !HasFailure(); ++i) {
    EXPECT_EQ(spawned_listing(), before);
  }
  ended = true;
  for (std::thread& opener : openers) opener.join();
}

// ---- T043 ------------------------------------------------------------------------------------

TEST_P(Fork, TrapT043AfterForkReportsPerWatcher) {
  EVIX_SKIP_ON(BackendKind::sim, needs_descriptors);
  const Pipe normal;
  Pipe closed;
  const auto path = std::filesystem::path(EVIX_SOURCE_DIR) / "LICENSE";
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  Ready normal_ready = Ready::none;
  Ready file_ready = Ready::none;
  Ready closed_ready = Ready::none;
  int closed_calls = 0;
  Watcher on_normal(loop);
  Watcher on_file(loop);
  Watcher on_closed(loop);
  SignalWatcher wakes(loop);  // the wake object is registered too
  ASSERT_TRUE(wakes.start(SIGUSR2, [](int) {}));
  ASSERT_TRUE(on_normal.start(normal.read_end(), Ready::readable,
                              [&](Ready ready) { normal_ready = ready; }));
  ASSERT_TRUE(on_file.start(file, Ready::readable, [&](Ready ready) { file_ready = ready; }));
  ASSERT_TRUE(on_closed.start(closed.read_end(), Ready::readable, [&](Ready ready) {
    ++closed_calls;
    closed_ready = ready;
  }));
  closed.close_read();
  EXPECT_EQ(run_child([&] {
              if (!loop.after_fork()) return 1;
              normal.put();
              for (int turn = 0; turn < 5; ++turn) {
                if (loop.run_once(10ms) != 0) return 2;
              }
              if (!any(normal_ready, Ready::readable)) return 3;
              if (!any(file_ready, Ready::readable)) return 4;
              if (closed_ready != Ready::invalid || closed_calls != 1) return 5;
              return on_closed.active() ? 6 : 0;
            }),
            0);
  ::close(file);
}

}  // namespace
}  // namespace evix::test
