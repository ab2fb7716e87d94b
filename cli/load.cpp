#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <evix/evix.hpp>
#include <limits>
#include <vector>

#include "advice.hpp"
#include "commands.hpp"
#include "load_report.hpp"
#include "parse.hpp"
#include "pattern.hpp"
#include "system.hpp"

namespace evix::cli {

namespace {

constexpr std::uint32_t connects_outstanding_max = 256;  // far below any server's backlog
constexpr Duration connect_timeout = std::chrono::seconds(10);
constexpr Duration drain_timeout = std::chrono::seconds(5);
// Descriptors beside the connections: the standard ones, and what a loop needs for itself.
constexpr std::uint64_t other_descriptors = 24;

// The time of the loop is that of the turn's beginning; latencies need the moment.
std::int64_t clock_ns() {
  return std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Load {
 public:
  Load(Loop& loop, const LoadOptions& options);

  // Runs the load to its end, prints the report; the exit code.
  int run();

 private:
  struct Connection {
    TcpStream stream;
    std::uint64_t sent_bytes = 0;
    std::uint64_t received_bytes = 0;
    std::uint32_t index = 0;
    bool open = false;
    bool busy = false;  // something is in flight; counted in busy_

    std::uint64_t in_flight_bytes() const { return sent_bytes - received_bytes; }
  };

  // connecting → measuring → draining → finished; a state is left out when nothing is to be done.
  enum class Phase : std::uint8_t { connecting, measuring, draining, finished };

  void connect_more();
  void connected(Connection& connection, const Result<void>& result);
  void all_connected();
  void set_marks(Connection& connection) const;
  void send_messages(Connection& connection, std::uint64_t wanted);
  void received(Connection& connection, const Result<Buffer>& buffer);
  std::uint64_t check(Connection& connection, std::span<const std::byte> bytes);
  void set_idle(Connection& connection);
  void close(Connection& connection);
  void end_measuring();
  void finish();
  void finish_if_quiet();
  void interrupted();
  void show_progress();
  void complete_report();
  int hold();

  std::int64_t& send_time_ns(const Connection& connection, std::uint64_t message) {
    const std::size_t first = std::size_t{connection.index} * options_.pipeline;
    return send_times_ns_[first + static_cast<std::size_t>(message % options_.pipeline)];
  }

  Loop& loop_;
  const LoadOptions& options_;
  const Pattern pattern_;
  std::vector<Connection> connections_;
  std::vector<std::int64_t> send_times_ns_;  // `pipeline` of them for each connection
  Timer phase_timer_;
  Timer progress_timer_;
  SignalWatcher interrupt_signal_;
  SignalWatcher terminate_signal_;
  LoadReport report_;

  Phase phase_ = Phase::connecting;
  std::uint32_t next_ = 0;        // the connection to connect next
  std::uint32_t connecting_ = 0;  // outstanding connects
  std::uint32_t open_ = 0;
  std::uint32_t busy_ = 0;
  bool connect_timed_out_ = false;
  bool holding_ = false;
  bool interrupted_ = false;
  std::uint64_t messages_left_;  // that may still be sent
  std::uint64_t requests_shown_ = 0;
  std::int64_t measuring_since_ns_ = 0;
};

Load::Load(Loop& loop, const LoadOptions& options)
    : loop_(loop),
      options_(options),
      connections_(options.connections),
      send_times_ns_(std::size_t{options.connections} * options.pipeline),
      phase_timer_(loop),
      progress_timer_(loop),
      interrupt_signal_(loop),
      terminate_signal_(loop),
      messages_left_(options.echoes_max != 0 ? options.echoes_max
                                             : std::numeric_limits<std::uint64_t>::max()) {
  report_.backend = to_string(loop.backend());
  for (std::uint32_t index = 0; index < options.connections; ++index) {
    connections_[index].index = index;
  }
}

int Load::run() {
  const auto interrupt = [this](int) { interrupted(); };
  for (const Result<void>& started :
       {interrupt_signal_.start(SIGINT, interrupt), terminate_signal_.start(SIGTERM, interrupt)}) {
    if (!started) return complain_with_advice(started.error());
  }
  if (standard_error_is_terminal()) {
    progress_timer_.every(std::chrono::seconds(1), [this] { show_progress(); });
  }
  connect_more();
  if (loop_.run() != 0) return complain_with_advice(loop_.error());
  complete_report();
  print_report(report_, options_);
  if (options_.hold && !interrupted_) return hold();
  return report_.clean() ? exit_ok : exit_failed;
}

void Load::connect_more() {
  while (connecting_ < connects_outstanding_max && next_ < connections_.size() &&
         !connect_timed_out_ && phase_ == Phase::connecting) {
    Connection& connection = connections_[next_++];
    ++connecting_;
    connection.stream = TcpStream(loop_);
    connection.stream.connect(
        options_.address, {.timeout = connect_timeout},
        [this, &connection](Result<void> result) { connected(connection, result); });
  }
  if (connecting_ == 0 && phase_ == Phase::connecting) all_connected();
}

void Load::connected(Connection& connection, const Result<void>& result) {
  --connecting_;
  if (!result) {
    report_.add_failure(result.error());
    // Each further one would take as long again.
    connect_timed_out_ |= result.error() == std::errc::timed_out;
    connection.stream = TcpStream();
  } else {
    connection.open = true;
    ++open_;
    set_marks(connection);
    connection.stream.receive_start(
        [this, &connection](Result<Buffer>&& buffer) { received(connection, buffer); });
  }
  connect_more();
}

void Load::set_marks(Connection& connection) const {
  // Fails only for a connection that has failed already, which the receive reports.
  (void)connection.stream.set_no_delay(true);
  WaterMarks marks;
  const std::uint64_t needed_bytes = options_.pipeline * options_.size_bytes;
  if (needed_bytes <= marks.hard_bytes_max) return;
  marks.hard_bytes_max = needed_bytes;
  connection.stream.set_water_marks(marks);
}

void Load::all_connected() {
  report_.not_tried = connections_.size() - next_;
  report_.errors += report_.not_tried;
  phase_ = Phase::measuring;
  measuring_since_ns_ = clock_ns();
  phase_timer_.after(options_.duration, [this] { end_measuring(); });
  if (!options_.idle) {
    for (Connection& connection : connections_) {
      if (connection.open) send_messages(connection, options_.pipeline);
    }
  }
  finish_if_quiet();
}

void Load::send_messages(Connection& connection, std::uint64_t wanted) {
  const std::uint64_t count = std::min(wanted, messages_left_);
  if (count == 0) return;
  const std::uint64_t first = connection.sent_bytes / options_.size_bytes;
  const std::int64_t now_ns = clock_ns();
  for (std::uint64_t message = first; message < first + count; ++message) {
    send_time_ns(connection, message) = now_ns;
  }
  if (!connection.busy) {
    connection.busy = true;
    ++busy_;
  }
  std::uint64_t left_bytes = count * options_.size_bytes;
  while (left_bytes > 0) {
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(left_bytes, Pattern::slice_bytes_max));
    const Result<void> sent =
        connection.stream.send_copy(pattern_.slice(connection.index, connection.sent_bytes, size));
    if (!sent) {
      report_.add_failure(sent.error());
      return close(connection);
    }
    connection.sent_bytes += size;
    left_bytes -= size;
  }
  if (options_.echoes_max != 0) messages_left_ -= count;
}

void Load::received(Connection& connection, const Result<Buffer>& buffer) {
  if (!buffer) {
    report_.add_failure(buffer.error());
    close(connection);
  } else if (buffer->empty()) {
    const bool expected = phase_ >= Phase::draining || messages_left_ == 0;
    if (!expected || connection.busy) {
      ++report_.errors;
      ++report_.ended_early;
    }
    close(connection);
  } else {
    const std::uint64_t completed = check(connection, buffer->bytes());
    if (completed == 0) return;
    if (phase_ == Phase::measuring) {
      report_.requests += completed;
      send_messages(connection, completed);
    }
    if (connection.open && connection.in_flight_bytes() != 0) return;
    set_idle(connection);
  }
  finish_if_quiet();
}

// Compares the bytes with what was sent; how many messages are whole now.
std::uint64_t Load::check(Connection& connection, std::span<const std::byte> bytes) {
  const auto expected_size =
      static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), connection.in_flight_bytes()));
  report_.wrong_bytes +=
      pattern_.wrong_bytes(connection.index, connection.received_bytes, bytes.first(expected_size));
  report_.wrong_bytes += bytes.size() - expected_size;  // nobody sent these
  const std::uint64_t first = connection.received_bytes / options_.size_bytes;
  connection.received_bytes += expected_size;
  const std::uint64_t end = connection.received_bytes / options_.size_bytes;
  if (end == first) return 0;
  const std::int64_t now_ns = clock_ns();
  for (std::uint64_t message = first; message < end; ++message) {
    const std::int64_t latency_ns = now_ns - send_time_ns(connection, message);
    report_.latency_ns.record(static_cast<std::uint64_t>(latency_ns));
  }
  return end - first;
}

void Load::set_idle(Connection& connection) {
  if (!connection.busy) return;
  connection.busy = false;
  --busy_;
}

void Load::close(Connection& connection) {
  if (!connection.open) return;
  connection.open = false;
  --open_;
  set_idle(connection);
  connection.stream = TcpStream();
}

void Load::end_measuring() {
  report_.measured = Duration(clock_ns() - measuring_since_ns_);
  phase_ = Phase::draining;
  phase_timer_.after(drain_timeout, [this] { finish(); });
  finish_if_quiet();
}

void Load::finish_if_quiet() {
  const bool all_sent = open_ == 0 || messages_left_ == 0;
  if (phase_ == Phase::measuring && busy_ == 0 && all_sent) {
    end_measuring();
  } else if (phase_ == Phase::draining && busy_ == 0) {
    finish();
  }
}

void Load::finish() {
  phase_ = Phase::finished;
  phase_timer_.stop();
  progress_timer_.stop();
  if (standard_error_is_terminal()) fmt::print(stderr, "\r\x1b[K");
  loop_.stop();
}

// The first signal ends the measured time, a second one ends the waiting for what is in flight.
void Load::interrupted() {
  interrupted_ = true;
  if (holding_) return loop_.stop();
  if (phase_ == Phase::measuring) return end_measuring();
  finish();
}

void Load::show_progress() {
  if (phase_ == Phase::connecting) {
    fmt::print(stderr, "\r\x1b[K{} of {} connected", format_count(open_),
               format_count(options_.connections));
    return;
  }
  const std::uint64_t fresh = report_.requests - requests_shown_;
  requests_shown_ = report_.requests;
  const Duration elapsed(clock_ns() - measuring_since_ns_);
  fmt::print(stderr, "\r\x1b[K{} s  {} requests/s  p50 {}  p99 {}  errors {}  wrong bytes {}",
             std::chrono::duration_cast<std::chrono::seconds>(elapsed).count(), format_count(fresh),
             format_duration(report_.latency_ns.percentile(500)),
             format_duration(report_.latency_ns.percentile(990)), report_.errors,
             report_.wrong_bytes);
}

void Load::complete_report() {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const Connection& connection : connections_) {
    report_.lost_bytes += connection.in_flight_bytes();
    least = std::min(least, connection.received_bytes / options_.size_bytes);
  }
  report_.echoes_min_per_connection = least;
}

int Load::hold() {
  holding_ = true;
  fmt::print(stderr, "evix: holding {} connections until SIGINT or SIGTERM\n", open_);
  if (loop_.run() != 0) return complain_with_advice(loop_.error());
  return report_.clean() ? exit_ok : exit_failed;
}

bool enough_descriptors(const LoadOptions& options) {
  const ResourceLimit limit = raise_descriptor_limit();
  const std::uint64_t needed = options.connections + other_descriptors;
  if (!limit.soft || *limit.soft >= needed) return true;
  fmt::print(stderr,
             "evix: too few descriptors: {} connections need {}, this process may have {}\n"
             "      raise the limit with 'ulimit -n {}' (as root, or in limits.conf)\n",
             options.connections, needed, *limit.soft, needed);
  return false;
}

}  // namespace

int run_load(const LoadOptions& options) {
  if (!enough_descriptors(options)) return exit_failed;
  LoopOptions loop_options{.backend = options.backend};
  const std::uint64_t in_flight_bytes =
      std::uint64_t{options.connections} * options.pipeline * options.size_bytes;
  loop_options.send_queue_bytes_max =
      std::max<std::size_t>(loop_options.send_queue_bytes_max, in_flight_bytes);
  std::expected<Loop, int> loop = make_network_loop(loop_options);
  if (!loop) return loop.error();
  return Load(*loop, options).run();
}

}  // namespace evix::cli
