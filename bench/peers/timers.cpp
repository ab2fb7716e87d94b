// What do timers cost? evix's store, the candidates it won against and libev, in one program run:
// every round measures every contender, so that a ratio compares neighbours in time.
//
// usage: peer_timers [ROUNDS [PART]]
// ROUNDS (default 9) are summed up by their median, and the ratio to libev by the median of the
// per-round ratios; PART selects the scenarios whose name contains it. Times are thread CPU time:
// on a shared machine the wall clock measures the others.

#include <ev.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/prng.hpp"
#include "base/timer_store.hpp"
#include "timer_candidates/heap_store.hpp"

namespace {

using evix::detail::Prng;
using timer_candidates::HeapNode;
using timer_candidates::HeapStore;

constexpr std::int64_t second_ns = 1'000'000'000;
constexpr std::int64_t ms_ns = 1'000'000;
constexpr std::size_t operations = 500'000;

std::int64_t read_clock_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * second_ns + time.tv_nsec;
}
// What a loop reads once a turn.
std::int64_t clock_ns() { return read_clock_ns(CLOCK_MONOTONIC); }
// What is reported: the thread's own time, so that other programs on the machine cost less.
std::int64_t cpu_ns() { return read_clock_ns(CLOCK_THREAD_CPUTIME_ID); }

volatile std::uint64_t sink_word;
std::uint64_t fired;

// As a loop has it: a timer is a record with a function to run.
template <typename Node>
struct alignas(64) Record {
  void (*run)(Record&) = [](Record&) { ++fired; };
  std::int64_t repeat_ns = 0;
  Node node;
};

// One cache line, as in a loop that places its records well.
static_assert(sizeof(Record<evix::detail::TimerNode>) == 64);

/// A store and its timers behind the calls that the scenarios make; libev has the same below.
template <typename Store, typename Node, bool eager>
class Contender {
 public:
  explicit Contender(const std::vector<std::int64_t>& repeats_ns)
      : count_(repeats_ns.size()), records_(std::make_unique<Record<Node>[]>(count_)) {
    for (std::size_t i = 0; i < count_; ++i) records_[i].repeat_ns = repeats_ns[i];
    end_turn();
    store_.begin_pass(now_ns_);
    store_.pop_due();
  }
  void start(std::size_t i) { store_.start(records_[i].node, now_ns_ + records_[i].repeat_ns); }
  void restart(std::size_t i) {
    if (eager) store_.stop(records_[i].node);
    start(i);
  }
  void stop(std::size_t i) { store_.stop(records_[i].node); }
  void end_turn() {
    now_ns_ = clock_ns();
    sink_word = static_cast<std::uint64_t>(store_.next_deadline_ns());
  }
  void expire_all() {
    store_.begin_pass(now_ns_ + 3600 * second_ns);
    while (Node* node = store_.pop_due()) record_of(node).run(record_of(node));
  }
  // A turn at a time of the benchmark's choosing: what is due fires and starts anew.
  void turn_at(std::int64_t now_ns) {
    now_ns_ = now_ns;
    store_.begin_pass(now_ns);
    while (Node* node = store_.pop_due()) {
      Record<Node>& record = record_of(node);
      record.run(record);
      store_.start(record.node, now_ns + record.repeat_ns);
    }
    sink_word = static_cast<std::uint64_t>(store_.next_deadline_ns());
  }
  std::int64_t now_ns() const { return now_ns_; }

 private:
  Record<Node>& record_of(Node* node) {
    const auto offset =
        reinterpret_cast<char*>(&records_[0].node) - reinterpret_cast<char*>(&records_[0]);
    return *reinterpret_cast<Record<Node>*>(reinterpret_cast<char*>(node) - offset);
  }

  Store store_;
  std::int64_t now_ns_ = 0;
  std::size_t count_;
  std::unique_ptr<Record<Node>[]> records_;
};

using Wheel = Contender<evix::detail::TimerStore, evix::detail::TimerNode, false>;
using EagerWheel = Contender<evix::detail::TimerStore, evix::detail::TimerNode, true>;
using Heap = Contender<HeapStore<false>, HeapNode, false>;
using LazyHeap = Contender<HeapStore<true>, HeapNode, false>;

class Libev {
 public:
  explicit Libev(const std::vector<std::int64_t>& repeats_ns)
      : loop_(ev_loop_new(EVFLAG_AUTO)),
        count_(repeats_ns.size()),
        timers_(std::make_unique<ev_timer[]>(count_)) {
    for (std::size_t i = 0; i < count_; ++i) {
      ev_timer_init(
          &timers_[i], [](struct ev_loop*, ev_timer*, int) { ++fired; }, 0.,
          static_cast<double>(repeats_ns[i]) * 1e-9);
    }
  }
  ~Libev() {
    for (std::size_t i = 0; i < count_; ++i) ev_timer_stop(loop_, &timers_[i]);
    ev_loop_destroy(loop_);
  }
  void start(std::size_t i) { ev_timer_again(loop_, &timers_[i]); }
  void restart(std::size_t i) { ev_timer_again(loop_, &timers_[i]); }
  void stop(std::size_t i) { ev_timer_stop(loop_, &timers_[i]); }
  void end_turn() { ev_now_update(loop_); }
  // libev's clock is the real one: the caller's delays are short and have passed.
  void expire_all() { ev_run(loop_, EVRUN_NOWAIT); }
  void make_one_shot() {
    for (std::size_t i = 0; i < count_; ++i) timers_[i].repeat = 0.;
  }

 private:
  struct ev_loop* loop_;
  std::size_t count_;
  std::unique_ptr<ev_timer[]> timers_;
};

std::vector<std::int64_t> random_times(std::size_t count, std::int64_t least_ns,
                                       std::int64_t most_ns, std::uint64_t seed) {
  Prng prng(seed);
  std::vector<std::int64_t> times(count);
  for (auto& time : times) {
    time = least_ns + static_cast<std::int64_t>(
                          prng.below(static_cast<std::uint64_t>(most_ns - least_ns + 1)));
  }
  return times;
}

std::vector<std::uint32_t> random_indices(std::size_t bound, std::uint64_t seed) {
  Prng prng(seed);
  std::vector<std::uint32_t> indices(operations);
  for (auto& index : indices) index = static_cast<std::uint32_t>(prng.below(bound));
  return indices;
}

template <typename Subject>
void start_all(Subject& subject, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) subject.start(i);
  subject.end_turn();
}

/// Restarts at random among `armed` timers of 1 to 60 s; a turn, with one clock reading and the
/// next deadline, ends after every `per_turn` of them.
template <typename Subject>
double restart_random(std::size_t armed, std::size_t per_turn, std::uint64_t seed) {
  Subject subject(random_times(armed, second_ns, 60 * second_ns, seed));
  start_all(subject, armed);
  const auto indices = random_indices(armed, seed + 1);
  for (std::size_t i = 0; i < operations / 4; ++i) subject.restart(indices[i]);
  const std::int64_t begin_ns = cpu_ns();
  for (std::size_t i = 0; i < operations;) {
    const std::size_t end = std::min(i + per_turn, operations);
    for (; i < end; ++i) subject.restart(indices[i]);
    subject.end_turn();
  }
  return static_cast<double>(cpu_ns() - begin_ns) / static_cast<double>(operations);
}

/// A turn starts 50 timers beside `armed` others and stops them again.
template <typename Subject>
double start_and_stop(std::size_t armed, std::uint64_t seed) {
  constexpr std::size_t burst = 50;
  Subject subject(random_times(armed + burst, second_ns, 60 * second_ns, seed));
  start_all(subject, armed);
  constexpr std::size_t turns = operations / burst;
  const std::int64_t begin_ns = cpu_ns();
  for (std::size_t turn = 0; turn < turns; ++turn) {
    for (std::size_t i = 0; i < burst; ++i) subject.start(armed + i);
    for (std::size_t i = 0; i < burst; ++i) subject.stop(armed + i);
    subject.end_turn();
  }
  return static_cast<double>(cpu_ns() - begin_ns) / static_cast<double>(turns * burst);
}

template <typename Subject>
double start_each(std::size_t count, std::uint64_t seed) {
  Subject subject(random_times(count, second_ns, 60 * second_ns, seed));
  const std::int64_t begin_ns = cpu_ns();
  for (std::size_t i = 0; i < count; ++i) subject.start(i);
  return static_cast<double>(cpu_ns() - begin_ns) / static_cast<double>(count);
}

/// All of `count` timers have become due when the pass begins.
template <typename Subject>
double expire(std::size_t count, std::int64_t most_ns, std::uint64_t seed) {
  Subject subject(random_times(count, ms_ns, most_ns, seed));
  start_all(subject, count);
  if constexpr (std::is_same_v<Subject, Libev>) {
    subject.make_one_shot();
    const std::int64_t due_ns = clock_ns() + most_ns;
    while (clock_ns() <= due_ns) {
    }
  }
  fired = 0;
  const std::int64_t begin_ns = cpu_ns();
  subject.expire_all();
  const std::int64_t end_ns = cpu_ns();
  if (fired != count) {
    std::fprintf(stderr, "%zu of %zu timers fired\n", static_cast<std::size_t>(fired), count);
    std::exit(1);
  }
  return static_cast<double>(end_ns - begin_ns) / static_cast<double>(count);
}

/// Idle time-outs in simulated time (so without libev): in a minute each of `armed` timers is
/// restarted every 15 s on average, always `per_turn` at a time; whatever expires starts anew.
template <typename Subject>
double idle_timeouts(std::size_t armed, std::size_t per_turn, bool oldest_first,
                     std::uint64_t seed) {
  const std::int64_t least_ns = oldest_first ? 60 * second_ns : second_ns;
  Subject subject(random_times(armed, least_ns, 60 * second_ns, seed));
  std::int64_t now_ns = subject.now_ns();
  const std::int64_t step_ns =
      15 * second_ns * static_cast<std::int64_t>(per_turn) / static_cast<std::int64_t>(armed);
  for (std::size_t i = 0; i < armed; ++i) {
    subject.start(i);
    if (i % per_turn == 0) subject.turn_at(now_ns += step_ns);
  }
  const std::size_t restarts = 4 * armed;
  Prng prng(seed);
  const std::int64_t begin_ns = cpu_ns();
  for (std::size_t i = 0; i < restarts;) {
    for (const std::size_t end = i + per_turn; i < end; ++i) {
      subject.restart(oldest_first ? i % armed : prng.below(armed));
    }
    subject.turn_at(now_ns += step_ns);
  }
  return static_cast<double>(cpu_ns() - begin_ns) / static_cast<double>(restarts);
}

/// `armed` time-outs of 60 s were started at one moment and the next deadline asked for; then
/// short ones come and go before them, 1000 at any time, one start and one stop a turn.
template <typename Subject>
double short_before_long(std::size_t armed, std::uint64_t seed) {
  constexpr std::size_t shorts = 1000;
  std::vector<std::int64_t> repeats_ns(armed, 60 * second_ns);
  const auto short_ns = random_times(shorts, 4 * second_ns, 5 * second_ns, seed);
  repeats_ns.insert(repeats_ns.end(), short_ns.begin(), short_ns.end());
  Subject subject(repeats_ns);
  for (std::size_t i = 0; i < armed + shorts; ++i) subject.start(i);
  std::int64_t now_ns = subject.now_ns();
  const auto indices = random_indices(shorts, seed);
  const std::int64_t begin_ns = cpu_ns();
  for (const std::uint32_t index : indices) {
    subject.stop(armed + index);
    subject.turn_at(now_ns += 10'000);
    subject.start(armed + index);
    subject.turn_at(now_ns += 10'000);
  }
  return static_cast<double>(cpu_ns() - begin_ns) / static_cast<double>(operations);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

constexpr const char* contender_names[] = {"libev", "wheel", "wheel eager", "heap", "heap lazy"};
constexpr std::size_t contender_count = std::size(contender_names);

using Measure = std::function<double(std::uint64_t seed)>;
struct Scenario {
  std::string name;
  Measure measure[contender_count];  // libev's is empty where the clock is simulated
};

template <typename Generic>
Scenario without_libev(std::string name, Generic generic) {
  return {std::move(name),
          {nullptr, [=](std::uint64_t seed) { return generic.template operator()<Wheel>(seed); },
           [=](std::uint64_t seed) { return generic.template operator()<EagerWheel>(seed); },
           [=](std::uint64_t seed) { return generic.template operator()<Heap>(seed); },
           [=](std::uint64_t seed) { return generic.template operator()<LazyHeap>(seed); }}};
}

template <typename Generic>
Scenario with_libev(std::string name, Generic generic) {
  Scenario scenario = without_libev(std::move(name), generic);
  scenario.measure[0] = [=](std::uint64_t seed) {
    return generic.template operator()<Libev>(seed);
  };
  return scenario;
}

std::vector<Scenario> all_scenarios() {
  std::vector<Scenario> result;
  constexpr std::size_t sizes[] = {1'000, 100'000, 1'000'000};
  for (const std::size_t per_turn : {std::size_t{1}, std::size_t{50}, operations}) {
    for (const std::size_t armed : sizes) {
      const std::string turn =
          per_turn == operations ? "no turn" : std::to_string(per_turn) + "/turn";
      result.push_back(with_libev("restart " + std::to_string(armed) + ", " + turn,
                                  [=]<typename Subject>(std::uint64_t seed) {
                                    return restart_random<Subject>(armed, per_turn, seed);
                                  }));
    }
  }
  for (const std::size_t armed : sizes) {
    result.push_back(with_libev("start+stop beside " + std::to_string(armed),
                                [=]<typename Subject>(std::uint64_t seed) {
                                  return start_and_stop<Subject>(armed, seed);
                                }));
  }
  result.push_back(with_libev("start 1000000", []<typename Subject>(std::uint64_t seed) {
    return start_each<Subject>(1'000'000, seed);
  }));
  result.push_back(with_libev("expire 1000000 of 0.5 s", []<typename Subject>(std::uint64_t seed) {
    return expire<Subject>(1'000'000, second_ns / 2, seed);
  }));
  result.push_back(
      without_libev("expire 1000000 of 60 s", []<typename Subject>(std::uint64_t seed) {
        return expire<Subject>(1'000'000, 60 * second_ns, seed);
      }));
  for (const std::size_t armed : sizes) {
    for (const bool oldest_first : {false, true}) {
      result.push_back(
          without_libev("idle " + std::to_string(armed) + (oldest_first ? ", oldest" : ", random"),
                        [=]<typename Subject>(std::uint64_t seed) {
                          return idle_timeouts<Subject>(armed, 1, oldest_first, seed);
                        }));
    }
  }
  for (const std::size_t armed : sizes) {
    result.push_back(without_libev("short before " + std::to_string(armed),
                                   [=]<typename Subject>(std::uint64_t seed) {
                                     return short_before_long<Subject>(armed, seed);
                                   }));
  }
  return result;
}

void print_row(const Scenario& scenario, const std::vector<std::vector<double>>& times) {
  std::printf("%-28s", scenario.name.c_str());
  for (std::size_t c = 0; c < contender_count; ++c) {
    if (times[c].empty()) {
      std::printf(" %8s     ", "-");
      continue;
    }
    std::printf(" %8.1f", median(times[c]));
    if (c == 0 || times[0].empty()) {
      std::printf("     ");
      continue;
    }
    std::vector<double> ratios;
    for (std::size_t round = 0; round < times[c].size(); ++round) {
      ratios.push_back(times[c][round] / times[0][round]);
    }
    std::printf(" %4.2f", median(ratios));
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 9;
  const std::string only = argc > 2 ? argv[2] : "";
  std::printf("ns per operation, median of %zu rounds; behind it the median ratio to libev\n%-28s",
              rounds, "");
  for (const char* name : contender_names) std::printf(" %-13s", name);
  std::printf("\n");
  for (const Scenario& scenario : all_scenarios()) {
    if (scenario.name.find(only) == std::string::npos) continue;
    std::vector<std::vector<double>> times(contender_count);
    for (std::size_t round = 0; round < rounds; ++round) {
      for (std::size_t c = 0; c < contender_count; ++c) {
        if (scenario.measure[c]) times[c].push_back(scenario.measure[c](round + 1));
      }
    }
    print_row(scenario, times);
  }
  return 0;
}
