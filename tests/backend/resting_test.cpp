#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <thread>

#include "backend/fork_support.hpp"
#include "backend/tcp_support.hpp"

/** @file
 * States in which a loop has nothing to do, whatever its descriptors say: it takes at most five
 * turns and 1 % of a processor in a second, by its own counter and its thread's clock. All states
 * of a backend are watched at the same time, each in a thread: for 300 ms, or 2 s with
 * EVIX_TEST_FULL=1.
 */
namespace evix::test {
namespace {

Duration window() { return std::chrono::milliseconds(scaled(2000, 300)); }

/** Five turns a second; two in the short window: the one that waits for its end, and another. */
std::uint64_t turns_max() { return scaled(10, 2); }

/**
 * 1 % of the window. A loaded virtual machine was seen to charge a thread 13 ms for a single wait,
 * so the short window, of which a loop that spins takes all, is allowed as much.
 */
Duration cpu_max() { return std::chrono::milliseconds(scaled(20, 15)); }

Duration cpu_time(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/** A loop with all that belongs to its state. */
class Stage {
 public:
  explicit Stage(BackendKind kind) : faulty_(kind), loop(*faulty_.loop), calls(*faulty_.calls) {
    calls.makes_ring_operations = false;  // the table's polls are not what is looked at here
  }

  void settle() {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(loop.run_ready(), 0);
  }
  void until(const std::function<bool()>& predicate) {
    const KeepAlive waiting = loop.keep_alive();
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (!predicate()) {
      ASSERT_EQ(loop.run_once(100ms), 0);
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the state is not reached";
    }
  }
  Pipe& pipe() { return pipes_.emplace_back(); }
  Timer& timer() { return timers_.emplace_back(loop); }
  Watcher& watcher() { return watchers_.emplace_back(loop); }
  TcpListener& listener() { return listeners_.emplace_back(loop); }
  TcpStream& stream() { return streams_.emplace_back(loop); }
  RawSocket& raw(int handle) { return raws_.emplace_back(handle); }

  struct Connection {
    TcpStream& stream;
    RawSocket& peer;
  };
  Connection connection() {
    const RawSocket listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listening.get(), generic, size), 0);
    EXPECT_EQ(::listen(listening.get(), 1), 0);
    EXPECT_EQ(::getsockname(listening.get(), generic, &size), 0);
    RawSocket& peer = raw(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(peer.get(), generic, size), 0);
    auto adopted = TcpStream::adopt(
        loop, ::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    EXPECT_TRUE(adopted.has_value());
    streams_.push_back(std::move(*adopted));
    return {streams_.back(), peer};
  }
  /** One that has received and does so no more, with a byte of the peer unread. */
  Connection paused() {
    const Connection made = connection();
    receive(made.stream);
    settle();
    made.stream.receive_stop();
    put(made.peer);
    settle();
    return made;
  }
  /** Into `inbox`. */
  void receive(TcpStream& stream) { stream.receive_start(inbox.callback()); }
  static void put(const RawSocket& peer, int flags = 0) {
    EXPECT_EQ(::send(peer.get(), "x", 1, flags | MSG_NOSIGNAL), 1);
  }
  static void reset(RawSocket& peer) {
    const linger at_once{1, 0};
    EXPECT_EQ(::setsockopt(peer.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    peer.close();
  }
  /** Sends what cannot all go out, as the peer does not read. */
  void stuff(TcpStream& stream) {
    static const std::string bytes(std::size_t{8} << 20, 'x');
    stream.set_water_marks({}, [this](WaterMark mark) { mark_ = mark; });
    stream.send(bytes_of(bytes), sent.callback());
    until([&] { return mark_ == WaterMark::full; });
    std::size_t before = 0;
    until([&] {
      loop.run_once(50ms);
      return std::exchange(before, stream.send_queue_bytes()) == stream.send_queue_bytes();
    });
    EXPECT_GT(stream.send_queue_bytes(), 0U);
  }

 private:
  FaultyLoop faulty_;
  std::deque<Pipe> pipes_;
  std::deque<RawSocket> raws_;
  std::deque<Timer> timers_;
  std::deque<Watcher> watchers_;
  std::deque<TcpListener> listeners_;
  std::deque<TcpStream> streams_;
  std::optional<WaterMark> mark_;

 public:
  Loop& loop;
  detail::FaultCalls& calls;
  Inbox inbox;
  Outcome sent;
  int count = 0;  ///< of what happened
  std::deque<Waker> wakers;
  std::deque<SignalWatcher> signals;
  std::vector<Buffer> held;
};

void ignore(Ready) {}

// ---- Nothing, timers, posts ------------------------------------------------------------------

void nothing_but_a_reference(Stage&) {}

void timer_far_away(Stage& stage) {
  stage.timer().after(1h, [] {});
}

void timer_for_ever(Stage& stage) {
  stage.timer().after(forever, [] {});
}

void a_thousand_timers_stopped(Stage& stage) {
  for (int i = 0; i < 1000; ++i) stage.timer().after(std::chrono::microseconds(i), [] {});
  stage.loop.run_ready();
  for (int i = 0; i < 1000; ++i) {
    Timer& timer = stage.timer();
    timer.after(std::chrono::milliseconds(i), [] {});
    timer.stop();
  }
  stage.until([&] { return stage.loop.counters().timers_armed == 0; });
}

void timer_stopped_by_itself(Stage& stage) {
  Timer& timer = stage.timer();
  timer.every(1ms, [&] {
    if (++stage.count == 3) timer.stop();
  });
  stage.until([&] { return stage.count == 3; });
}

void unreferenced_handles(Stage& stage) {
  stage.timer().after(1h, [] {});
  stage.timer().unreference();
  Watcher& watcher = stage.watcher();
  EXPECT_TRUE(watcher.start(stage.pipe().read_end(), Ready::readable, ignore));
  watcher.unreference();
  stage.wakers.emplace_back(stage.loop, [] {});
}

void wake_consumed(Stage& stage) {
  for (int i = 0; i < 3; ++i) stage.loop.wake();
  stage.settle();
  std::thread([&] { stage.loop.wake(); }).join();
  stage.settle();
}

void woken_while_asleep(Stage& stage) {
  const KeepAlive keep = stage.loop.keep_alive();
  std::thread waking([poster = stage.loop.poster()] { poster.wake(); });
  EXPECT_EQ(stage.loop.run_once(20s), 0);
  waking.join();
}

void waker_called(Stage& stage) {
  Waker& waker = stage.wakers.emplace_back(stage.loop, [&] { ++stage.count; });
  std::thread([sender = waker.sender()] { EXPECT_TRUE(sender.wake()); }).join();
  stage.until([&] { return stage.count == 1; });
}

void mailbox_empty_after_a_burst(Stage& stage) {
  constexpr int posts = 10'000;
  std::thread posting([&, poster = stage.loop.poster()] {
    for (int i = 0; i < posts; ++i) EXPECT_TRUE(poster.post([&] { ++stage.count; }));
  });
  stage.until([&] { return stage.count == posts; });
  posting.join();
}

void immediates_done(Stage& stage) {
  int left = 5000;
  std::function<void()> again = [&] {
    if (--left > 0) stage.loop.post([&] { again(); });
  };
  stage.loop.post([&] { again(); });
  stage.until([&] { return left == 0; });
}

void stopped_and_run_again(Stage& stage) {
  stage.timer().after(1h, [] {});
  stage.loop.post([&] { stage.loop.stop(); });
  EXPECT_EQ(stage.loop.run(), 0);
  std::thread([&] { stage.loop.stop_all(); }).join();
  EXPECT_EQ(stage.loop.run(), 0);
}

void after_an_exception(Stage& stage) {
  stage.loop.post([] { throw 1; });
  EXPECT_THROW(stage.loop.run(), int);
}

void after_a_nested_run(Stage& stage) {
  stage.loop.post([&] {
    stage.loop.post([] {});
    EXPECT_EQ(stage.loop.run_ready(), 0);
  });
  stage.settle();
}

// ---- Signals and watchers --------------------------------------------------------------------

void signal_watcher_idle(Stage& stage) {
  EXPECT_TRUE(stage.signals.emplace_back(stage.loop).start(SIGWINCH, [](int) {}));
}

void signal_caught(Stage& stage) {
  EXPECT_TRUE(stage.signals.emplace_back(stage.loop).start(SIGURG, [&](int) { ++stage.count; }));
  EXPECT_EQ(::raise(SIGURG), 0);
  stage.until([&] { return stage.count > 0; });
  stage.signals.back().stop();
}

void watcher_idle(Stage& stage) {
  EXPECT_TRUE(stage.watcher().start(stage.pipe().read_end(), Ready::readable, ignore));
}

void watcher_disarmed(Stage& stage) {
  const Pipe& pipe = stage.pipe();
  Watcher& watcher = stage.watcher();
  EXPECT_TRUE(watcher.start(pipe.read_end(), Ready::readable, [&](Ready) {
    ++stage.count;
    EXPECT_TRUE(watcher.set_interest(Ready::none));
  }));
  pipe.put();
  stage.until([&] { return stage.count == 1; });
}

void watcher_disarmed_before_hang_up(Stage& stage) {
  Pipe& pipe = stage.pipe();
  Watcher& watcher = stage.watcher();
  EXPECT_TRUE(watcher.start(pipe.read_end(), Ready::readable, ignore));
  EXPECT_TRUE(watcher.set_interest(Ready::none));
  stage.settle();
  pipe.close_write();
}

void watcher_disarmed_before_error(Stage& stage) {
  Pipe& pipe = stage.pipe();
  Watcher& watcher = stage.watcher();
  EXPECT_TRUE(watcher.start(pipe.write_end(), Ready::writable, ignore));
  EXPECT_TRUE(watcher.set_interest(Ready::none));
  stage.settle();
  pipe.close_read();
}

void watcher_fired_once(Stage& stage) {
  const Pipe& pipe = stage.pipe();
  pipe.put();
  EXPECT_TRUE(
      stage.watcher().once(pipe.read_end(), Ready::readable, [&](Ready) { ++stage.count; }));
  stage.until([&] { return stage.count == 1; });
}

void watcher_stopped(Stage& stage) {
  const Pipe& pipe = stage.pipe();
  Watcher& watcher = stage.watcher();
  EXPECT_TRUE(watcher.start(pipe.read_end(), Ready::readable, [&](Ready) { watcher.stop(); }));
  pipe.put();
  stage.until([&] { return !watcher.active(); });
}

void watcher_of_a_full_pipe(Stage& stage) {
  const Pipe& pipe = stage.pipe();
  EXPECT_EQ(::fcntl(pipe.write_end(), F_SETFL, O_NONBLOCK), 0);
  const std::string bytes(4096, 'x');
  while (::write(pipe.write_end(), bytes.data(), bytes.size()) > 0) {
  }
  EXPECT_TRUE(stage.watcher().start(pipe.write_end(), Ready::writable, ignore));
}

/** The stream's buffers are full, and it is watched for room in them. */
void watcher_of_a_full_socket(Stage& stage, const std::function<void(RawSocket& peer)>& meanwhile) {
  const auto [stream, peer] = stage.connection();
  RawSocket& socket = stage.raw(::fcntl(stream.native(), F_DUPFD_CLOEXEC, 0));
  stage.stuff(stream);
  stream.close();
  const std::string bytes(65536, 'x');
  while (::send(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  EXPECT_TRUE(stage.watcher().start(socket.get(), Ready::writable,
                                    [](Ready) { ADD_FAILURE() << "there is no room"; }));
  stage.settle();
  meanwhile(peer);
}

void watcher_of_a_full_socket_with_data(Stage& stage) {
  watcher_of_a_full_socket(stage, [](RawSocket& peer) { Stage::put(peer); });
}

void watcher_of_a_full_socket_whose_peer_has_ended(Stage& stage) {
  watcher_of_a_full_socket(stage, [](RawSocket& peer) { ::shutdown(peer.get(), SHUT_WR); });
}

// More completions at once than io_uring's queue of 2048 has room for.
void more_ready_at_once_than_the_queue_holds(Stage& stage) {
  constexpr int count = 2500;
  const Pipe& pipe = stage.pipe();
  for (int i = 0; i < count; ++i) {
    const int copy = ::fcntl(pipe.read_end(), F_DUPFD_CLOEXEC, 0);
    stage.raw(copy);
    EXPECT_TRUE(stage.watcher().once(copy, Ready::readable, [&](Ready) { ++stage.count; }));
  }
  stage.settle();
  pipe.put();
  stage.until([&] { return stage.count == count; });
}

// ---- Streams ---------------------------------------------------------------------------------

void stream_receives(Stage& stage) { stage.receive(stage.connection().stream); }

void stream_receives_with_a_timeout(Stage& stage) {
  TcpStream& stream = stage.connection().stream;
  stream.set_receive_timeout(1h);
  stage.receive(stream);
}

void stream_connected_only(Stage& stage) { stage.connection(); }

void paused_with_data(Stage& stage) { stage.paused(); }

void paused_with_end(Stage& stage) {
  const auto [stream, peer] = stage.paused();
  ::shutdown(peer.get(), SHUT_WR);
}

void paused_with_hang_up(Stage& stage) {
  const auto [stream, peer] = stage.paused();
  Outcome shut;
  stream.shutdown_send(shut.callback());
  stage.until([&] { return shut.done(); });
  peer.close();
}

void paused_with_reset(Stage& stage) {
  const auto [stream, peer] = stage.paused();
  Stage::reset(peer);
}

void never_read_and_reset(Stage& stage) {
  const auto [stream, peer] = stage.connection();
  Stage::reset(peer);
}

void end_received(Stage& stage) {
  const auto [stream, peer] = stage.connection();
  stage.receive(stream);
  ::shutdown(peer.get(), SHUT_WR);
  stage.until([&] { return stage.inbox.ends == 1; });
}

void end_received_and_sent(Stage& stage) {
  const auto [stream, peer] = stage.connection();
  stage.receive(stream);
  Outcome shut;
  stream.shutdown_send(shut.callback());
  ::shutdown(peer.get(), SHUT_WR);
  stage.until([&] { return stage.inbox.ends == 1 && shut.done(); });
}

void end_sent(Stage& stage) {
  TcpStream& stream = stage.connection().stream;
  stage.receive(stream);
  Outcome shut;
  stream.shutdown_send(shut.callback());
  stage.until([&] { return shut.done(); });
}

void reset_received(Stage& stage) {
  const auto [stream, peer] = stage.connection();
  stage.receive(stream);
  Stage::reset(peer);
  stage.until([&] { return stage.inbox.errors == 1; });
}

void send_failed(Stage& stage) {
  const auto [stream, peer] = stage.connection();
  Stage::reset(peer);
  stream.send(bytes_of("x"), stage.sent.callback());
  stage.until([&] { return stage.sent.done(); });
}

void peer_does_not_read(Stage& stage) { stage.stuff(stage.connection().stream); }

void peer_does_not_read_and_has_ended(Stage& stage) {
  const auto [stream, peer] = stage.connection();
  stage.stuff(stream);
  ::shutdown(peer.get(), SHUT_WR);
}

void peer_does_not_read_and_its_end_is_known(Stage& stage) {
  const auto [stream, peer] = stage.connection();
  stage.receive(stream);
  stage.stuff(stream);
  ::shutdown(peer.get(), SHUT_WR);
  stage.until([&] { return stage.inbox.ends == 1; });
}

void peer_does_not_read_what_it_sends_is_not_read(Stage& stage) {
  const auto [stream, peer] = stage.paused();
  stage.stuff(stream);
}

void urgent_data_unread(Stage& stage) {
  const auto [stream, peer] = stage.connection();
  stage.receive(stream);
  Stage::put(peer, MSG_OOB);
}

void urgent_data_paused(Stage& stage) {
  const auto [stream, peer] = stage.paused();
  Stage::put(peer, MSG_OOB);
}

void graceful_close_waits_for_the_peer(Stage& stage) {
  TcpStream& stream = stage.connection().stream;
  stream.close_gracefully({.timeout = 1h});
  stage.settle();
  EXPECT_FALSE(stream.closed());
}

void graceful_close_waits_for_a_peer_that_does_not_read(Stage& stage) {
  TcpStream& stream = stage.connection().stream;
  stage.stuff(stream);
  stream.close_gracefully({.timeout = 1h});
  stage.settle();
  EXPECT_FALSE(stream.closed());
}

void streams_closed(Stage& stage) {
  for (int i = 0; i < 10; ++i) {
    TcpStream& stream = stage.connection().stream;
    stage.receive(stream);
    stage.settle();
    stream.close();
  }
}

// Those of io_uring's ring are 256.
void buffers_all_held(Stage& stage) {
  constexpr std::size_t count = 300;
  const auto [stream, peer] = stage.connection();
  stream.receive_start([&](Result<Buffer> received) {
    ASSERT_TRUE(received.has_value());
    stage.held.push_back(std::move(*received));
  });
  for (std::size_t i = 1; i <= count; ++i) {
    Stage::put(peer);
    stage.until([&] { return stage.held.size() == i; });
  }
}

// ---- Connecting and listening ----------------------------------------------------------------

/** A listener whose queue is full, so that a further connect gets no answer. */
Address full_listener(Stage& stage) {
  TcpListener& listener = stage.listener();
  EXPECT_TRUE(listener.listen("127.0.0.1:0", ListenOptions{.backlog_max = 1}).has_value());
  const Address address = *listener.local_address();
  // Linux queues one more than the backlog.
  for (int i = 0; i < 2; ++i) stage.raw(RawSocket::connected_to(address).release());
  return address;
}

void connect_to_a_silent_peer(Stage& stage) {
  stage.stream().connect(full_listener(stage), [](Result<void>) { ADD_FAILURE() << "an answer"; });
  stage.settle();
}

void connect_refused(Stage& stage) {
  // The port of a listener that was closed may be another state's by now.
  RawSocket bound = RawSocket::bound_to(Address::ipv4({127, 0, 0, 1}, 0));
  stage.stream().connect(bound.local_address(), stage.sent.callback());
  stage.raw(bound.release());
  stage.until([&] { return stage.sent.done(); });
}

void listener_idle(Stage& stage) {
  EXPECT_TRUE(stage.listener().listen("127.0.0.1:0", [](Result<TcpStream>) {}));
}

void listener_accepts_one(Stage& stage) {
  TcpListener& listener = stage.listener();
  EXPECT_TRUE(listener.listen("127.0.0.1:0").has_value());
  bool accepted = false;
  listener.accept([&](Result<TcpStream>) { accepted = true; });
  for (int i = 0; i < 2; ++i) {
    stage.raw(RawSocket::connected_to(*listener.local_address()).release());
  }
  stage.until([&] { return accepted; });
}

void listener_never_started_with_a_full_queue(Stage& stage) { full_listener(stage); }

void listener_paused_with_a_full_queue(Stage& stage) {
  TcpListener& listener = stage.listener();
  EXPECT_TRUE(listener.listen("127.0.0.1:0", ListenOptions{.backlog_max = 1}).has_value());
  listener.accept_start([](Result<TcpStream>) { ADD_FAILURE() << "accepted"; });
  stage.settle();
  listener.accept_stop();
  for (int i = 0; i < 2; ++i) {
    stage.raw(RawSocket::connected_to(*listener.local_address()).release());
  }
}

/** How seldom the next two try: the default of 100 ms makes ten turns a second by intention. */
constexpr ListenOptions seldom{.retry_delay = 10s};

void accept_failed(Stage& stage) {
  TcpListener& listener = stage.listener();
  EXPECT_TRUE(listener.listen("127.0.0.1:0", seldom).has_value());
  stage.calls.makes_ring_operations = true;
  stage.calls.refuse(detail::CallId::accept, EMFILE);
  listener.accept_start([&](Result<TcpStream> accepted) {
    EXPECT_FALSE(accepted.has_value());
    ++stage.count;
  });
  stage.raw(RawSocket::connected_to(*listener.local_address()).release());
  stage.until([&] { return stage.count == 1; });
}

using Arrange = void (*)(Stage&);
#define EVIX_STATE(name) {#name, name}
const std::map<std::string, Arrange> states{
    EVIX_STATE(nothing_but_a_reference),
    EVIX_STATE(timer_far_away),
    EVIX_STATE(timer_for_ever),
    EVIX_STATE(a_thousand_timers_stopped),
    EVIX_STATE(timer_stopped_by_itself),
    EVIX_STATE(unreferenced_handles),
    EVIX_STATE(wake_consumed),
    EVIX_STATE(woken_while_asleep),
    EVIX_STATE(waker_called),
    EVIX_STATE(mailbox_empty_after_a_burst),
    EVIX_STATE(immediates_done),
    EVIX_STATE(stopped_and_run_again),
    EVIX_STATE(after_an_exception),
    EVIX_STATE(after_a_nested_run),
    EVIX_STATE(signal_watcher_idle),
    EVIX_STATE(signal_caught),
    EVIX_STATE(watcher_idle),
    EVIX_STATE(watcher_disarmed),
    EVIX_STATE(watcher_disarmed_before_hang_up),
    EVIX_STATE(watcher_disarmed_before_error),
    EVIX_STATE(watcher_fired_once),
    EVIX_STATE(watcher_stopped),
    EVIX_STATE(watcher_of_a_full_pipe),
    EVIX_STATE(watcher_of_a_full_socket_with_data),
    EVIX_STATE(watcher_of_a_full_socket_whose_peer_has_ended),
    EVIX_STATE(more_ready_at_once_than_the_queue_holds),
    EVIX_STATE(stream_receives),
    EVIX_STATE(stream_receives_with_a_timeout),
    EVIX_STATE(stream_connected_only),
    EVIX_STATE(paused_with_data),
    EVIX_STATE(paused_with_end),
    EVIX_STATE(paused_with_hang_up),
    EVIX_STATE(paused_with_reset),
    EVIX_STATE(never_read_and_reset),
    EVIX_STATE(end_received),
    EVIX_STATE(end_received_and_sent),
    EVIX_STATE(end_sent),
    EVIX_STATE(reset_received),
    EVIX_STATE(send_failed),
    EVIX_STATE(peer_does_not_read),
    EVIX_STATE(peer_does_not_read_and_has_ended),
    EVIX_STATE(peer_does_not_read_and_its_end_is_known),
    EVIX_STATE(peer_does_not_read_what_it_sends_is_not_read),
    EVIX_STATE(urgent_data_unread),
    EVIX_STATE(urgent_data_paused),
    EVIX_STATE(graceful_close_waits_for_the_peer),
    EVIX_STATE(graceful_close_waits_for_a_peer_that_does_not_read),
    EVIX_STATE(streams_closed),
    EVIX_STATE(buffers_all_held),
    EVIX_STATE(connect_to_a_silent_peer),
    EVIX_STATE(connect_refused),
    EVIX_STATE(listener_idle),
    EVIX_STATE(listener_accepts_one),
    EVIX_STATE(listener_never_started_with_a_full_queue),
    EVIX_STATE(listener_paused_with_a_full_queue),
    EVIX_STATE(accept_failed),
};

class Resting : public testing::TestWithParam<BackendKind> {
 protected:
  static void expect_rest(Loop& loop) {
    const KeepAlive until_the_window_is_over = loop.keep_alive();
    const std::uint64_t turns_before = loop.counters().turns;
    const Duration cpu_before = cpu_time(CLOCK_THREAD_CPUTIME_ID);
    EXPECT_EQ(loop.run_for(window()), 0);
    EXPECT_LE(loop.counters().turns - turns_before, turns_max());
    EXPECT_LE(cpu_time(CLOCK_THREAD_CPUTIME_ID) - cpu_before, cpu_max());
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, Resting,
                         testing::ValuesIn(offered({BackendKind::epoll, BackendKind::poll,
                                                    BackendKind::io_uring})),
                         backend_name);

TEST_P(Resting, EveryStateRests) {
  EXPECT_GE(states.size(), 50U);
  std::vector<std::thread> threads;
  for (const auto& state : states) {
    threads.emplace_back([kind = GetParam(), &name = state.first, arrange = state.second] {
      SCOPED_TRACE(name);
      Stage stage(kind);
      arrange(stage);
      stage.settle();
      expect_rest(stage.loop);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Alone: among the other states its number would be another thread's soon.
TEST_P(Resting, WatchedDescriptorIsClosed) {
  Stage stage(GetParam());
  Pipe& pipe = stage.pipe();
  EXPECT_TRUE(stage.watcher().start(pipe.read_end(), Ready::readable, ignore));
  stage.settle();
  pipe.close_read();
  stage.settle();
  expect_rest(stage.loop);
}

TEST_P(Resting, AtTheDescriptorLimit) {
  Stage stage(GetParam());
  TcpListener& listener = stage.listener();
  ASSERT_TRUE(listener.listen("127.0.0.1:0", seldom).has_value());
  stage.raw(RawSocket::connected_to(*listener.local_address()).release());
  stage.receive(stage.connection().stream);
  stage.settle();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const RawSocket next(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const rlimit full{static_cast<rlim_t>(next.get()), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &full), 0);
  EXPECT_LT(::dup(0), 0) << "the limit does not bite";
  int errors = 0;
  listener.accept_start([&](Result<TcpStream> accepted) {
    EXPECT_FALSE(accepted.has_value());
    ++errors;
  });
  stage.until([&] { return errors == 1; });
  stage.settle();
  expect_rest(stage.loop);
  EXPECT_EQ(errors, 1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

// Their processor time together: the whole process is allowed what one loop is.
TEST_P(Resting, TwoHundredLoops) {
  constexpr std::size_t count = 200;
  std::vector<Loop*> loops(count);
  std::deque<LoopThread> threads;
  for (Loop*& loop : loops) {
    threads.emplace_back([&loop](Loop& its_loop) { loop = &its_loop; },
                         LoopOptions{.backend = GetParam()});
    const Pipe told;
    ASSERT_TRUE(threads.back().post([&](Loop&) { told.put(); }));
    told.take();
  }
  Stage observer(GetParam());
  observer.settle();
  const KeepAlive keep = observer.loop.keep_alive();
  EXPECT_EQ(observer.loop.run_for(10ms), 0);  // the last of them falls asleep
  std::vector<std::uint64_t> before;
  for (const Loop* loop : loops) before.push_back(loop->counters().turns);
  const Duration cpu_before = cpu_time(CLOCK_PROCESS_CPUTIME_ID);
  EXPECT_EQ(observer.loop.run_for(window()), 0);
  EXPECT_LE(cpu_time(CLOCK_PROCESS_CPUTIME_ID) - cpu_before, cpu_max());
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_LE(loops[i]->counters().turns - before[i], turns_max()) << "loop " << i;
  }
}

}  // namespace
}  // namespace evix::test
