// The pipe ring on raw epoll: n pipes, k bytes travelling from each pipe to the next one. It asks
// how the cost of one event grows with the number of descriptors that are watched but idle.
//
// Every event reads one byte and writes it to the next pipe, so that events can be counted: were
// a pipe emptied, the travelling bytes would meet, and a hundred of them cost one event.
//
// Registered once, edge-triggered, reading less than there is: no edge is lost, because one wait
// takes all ready pipes, so a pipe is written at most once between two waits, and on Linux each
// write to a watched pipe is an edge (5.5 to 5.8 left some out; see epoll(7) and pipe(7)).
// --level registers level-triggered, which is what most libraries' watchers mean.
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <vector>

#include "raw.hpp"

namespace {

constexpr int patience_ms = 10'000;

struct Options {
  std::size_t pipes = 100;
  std::size_t active = 1;
  std::uint64_t events = 100'000;
  std::size_t rounds = 9;
  bool level = false;
};

struct Pipe {
  int reader = -1;
  int writer = -1;
};

struct Round {
  std::uint64_t events = 0;
  std::uint64_t cpu_ns = 0;
  std::uint64_t wall_ns = 0;
};

class PipeRing {
 public:
  explicit PipeRing(const Options& options);
  Round run();

 private:
  void write_byte(std::size_t pipe) const;

  const Options& options_;
  int epoll_ = -1;
  std::vector<Pipe> pipes_;
  std::vector<epoll_event> events_;
};

PipeRing::PipeRing(const Options& options)
    : options_(options), pipes_(options.pipes), events_(options.pipes) {
  epoll_ = raw::require(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  for (std::size_t index = 0; index < pipes_.size(); ++index) {
    int ends[2];
    raw::require(pipe2(ends, O_NONBLOCK | O_CLOEXEC), "pipe2");
    pipes_[index] = Pipe{ends[0], ends[1]};
    epoll_event event{};
    event.events = options.level ? EPOLLIN : EPOLLIN | EPOLLET;
    event.data.u64 = index;
    raw::require(epoll_ctl(epoll_, EPOLL_CTL_ADD, ends[0], &event), "epoll_ctl");
  }
}

// Sets k bytes going, evenly spaced, passes them on until `events` bytes have been written, and
// lets them run out: every round ends with empty pipes.
Round PipeRing::run() {
  Round round;
  const std::uint64_t wall_ns = raw::monotonic_ns();
  const std::uint64_t cpu_ns = raw::process_cpu_ns();
  for (std::size_t number = 0; number < options_.active; ++number) {
    write_byte(number * pipes_.size() / options_.active);
  }
  std::uint64_t writes_left = options_.events - options_.active;
  while (round.events < options_.events) {
    const int ready =
        epoll_wait(epoll_, events_.data(), static_cast<int>(events_.size()), patience_ms);
    if (ready < 0 && errno != EINTR) raw::die("epoll_wait", errno);
    if (ready == 0) raw::die("a byte arrived without an event");
    for (int index = 0; index < ready; ++index) {
      const std::size_t pipe = events_[static_cast<std::size_t>(index)].data.u64;
      char byte;
      raw::require(read(pipes_[pipe].reader, &byte, 1), "read");
      ++round.events;
      if (writes_left == 0) continue;
      --writes_left;
      write_byte(pipe + 1 == pipes_.size() ? 0 : pipe + 1);
    }
  }
  round.cpu_ns = raw::process_cpu_ns() - cpu_ns;
  round.wall_ns = raw::monotonic_ns() - wall_ns;
  return round;
}

void PipeRing::write_byte(std::size_t pipe) const {
  const char byte = 'e';
  raw::require(write(pipes_[pipe].writer, &byte, 1), "write");
}

Options parse_options(int count, char** values) {
  Options options;
  raw::Arguments arguments(count, values);
  while (arguments.next()) {
    if (arguments.name() == "--pipes") {
      options.pipes = arguments.count();
    } else if (arguments.name() == "--active") {
      options.active = arguments.count();
    } else if (arguments.name() == "--events") {
      options.events = arguments.count();
    } else if (arguments.name() == "--rounds") {
      options.rounds = arguments.count();
    } else if (arguments.name() == "--level") {
      options.level = true;
    } else {
      raw::die(
          "usage: floor_pipe_ring_epoll [--pipes N (100)] [--active K (1)]\n"
          "                             [--events N (100000)] [--rounds R (9)] [--level]");
    }
  }
  if (options.active == 0 || options.active > options.pipes || options.active > options.events ||
      options.rounds == 0) {
    raw::die("1 <= active <= pipes, active <= events, 1 <= rounds");
  }
  return options;
}

double per_event(std::uint64_t total_ns, const Round& round) {
  return static_cast<double>(total_ns) / static_cast<double>(round.events);
}

}  // namespace

int main(int count, char** values) {
  raw::raise_descriptor_limit();
  const Options options = parse_options(count, values);
  PipeRing ring(options);
  ring.run();  // warm-up
  for (std::size_t number = 0; number < options.rounds; ++number) {
    const Round round = ring.run();
    std::printf(
        "{\"pipes\": %zu, \"active\": %zu, \"events\": %llu, \"cpu_ns\": %.1f, "
        "\"wall_ns\": %.1f}\n",
        options.pipes, options.active, static_cast<unsigned long long>(round.events),
        per_event(round.cpu_ns, round), per_event(round.wall_ns, round));
    std::fflush(stdout);
  }
  return 0;
}
