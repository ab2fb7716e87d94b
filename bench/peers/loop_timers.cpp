// What do timers cost through the public interface, in a loop that runs? evix::Timer beside libev's
// ev_timer in one program run; every round measures all contenders.
//
// usage: peer_loop_timers [ROUNDS [LARGEST]]     (default 9 rounds, up to 1000000 timers)
//
// restart: in each turn of the loop 50 timers (1 to 60 s, at random among those armed) are started
// again. The whole turn is in the figure: placing, clock readings, next deadline, the callback that
// restarts, and in the columns "with wait" the system call that a turn makes. The other columns
// leave that call out: evix's loop runs over a call table whose wait returns at once, libev does
// ev_now_update() instead of a turn, which leaves out more.
// expire: so many timers, all due, each with its callback.
// Times are thread CPU time in nanoseconds per operation, medians of the rounds; ratios are medians
// of the ratios of each round.

#include <ev.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <evix/evix.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.hpp"
#include "sys/calls.hpp"

namespace {

using evix::detail::Prng;

constexpr std::int64_t second_ns = 1'000'000'000;
constexpr std::size_t per_turn = 50;
constexpr std::size_t operations = 500'000;
constexpr std::size_t warm_up = 100'000;

std::uint64_t fired = 0;

std::int64_t read_clock_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * second_ns + time.tv_nsec;
}
std::int64_t cpu_ns() { return read_clock_ns(CLOCK_THREAD_CPUTIME_ID); }

/** The kernel's table, but a wait finds nothing and costs nothing. */
class NoWait final : public evix::detail::Calls {
 public:
  int epoll_wait_ns(int, epoll_event*, int, std::int64_t) noexcept override { return 0; }
  int epoll_wait_ms(int, epoll_event*, int, int) noexcept override { return 0; }
};

std::vector<std::int64_t> random_delays(std::size_t count, std::int64_t least_ns,
                                        std::int64_t most_ns, std::uint64_t seed) {
  Prng prng(seed);
  std::vector<std::int64_t> delays(count);
  for (auto& delay : delays) {
    delay = least_ns + static_cast<std::int64_t>(
                           prng.below(static_cast<std::uint64_t>(most_ns - least_ns + 1)));
  }
  return delays;
}

/** Which timers are restarted, and the time from the end of the warm-up to the end. */
struct Plan {
  std::vector<std::uint32_t> indices;
  std::size_t next = 0;
  std::int64_t begin_ns = 0;

  Plan(std::size_t armed, std::uint64_t seed) : indices(warm_up + operations) {
    Prng prng(seed);
    for (auto& index : indices) index = static_cast<std::uint32_t>(prng.below(armed));
  }
  /** One turn's restarts; false: these were the last. */
  template <class Restart>
  bool turn(Restart restart) {
    if (next == warm_up) begin_ns = cpu_ns();
    for (const std::size_t end = next + per_turn; next < end; ++next) restart(indices[next]);
    return next < indices.size();
  }
  double per_operation() const {
    return static_cast<double>(cpu_ns() - begin_ns) / static_cast<double>(operations);
  }
};

evix::LoopOptions options_for(evix::detail::Calls* calls) {
  evix::LoopOptions options;
  options.backend = evix::BackendKind::epoll;
  options.system_calls = calls;
  return options;
}

std::vector<evix::Timer> evix_timers(evix::Loop& loop, const std::vector<std::int64_t>& delays) {
  std::vector<evix::Timer> timers;
  timers.reserve(delays.size());
  for (const std::int64_t delay : delays) {
    timers.emplace_back(loop).after(evix::Duration(delay), [] { ++fired; });
  }
  return timers;
}

double evix_restart(std::size_t armed, evix::detail::Calls* calls, std::uint64_t seed) {
  evix::Loop loop(options_for(calls));
  auto timers = evix_timers(loop, random_delays(armed, second_ns, 60 * second_ns, seed));
  loop.run_ready();
  Plan plan(armed, seed + 1);
  bool more = true;
  // An immediate that posts itself would run again in the same turn.
  while (more) {
    loop.post([&] { more = plan.turn([&](std::uint32_t index) { timers[index].again(); }); });
    loop.run_ready();
  }
  return plan.per_operation();
}

struct LibevTimers {
  struct ev_loop* loop = ev_loop_new(EVBACKEND_EPOLL);
  std::vector<ev_timer> timers;
  explicit LibevTimers(const std::vector<std::int64_t>& delays) : timers(delays.size()) {
    for (std::size_t i = 0; i < timers.size(); ++i) {
      const double delay_s = static_cast<double>(delays[i]) * 1e-9;
      ev_timer_init(&timers[i], [](struct ev_loop*, ev_timer*, int) { ++fired; }, 0., delay_s);
      ev_timer_again(loop, &timers[i]);
    }
  }
  LibevTimers(const LibevTimers&) = delete;
  LibevTimers& operator=(const LibevTimers&) = delete;
  ~LibevTimers() {
    for (ev_timer& timer : timers) ev_timer_stop(loop, &timer);
    ev_loop_destroy(loop);
  }
};

double libev_restart(std::size_t armed, bool with_wait, std::uint64_t seed) {
  LibevTimers subject(random_delays(armed, second_ns, 60 * second_ns, seed));
  Plan plan(armed, seed + 1);
  struct Context {
    LibevTimers& subject;
    Plan& plan;
    bool turn() {
      return plan.turn(
          [this](std::uint32_t index) { ev_timer_again(subject.loop, &subject.timers[index]); });
    }
  } context{subject, plan};
  if (!with_wait) {
    while (context.turn()) ev_now_update(subject.loop);
    return plan.per_operation();
  }
  ev_idle each_turn;
  ev_idle_init(&each_turn, [](struct ev_loop* loop, ev_idle* idle, int) {
    if (!static_cast<Context*>(idle->data)->turn()) ev_break(loop, EVBREAK_ALL);
  });
  each_turn.data = &context;
  ev_idle_start(subject.loop, &each_turn);
  ev_run(subject.loop, 0);
  ev_idle_stop(subject.loop, &each_turn);
  return plan.per_operation();
}

// All are started 1 s ahead of the first deadline, and all are due when the turn is measured.
void wait_until_due(std::int64_t begin_ns) {
  while (read_clock_ns(CLOCK_MONOTONIC) < begin_ns + 5 * second_ns / 2) {
    const timespec pause{0, 10'000'000};
    nanosleep(&pause, nullptr);
  }
}
std::vector<std::int64_t> expiring_delays(std::size_t count, std::uint64_t seed) {
  return random_delays(count, second_ns, 3 * second_ns / 2, seed);
}
double expired(std::int64_t begin_ns, std::size_t count) {
  const std::int64_t end_ns = cpu_ns();
  if (fired != count) {
    std::fprintf(stderr, "%llu of %zu timers fired\n", static_cast<unsigned long long>(fired),
                 count);
    std::exit(1);
  }
  return static_cast<double>(end_ns - begin_ns) / static_cast<double>(count);
}

double evix_expire(std::size_t count, std::uint64_t seed) {
  evix::Loop loop(options_for(nullptr));
  auto timers = evix_timers(loop, expiring_delays(count, seed));
  loop.run_ready();
  wait_until_due(read_clock_ns(CLOCK_MONOTONIC));
  fired = 0;
  const std::int64_t begin_ns = cpu_ns();
  loop.run_ready();
  return expired(begin_ns, count);
}

double libev_expire(std::size_t count, std::uint64_t seed) {
  LibevTimers subject(expiring_delays(count, seed));
  for (ev_timer& timer : subject.timers) timer.repeat = 0.;
  wait_until_due(read_clock_ns(CLOCK_MONOTONIC));
  fired = 0;
  const std::int64_t begin_ns = cpu_ns();
  ev_run(subject.loop, EVRUN_NOWAIT);
  return expired(begin_ns, count);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Row {
  std::string name;
  std::vector<double> evix;
  std::vector<double> libev;
  void print() const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < evix.size(); ++i) ratios.push_back(evix[i] / libev[i]);
    std::printf("%-36s evix %7.1f (%.1f to %.1f)   libev %7.1f   ratio %.2f\n", name.c_str(),
                median(evix), *std::min_element(evix.begin(), evix.end()),
                *std::max_element(evix.begin(), evix.end()), median(libev), median(ratios));
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::size_t rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 9;
  const std::size_t largest = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1'000'000;
  NoWait no_wait;
  for (const std::size_t armed :
       {std::size_t{1'000}, std::size_t{100'000}, std::size_t{1'000'000}}) {
    if (armed > largest) break;
    Row without{"restart among " + std::to_string(armed) + ", without wait", {}, {}};
    Row with{"restart among " + std::to_string(armed) + ", with wait", {}, {}};
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      without.libev.push_back(libev_restart(armed, false, round));
      without.evix.push_back(evix_restart(armed, &no_wait, round));
      with.libev.push_back(libev_restart(armed, true, round));
      with.evix.push_back(evix_restart(armed, nullptr, round));
    }
    without.print();
    with.print();
  }
  Row expire{"expire " + std::to_string(largest), {}, {}};
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    expire.libev.push_back(libev_expire(largest, round));
    expire.evix.push_back(evix_expire(largest, round));
  }
  expire.print();
  return 0;
}
