#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <clocale>
#include <cstdlib>
#include <evix/evix.hpp>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

/** @file
 * What a program does with a loop, each thing once, and exactly: for tests/degraded/run.
 *
 * usage: degraded_self_test REPORT_DESCRIPTOR
 *
 * The last line that it writes is `outcome works`, `outcome refused STEP: ERROR` when the library
 * said that something cannot be done, or `outcome wrong STEP: WHAT` when it did something else than
 * it promises. Exit status 0, 3 and 1.
 */
namespace evix::degraded {
namespace {

using namespace std::chrono_literals;

constexpr int exit_refused = 3;
constexpr int exit_wrong = 1;
constexpr Duration step_limit = 10s;
constexpr int descriptors_max = 4096;

/** The library said no: an error value, with its words. */
struct Refused {
  std::string words;
};
/** The library did what it must not. */
struct Wrong {
  std::string words;
};

void require(bool condition, const char* what) {
  if (!condition) throw Wrong{what};
}

void require(const Result<void>& result) {
  if (!result) throw Refused{result.error().message()};
}

template <class T>
T value_of(Result<T> result) {
  if (!result) throw Refused{result.error().message()};
  return std::move(*result);
}

class Report {
 public:
  explicit Report(int descriptor) : descriptor_(descriptor) {}
  void line(std::string_view key, std::string_view words) {
    text_ += std::string(key) + " " + std::string(words) + "\n";
  }
  bool write() const {
    return ::write(descriptor_, text_.data(), text_.size()) == static_cast<ssize_t>(text_.size());
  }

 private:
  int descriptor_;
  std::string text_;
};

/** Runs until the loop is stopped; what is not done by then never will be. */
void run_until_stopped(Loop& loop, const bool& done) {
  Timer guard(loop);
  bool late = false;
  guard.after(step_limit, [&] {
    late = true;
    loop.stop();
  });
  if (loop.run() != 0) throw Refused{loop.error().message()};
  require(!late, "nothing happens any more");
  require(done, "run() ended before it was done");
}

void test_timers(Loop& loop, Report&) {
  constexpr int ticks_wanted = 3;
  Timer timer(loop);
  int ticks = 0;
  bool done = false;
  loop.update_now();
  const TimePoint begin = loop.now();
  const auto witness = std::chrono::steady_clock::now();
  timer.every(5ms, [&] {
    ++ticks;
    require(loop.now() - begin >= ticks * 5ms, "a tick came early by the loop's clock");
    require(std::chrono::steady_clock::now() - witness >= ticks * 5ms, "a tick came early");
    done = ticks == ticks_wanted;
    if (done) loop.stop();
  });
  run_until_stopped(loop, done);
  require(loop.now() - begin < step_limit, "the clock jumped");
  Timer never(loop);
  never.after(std::chrono::years(400), [] { throw Wrong{"a timer of 400 years is due"}; });
  require(loop.run_once(1ms) == 0, "run_once() failed");
}

/** Where no thread can be made, the same is done by this one. */
template <class F>
void in_thread(Report& report, F function) {
  std::thread thread;
  try {
    thread = std::thread(function);
  } catch (const std::system_error& error) {
    report.line("no_thread", error.code().message());
    function();
    return;
  }
  thread.join();
}

void test_posts(Loop& loop, Report& report) {
  constexpr int count = 200;
  const Poster poster = loop.poster();
  int ran = 0;
  bool done = false;
  in_thread(report, [&] {
    for (int number = 0; number < count; ++number) {
      require(poster.post([&, number] {
        require(ran == number, "posts changed places");
        done = ++ran == count;
        if (done) loop.stop();
      }));
    }
  });
  run_until_stopped(loop, done);
}

/** The thread waits until the loop is about to sleep, so that the wake-up ends a wait. */
void test_wake(Loop& loop, Report&) {
  int calls = 0;
  bool done = false;
  Waker waker(loop, [&] {
    ++calls;
    done = true;
    loop.stop();
  });
  const WakeSender sender = waker.sender();
  std::atomic<bool> sleeps = false;
  loop.set_wait_hooks([&] { sleeps = true; }, {});
  std::thread thread;
  try {
    thread = std::thread([&] {
      while (!sleeps) std::this_thread::yield();
      (void)sender.wake();
    });
  } catch (const std::system_error&) {
    require(sender.wake(), "the waker is closed");
  }
  try {
    run_until_stopped(loop, done);
  } catch (...) {
    sleeps = true;
    if (thread.joinable()) thread.join();
    throw;
  }
  if (thread.joinable()) thread.join();
  loop.set_wait_hooks({}, {});
  require(calls == 1, "one wake-up was told twice");
}

void test_signal(Loop& loop, Report& report) {
  sigset_t before;
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR1);
  sigprocmask(SIG_BLOCK, nullptr, &before);
  const bool blocked = sigismember(&before, SIGUSR1) == 1;
  int calls = 0;
  bool done = false;
  SignalWatcher watcher(loop);
  require(watcher.start(SIGUSR1, [&](int number) {
    require(number == SIGUSR1, "another signal");
    ++calls;
    done = true;
    loop.stop();
  }));
  require(::kill(::getpid(), SIGUSR1) == 0, "kill");
  if (blocked) {
    report.line("blocked", "SIGUSR1");
    require(loop.run_for(20ms) == 0, "run_for() failed");
    require(calls == 0, "a blocked signal was told");
    sigprocmask(SIG_UNBLOCK, &one, nullptr);
  }
  run_until_stopped(loop, done);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  require(calls == 1, "one signal was told twice");
}

/** A pipe, closed with the test. */
struct Pipe {
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  int ends[2] = {-1, -1};
};

void test_watcher(Loop& loop, Report& report) {
  Pipe pipe;
  if (::pipe(pipe.ends) != 0) {
    report.line("no_pipe", std::generic_category().message(errno));
    return;
  }
  bool done = false;
  Watcher watcher(loop);
  require(watcher.start(pipe.ends[0], Ready::readable, [&](Result<Ready> ready) {
    char byte = 0;
    require((value_of(std::move(ready)) & Ready::readable) != Ready::none, "not readable");
    require(::read(pipe.ends[0], &byte, 1) == 1 && byte == 'x', "nothing to read");
    done = true;
    loop.stop();
  }));
  require(::write(pipe.ends[1], "x", 1) == 1, "write");
  run_until_stopped(loop, done);
}

/** Connections that send at once, and whose echo is compared byte by byte. */
class Echo {
 public:
  Echo(Loop& loop, Report& report) : loop_(loop), report_(report), listener_(loop) {
    for (std::size_t i = 0; i < size; ++i) {
      bytes_[i] = static_cast<std::byte>((i * 31 + i / 251) % 256);
    }
  }

  void run() {
    require(listener_.listen("127.0.0.1:0",
                             [this](Result<TcpStream> peer) { serve(value_of(std::move(peer))); }));
    report_.line("listener", std::to_string(listener_.native()));
    const Address address = value_of(listener_.local_address());
    for (std::size_t number = 0; number < count; ++number) open(address, number);
    run_until_stopped(loop_, done_);
    require(servers_.size() == count, "another number of connections");
  }

 private:
  static constexpr std::size_t size = 200'000;
  static constexpr std::size_t count = 4;
  struct Client {
    TcpStream stream;
    std::size_t received = 0;
  };

  void serve(TcpStream peer) {
    servers_.push_back(std::make_unique<TcpStream>(std::move(peer)));
    TcpStream& stream = *servers_.back();
    require(stream.set_no_delay(true));
    stream.receive_start([&stream](Result<Buffer> chunk) {
      Buffer buffer = value_of(std::move(chunk));
      if (buffer.empty()) {
        stream.shutdown_send([](Result<void> shut) { require(shut); });
      } else {
        stream.send(std::move(buffer), [](Result<void> sent) { require(sent); });
      }
    });
  }

  void open(const Address& address, std::size_t number) {
    Client& client = clients_[number];
    client.stream = TcpStream(loop_);
    client.stream.connect(address, [this, &client, number](Result<void> connected) {
      require(connected);
      client.stream.receive_start([this, &client, number](Result<Buffer> chunk) {
        check(client, number, value_of(std::move(chunk)));
      });
      // Each from another place, so that no connection's bytes are another's.
      client.stream.send(std::span(bytes_).subspan(number), [&client](Result<void> sent) {
        require(sent);
        client.stream.shutdown_send([](Result<void> shut) { require(shut); });
      });
    });
  }

  void check(Client& client, std::size_t number, const Buffer& chunk) {
    const std::size_t begin = number + client.received;
    if (chunk.empty()) {
      require(begin == size, "the echo ended early");
      client.stream.close();
      done_ = ++echoed_ == count;
      if (done_) loop_.stop();
      return;
    }
    require(chunk.size() <= size - begin, "more came back than was sent");
    require(std::equal(chunk.data(), chunk.data() + chunk.size(), bytes_.data() + begin),
            "other bytes came back");
    client.received += chunk.size();
  }

  Loop& loop_;
  Report& report_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(size);
  TcpListener listener_;
  std::vector<std::unique_ptr<TcpStream>> servers_;
  std::array<Client, count> clients_;
  std::size_t echoed_ = 0;
  bool done_ = false;
};

void test_echo(Loop& loop, Report& report) {
  const auto echo = std::make_unique<Echo>(loop, report);
  echo->run();
}

void test_connect_refused(Loop& loop, Report&) {
  TcpListener listener(loop);
  require(listener.listen("127.0.0.1:0"));
  const Address address = value_of(listener.local_address());
  listener.close();
  TcpStream stream(loop);
  bool done = false;
  stream.connect(address, [&](Result<void> connected) {
    require(!connected, "connected to a closed port");
    if (!(connected.error() == std::errc::connection_refused)) require(connected);
    done = true;
    loop.stop();
  });
  run_until_stopped(loop, done);
}

/** After a reset: an error for the receive, and one for a send, and no SIGPIPE. */
void test_reset(Loop& loop, Report&) {
  TcpListener listener(loop);
  TcpStream server;
  TcpStream client(loop);
  bool done = false;
  require(listener.listen("127.0.0.1:0", [&](Result<TcpStream> peer) {
    server = value_of(std::move(peer));
    server.receive([&](Result<Buffer> chunk) {
      require(value_of(std::move(chunk)).size() == 1, "another number of bytes");
      server.abort();
    });
  }));
  client.connect(value_of(listener.local_address()), [&](Result<void> connected) {
    require(connected);
    require(client.send_copy("x"));
    client.receive([&](Result<Buffer> chunk) {
      require(!chunk, "a reset is told as the end of the stream");
      if (!(chunk.error() == std::errc::connection_reset)) throw Refused{chunk.error().message()};
      client.send(std::as_bytes(std::span("x", 1)), [&](Result<void> sent) {
        require(!sent, "sent to a peer that has gone");
        done = true;
        loop.stop();
      });
    });
  });
  run_until_stopped(loop, done);
}

/** A closed handle says so, and once. */
void test_close(Loop& loop, Report&) {
  TcpListener listener(loop);
  TcpStream client(loop);
  bool done = false;
  int canceled = 0;
  require(listener.listen("127.0.0.1:0"));
  client.connect(value_of(listener.local_address()), [&](Result<void> connected) {
    require(connected);
    client.receive([&](Result<Buffer> chunk) {
      require(!chunk && chunk.error() == std::errc::operation_canceled, "not canceled");
      ++canceled;
    });
    client.close([&] {
      done = true;
      loop.stop();
    });
  });
  run_until_stopped(loop, done);
  require(canceled == 1, "close() came before the receive's end");
}

struct Step {
  const char* name;
  void (*run)(Loop&, Report&);
};
constexpr std::array steps{
    Step{"timers", test_timers},
    Step{"posts", test_posts},
    Step{"wake", test_wake},
    Step{"signal", test_signal},
    Step{"watcher", test_watcher},
    Step{"echo", test_echo},
    Step{"connect_refused", test_connect_refused},
    Step{"reset", test_reset},
    Step{"close", test_close},
};

// Not by /proc, which is not there in some of the environments.
int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < descriptors_max; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

void report_backend(const BackendReport& found, Report& report) {
  report.line("decided_by", found.decided_by);
  for (const BackendChoice& choice : found.choices) {
    report.line("choice", std::string(to_string(choice.kind)) + ": " + choice.reason);
  }
  for (const std::string& fallback : found.fallbacks) report.line("fallback", fallback);
}

void run_steps(Report& report, const char*& step) {
  step = "loop";
  auto made = Loop::create();
  if (!made) {
    report_backend(probe_backends(), report);
    throw Refused{made.error().message()};
  }
  report.line("backend", to_string(made->backend()));
  report_backend(made->backend_report(), report);
  for (const Step& each : steps) {
    step = each.name;
    each.run(*made, report);
  }
  step = "end";
  require(made->counters().handles_active == 0, "a handle is active");
}

int test(Report& report) {
  const char* step = "start";
  const int before = open_descriptors();
  int status = 0;
  std::string outcome = "works";
  try {
    run_steps(report, step);
  } catch (const Refused& refused) {
    outcome = std::string("refused ") + step + ": " + refused.words;
    status = exit_refused;
  } catch (const std::bad_alloc&) {
    outcome = std::string("refused ") + step + ": std::bad_alloc";
    status = exit_refused;
  } catch (const Wrong& wrong) {
    outcome = std::string("wrong ") + step + ": " + wrong.words;
    status = exit_wrong;
  }
  if (open_descriptors() != before) {
    outcome = "wrong end: descriptors are left open after " + outcome;
    status = exit_wrong;
  }
  report.line("outcome", outcome);
  return report.write() ? status : exit_wrong;
}

}  // namespace
}  // namespace evix::degraded

int main(int count, char** arguments) {
  if (count != 2) return 2;
  std::setlocale(LC_ALL, "");
  evix::degraded::Report report(std::atoi(arguments[1]));
  return evix::degraded::test(report);
}
