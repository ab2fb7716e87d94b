#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <evix/evix.hpp>
#include <memory>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "soak/peers.hpp"
#include "support/descriptors.hpp"
#include "support/fault_calls.hpp"
#include "support/random_fault.hpp"
#include "support/resident_bytes.hpp"

/** @file
 * One loop under mixed load with random faults for a long time: connections of every kind, timers,
 * posts from two threads, signals, a pipe. Nothing may get lost or come twice, and memory and
 * descriptors stay where they were. For tests/soak/run.
 *
 * usage: soak BACKEND SECONDS [SEED]
 *
 * Exit status 0; 1 when something was wrong, with what; 77 when the backend cannot be used here.
 */
namespace evix::soak {
namespace {

using namespace std::chrono_literals;

constexpr int client_count = 40;
constexpr int connections_max = 25;  // the others wait until one is closed
constexpr int timer_count = 1000;
// io_uring's ring grows up to 256 of them as they are needed, which is no leak: 1 MiB.
constexpr std::size_t buffer_bytes = 4096;
constexpr int exit_unavailable = 77;
/** Of resident memory: what fragments, not what is lost with each of thousands of connections. */
constexpr std::int64_t growth_bytes_max = 2 << 20;

struct Sample {
  std::int64_t resident_bytes;
  std::size_t descriptors;
};

/** What has to come out even at the end. */
struct Ledger {
  std::uint64_t timers_early = 0;
  std::uint64_t timers_run = 0;
  std::array<std::atomic<std::uint64_t>, 2> posted{};
  std::array<std::uint64_t, 2> posts_run{};
  std::uint64_t posts_misordered = 0;
  std::uint64_t signals_raised = 0;
  std::uint64_t signals_seen = 0;
  std::uint64_t bytes_written = 0;  // to the pipe
  std::uint64_t bytes_read = 0;
  std::uint64_t faults = 0;
  std::uint64_t times_full = 0;
};

class Soak {
 public:
  Soak(BackendKind backend, std::chrono::seconds duration, std::uint64_t seed)
      : duration_(duration),
        random_(seed),
        loop_(LoopOptions{.backend = backend,
                          .buffer_size = buffer_bytes,
                          .connections_max = connections_max,
                          .system_calls = &calls_}) {}

  int run();

 private:
  void start();
  void listen();
  void serve(TcpStream stream);
  void connect(int slot);
  void connect_later(int slot);
  void restart_timers();
  void watch_signal();
  void watch_pipe();
  void feed();
  void post_until_told(unsigned thread);
  void take_sample();
  void end();
  bool came_to_rest() const;
  int judge() const;
  std::uint64_t below(std::uint64_t bound) { return random_.below(bound); }

  const std::chrono::seconds duration_;
  detail::Prng random_;
  detail::FaultCalls calls_;
  Loop loop_;
  Figures figures_;
  Ledger ledger_;
  TcpListener listener_{loop_};
  Address address_;
  std::uint64_t next_served_ = 0;
  std::unordered_map<std::uint64_t, std::unique_ptr<Served>> served_;
  std::array<std::unique_ptr<Client>, client_count> clients_;
  std::array<Timer, client_count> pauses_;
  std::vector<Timer> timers_;
  SignalWatcher signal_{loop_};
  Watcher watcher_{loop_};
  std::array<int, 2> pipe_{};
  Timer repair_{loop_};
  Timer ticks_{loop_};
  Timer samples_timer_{loop_};
  Timer end_timer_{loop_};
  std::vector<Sample> samples_;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> threads_;
  std::size_t descriptors_before_ = 0;
};

// Anew when a fault has ended it.
void Soak::listen() {
  listener_.accept_start([this](Result<TcpStream> stream) {
    if (stream) return serve(std::move(stream).value());
    if (stream.error() == Errc::connections_full) {
      ++ledger_.times_full;
      return;
    }
    ++figures_.errors;
    if (!listener_.active()) repair_.after(5ms, [this] { listen(); });
  });
}

void Soak::serve(TcpStream stream) {
  const std::uint64_t number = next_served_++;
  served_[number] = std::make_unique<Served>(std::move(stream), figures_,
                                             [this, number] { served_.erase(number); });
}

void Soak::connect(int slot) {
  if (stopping_) return;
  clients_[static_cast<std::size_t>(slot)] =
      std::make_unique<Client>(loop_, address_, random_.next(), figures_, [this, slot] {
        clients_[static_cast<std::size_t>(slot)].reset();
        connect_later(slot);
      });
}

void Soak::connect_later(int slot) {
  if (stopping_) return;
  pauses_[static_cast<std::size_t>(slot)].after(std::chrono::milliseconds(below(30)),
                                                [this, slot] { connect(slot); });
}

void Soak::restart_timers() {
  for (int count = 0; count < 20; ++count) {
    const Duration delay = std::chrono::microseconds(below(500'000));
    const TimePoint due = loop_.now() + delay;
    timers_[below(timers_.size())].after(delay, [this, due] {
      ++ledger_.timers_run;
      if (loop_.now() < due) ++ledger_.timers_early;
    });
  }
}

void Soak::watch_signal() {
  if (!signal_.start(SIGUSR1, [this](int) { ++ledger_.signals_seen; })) ++figures_.errors;
}

void Soak::watch_pipe() {
  const auto started = watcher_.start(pipe_[0], Ready::readable, [this](Ready ready) {
    std::array<char, 64> room;
    const ssize_t count = ::read(pipe_[0], room.data(), room.size());
    if (count > 0) ledger_.bytes_read += static_cast<std::uint64_t>(count);
    // A fault: the kernel refused to watch it.
    if (any(ready, Ready::invalid)) watcher_.stop();
  });
  if (!started) ++figures_.errors;
}

// Each 2 ms: what the world outside does.
void Soak::feed() {
  restart_timers();
  if (!watcher_.active()) watch_pipe();
  if (!signal_.active()) watch_signal();
  if (signal_.active() && below(10) == 0) {
    ++ledger_.signals_raised;
    raise(SIGUSR1);
  }
  if (below(3) == 0 && ::write(pipe_[1], "x", 1) == 1) ++ledger_.bytes_written;
  if (below(2) == 0) {
    ++ledger_.faults;
    test::inject_random_fault(calls_, [this](std::uint64_t bound) { return below(bound); });
  }
}

void Soak::post_until_told(unsigned thread) {
  const Poster poster = loop_.poster();
  std::uint64_t number = 0;
  while (!stopping_) {
    const bool posted = poster
                            .post([this, thread, number] {
                              std::uint64_t& run = ledger_.posts_run[thread];
                              if (run++ != number) ++ledger_.posts_misordered;
                            })
                            .has_value();
    if (posted) ++number;
    ledger_.posted[thread] = number;
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // the load, nobody waits for it
  }
}

void Soak::take_sample() { samples_.push_back({test::resident_bytes(), test::open_descriptors()}); }

void Soak::start() {
  if (::pipe2(pipe_.data(), O_NONBLOCK | O_CLOEXEC) != 0) std::abort();
  if (!listener_.listen("127.0.0.1:0")) std::abort();
  address_ = *listener_.local_address();
  for (int count = 0; count < timer_count; ++count) timers_.emplace_back(loop_);
  for (Timer& pause : pauses_) pause = Timer(loop_);
  loop_.run_for(10ms);
  descriptors_before_ = test::open_descriptors();
  samples_.reserve(static_cast<std::size_t>(duration_.count()) + 1);
  listen();
  for (int slot = 0; slot < client_count; ++slot) connect_later(slot);
  ticks_.every(2ms, [this] { feed(); });
  samples_timer_.every(1s, [this] { take_sample(); });
  end_timer_.after(duration_, [this] { end(); });
  for (unsigned thread = 0; thread < 2; ++thread) {
    threads_.emplace_back([this, thread] { post_until_told(thread); });
  }
}

// No faults and nothing new from now on; what is under way comes to its end.
void Soak::end() {
  stopping_ = true;
  for (std::thread& thread : threads_) thread.join();
  calls_.restore_all();
  ticks_.stop();
  samples_timer_.stop();
  repair_.stop();
  for (Timer& timer : timers_) timer.stop();
  for (Timer& pause : pauses_) pause.stop();
  if (!watcher_.active()) watch_pipe();
  if (!listener_.active()) listen();
  ticks_.every(10ms, [this] {
    if (came_to_rest()) loop_.stop();
  });
  end_timer_.after(30s, [this] { loop_.stop(); });
}

bool Soak::came_to_rest() const {
  const bool all_gone = std::ranges::none_of(clients_, [](const auto& client) { return !!client; });
  // A ring lets go of descriptors a little later.
  return all_gone && served_.empty() && ledger_.bytes_read == ledger_.bytes_written &&
         ledger_.posts_run[0] == ledger_.posted[0] && ledger_.posts_run[1] == ledger_.posted[1] &&
         test::open_descriptors() <= descriptors_before_;
}

std::int64_t mean_resident(const std::vector<Sample>& samples, std::size_t first, std::size_t end) {
  std::int64_t sum = 0;
  for (std::size_t index = first; index < end; ++index) sum += samples[index].resident_bytes;
  return sum / static_cast<std::int64_t>(std::max<std::size_t>(end - first, 1));
}

int Soak::judge() const {
  const std::size_t count = samples_.size();
  const std::int64_t early = mean_resident(samples_, count / 5, count * 2 / 5);
  const std::int64_t late = mean_resident(samples_, count * 4 / 5, count);
  std::size_t descriptors_max = 0;
  for (const Sample& sample : samples_) {
    descriptors_max = std::max(descriptors_max, sample.descriptors);
  }
  std::printf(
      "%s: %lld s, %llu connections, %.1f MB echoed, %llu timers, %llu posts, %llu signals, "
      "%llu faults, %llu errors; resident %.2f MB in the second fifth, %.2f in the last; "
      "descriptors %zu before, %zu at most, %zu after\n",
      std::string(to_string(loop_.backend())).c_str(), static_cast<long long>(duration_.count()),
      static_cast<unsigned long long>(figures_.connections), double(figures_.bytes) / 1e6,
      static_cast<unsigned long long>(ledger_.timers_run),
      static_cast<unsigned long long>(ledger_.posts_run[0] + ledger_.posts_run[1]),
      static_cast<unsigned long long>(ledger_.signals_seen),
      static_cast<unsigned long long>(ledger_.faults),
      static_cast<unsigned long long>(figures_.errors), double(early) / 1e6, double(late) / 1e6,
      descriptors_before_, descriptors_max, test::open_descriptors());
  int failures = 0;
  const auto require = [&failures](bool holds, const char* what) {
    if (holds) return;
    ++failures;
    std::printf("wrong: %s\n", what);
  };
  const auto require_none = [&failures](std::uint64_t times, const char* what) {
    if (times == 0) return;
    ++failures;
    std::printf("wrong: %llu %s\n", static_cast<unsigned long long>(times), what);
  };
  require_none(figures_.wrong, "times other bytes came back than were sent");
  require_none(figures_.misorders, "callbacks came after the end");
  require_none(figures_.stuck, "clients waited in vain");
  require(figures_.connections > 0 && figures_.bytes > 0, "there was no load");
  require(ledger_.times_full > 0, "the limit of connections was never told");
  require(ledger_.timers_run > 0 && ledger_.timers_early == 0, "a timer came early");
  require_none(ledger_.posts_misordered, "posts changed places");
  require(ledger_.posts_run[0] == ledger_.posted[0] && ledger_.posts_run[1] == ledger_.posted[1],
          "a post was lost or came twice");
  require(ledger_.signals_seen > 0 && ledger_.signals_seen <= ledger_.signals_raised,
          "there were more signals than raised, or none");
  require(ledger_.bytes_read == ledger_.bytes_written, "the watcher missed a byte");
  require(served_.empty(), "a side of the server has not ended");
  require(loop_.counters().connections == 0, "connections are left");
  require(loop_.counters().send_queue_bytes == 0, "bytes are left in a queue");
  require(test::open_descriptors() <= descriptors_before_, "descriptors are left");
  require(late - early < growth_bytes_max, "memory grows");
  return failures == 0 ? 0 : 1;
}

int Soak::run() {
  start();
  const int code = loop_.run();
  if (code != 0) {
    std::printf("wrong: the run ended: %s\n", loop_.error().message().c_str());
    std::_Exit(1);  // threads still post
  }
  return judge();
}

}  // namespace
}  // namespace evix::soak

int main(int count, char** arguments) {
  using namespace evix;
  if (count < 3) {
    std::fputs("usage: soak BACKEND SECONDS [SEED]\n", stderr);
    return 2;
  }
  const std::string_view name = arguments[1];
  for (const BackendKind kind : {BackendKind::epoll, BackendKind::poll, BackendKind::io_uring}) {
    if (to_string(kind) != name) continue;
    if (const auto loop = Loop::create({.backend = kind}); !loop) {
      std::printf("%s: %s\n", arguments[1], loop.error().message().c_str());
      return soak::exit_unavailable;
    }
    const std::uint64_t seed = count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1;
    return soak::Soak(kind, std::chrono::seconds(std::atoll(arguments[2])), seed).run();
  }
  std::fprintf(stderr, "soak: unknown backend %s\n", arguments[1]);
  return 2;
}
