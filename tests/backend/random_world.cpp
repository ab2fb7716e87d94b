#include "backend/random_world.hpp"

#include <fcntl.h>
#include <csignal>

#include <algorithm>

#include "support/random_fault.hpp"

namespace evix::test {
namespace {

constexpr std::size_t handles_max = 10;  // of each kind
constexpr int depth_max = 3;             // of nested runs

}  // namespace

RandomWorld::RandomWorld(const Options& options)
    : options_(options),
      random_(options.seed, options.choices),
      faulty_(options.backend,
              LoopOptions{.sim_seed = options.seed,
                          .immediate_budget = static_cast<std::uint32_t>(options.seed % 3 * 5),
                          .completion_budget = options.seed % 4 == 0 ? 2U : 4096U,
                          .buffer_size = options.seed % 2 == 0 ? 64U * 1024 : 5000U,
                          .send_queue_bytes_max = options.seed % 5 == 0 ? 1'000'000U : 1U << 28}) {
  faulty_.calls->makes_ring_operations = options.faults;
}

RandomWorld::~RandomWorld() = default;

// ---- The ledger ------------------------------------------------------------------------------

Operation& RandomWorld::make(const char* what, bool series) {
  operations_.push_back(std::make_unique<Operation>());
  Operation& made = *operations_.back();
  made.what = what;
  made.series = series;
  made.must_run = !series;
  return made;
}

void RandomWorld::enter(Operation& operation, bool last) {
  EXPECT_EQ(starts_on_stack, 0) << operation.what << " ran inside the call that started it";
  EXPECT_TRUE(operation.may_run) << operation.what << " was called though it has ended";
  ++operation.calls;
  if (!last) return;
  operation.may_run = operation.must_run = false;
  operation.bytes = {};
}

void RandomWorld::silence(Operation* operation) {
  if (operation == nullptr) return;
  operation->may_run = operation->must_run = false;
  operation->bytes = {};
}

void RandomWorld::drop(std::set<Operation*>& pending) {
  for (Operation* operation : pending) silence(operation);
  pending.clear();
}

void RandomWorld::leave() {
  if (ending_ || steps_left_ == 0 || testing::Test::HasFailure()) return;
  {
    struct Depth {
      int& depth;
      explicit Depth(int& of) : depth(of) { ++depth; }
      ~Depth() { --depth; }
    } const inside(depth_);
    for (std::uint64_t calls = random_.below(3); calls > 0 && steps_left_ > 0; --calls) step();
  }
  if (chance(200)) throw Thrown();
}

void RandomWorld::check_ledger() {
  for (const auto& operation : operations_) {
    EXPECT_FALSE(operation->must_run) << operation->what << " was lost after " << operation->calls;
    EXPECT_EQ(operation->copies, 0) << operation->what << " kept its callback";
  }
  operations_.clear();
}

// ---- Timers ----------------------------------------------------------------------------------

void RandomWorld::timer_ran(TimerState& state, Operation& operation) {
  const bool once = state.period == Duration::zero();
  enter(operation, false);
  if (!operation.may_run) return;
  EXPECT_GE(loop_.now(), state.earliest) << "a timer fired early";
  operation.must_run = false;
  if (once) {
    operation.may_run = false;  // until again()
  } else {
    state.earliest = loop_.now();
  }
  leave();
}

void RandomWorld::restart_timer(TimerState& state) {
  silence(state.current);
  Operation& operation = make("timer", true);
  state.current = &operation;
  constexpr std::array<std::int64_t, 8> delays = {-5,     0,         1,         1000,
                                                  70'000, 1'000'000, 9'000'000, INT64_MAX};
  state.delay = Duration(delays[random_.below(delays.size())]);
  state.period = chance(3) ? std::max(state.delay, Duration(50'000)) : Duration::zero();
  const bool never = state.delay == forever;
  state.earliest = never ? TimePoint::max() : loop_.now() + state.delay;
  operation.must_run = !never;
  auto call = [this, &state, ticket = Ticket(operation)] { timer_ran(state, *ticket); };
  if (state.period != Duration::zero()) {
    state.timer.after_then_every(state.delay, state.period, std::move(call),
                                 static_cast<MissedTicks>(random_.below(3)));
  } else if (!never && chance(3)) {
    state.timer.at(state.earliest, std::move(call));
  } else {
    state.timer.after(state.delay, std::move(call));
  }
}

void RandomWorld::step_timer() {
  TimerState* state = pick(timers_);
  const auto way = random_.below(10);
  if (state == nullptr || (way == 0 && timers_.size() < handles_max)) {
    auto& made = timers_[next_id_++];
    made = std::make_unique<TimerState>();
    made->timer = Timer(loop_);
    restart_timer(*made);
  } else if (way == 1) {
    silence(state->current);
    std::erase_if(timers_, [&](const auto& entry) { return entry.second.get() == state; });
  } else if (way < 4) {
    state->timer.stop();
    if (state->current != nullptr) state->current->may_run = state->current->must_run = false;
  } else if (way < 8 && state->current != nullptr) {
    state->timer.again();
    const Duration delay = state->period != Duration::zero() ? state->period
                           : state->delay < Duration::zero() ? Duration::zero()
                                                             : state->delay;
    const bool never = delay == forever;
    state->earliest = never ? TimePoint::max() : loop_.now() + delay;
    state->current->may_run = true;
    state->current->must_run = !never;
  } else {
    restart_timer(*state);
  }
}

// ---- Watchers --------------------------------------------------------------------------------

void RandomWorld::step_watcher() {
  if (options_.backend == BackendKind::sim) return;
  const auto number = random_.below(pipes_.size());
  PipeState& pipe = pipes_[number];
  const auto way = random_.below(10);
  if (pipe.ends[0].get() < 0) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    pipe.ends[0] = RawSocket(ends[0]);
    pipe.ends[1] = RawSocket(ends[1]);
  } else if (way == 0) {
    // Watchers first: remove before you close.
    for (auto& [id, state] : watchers_) {
      if (state->pipe != static_cast<int>(number)) continue;
      state->watcher.stop();
      silence(std::exchange(state->current, nullptr));
      state->pipe = -1;
    }
    pipe.ends[0].close();
    pipe.ends[1].close();
  } else if (way < 3) {
    (void)::send(pipe.ends[random_.below(2)].get(), "xyz", 3, 0);
  } else if (way < 5) {
    char byte[2];
    (void)::recv(pipe.ends[random_.below(2)].get(), byte, sizeof byte, 0);
  } else {
    WatcherState* state = pick(watchers_);
    if (state == nullptr || (way == 5 && watchers_.size() < handles_max)) {
      auto& made = watchers_[next_id_++];
      made = std::make_unique<WatcherState>();
      made->watcher = Watcher(loop_);
      state = made.get();
    } else if (way == 6) {
      silence(state->current);
      std::erase_if(watchers_, [&](const auto& entry) { return entry.second.get() == state; });
      return;
    } else if (way == 7) {
      state->watcher.stop();
      silence(std::exchange(state->current, nullptr));
      return;
    }
    state->interest = static_cast<Ready>(random_.below(2) * 1 + random_.below(2) * 4);
    if (way == 8 && state->current != nullptr && state->watcher.handle() != no_handle) {
      EXPECT_TRUE(state->watcher.set_interest(state->interest).has_value() || options_.faults);
      return;
    }
    silence(state->current);
    Operation& operation = make("watcher", true);
    state->current = &operation;
    state->once = chance(2);
    state->pipe = static_cast<int>(number);
    auto call = [this, state, ticket = Ticket(operation)](Ready ready) {
      enter(*ticket, state->once);
      if (state->current != &*ticket) return;
      const Ready expected =
          state->interest | Ready::hangup | Ready::error | Ready::read_closed | Ready::invalid;
      EXPECT_FALSE(any(ready & ~expected)) << "readiness that nobody asked for";
      EXPECT_TRUE(any(ready));
      if (any(ready, Ready::invalid)) {  // a fault: the kernel refused to watch it
        EXPECT_TRUE(options_.faults);
        silence(&*ticket);
        return;
      }
      leave();
    };
    const int end = pipe.ends[random_.below(2)].get();
    const auto started = state->once ? state->watcher.once(end, state->interest, std::move(call))
                                     : state->watcher.start(end, state->interest, std::move(call));
    EXPECT_TRUE(started.has_value() || options_.faults) << started.error().message();
    if (!started) silence(std::exchange(state->current, nullptr));
  }
}

// ---- Signals and wakers ----------------------------------------------------------------------

void RandomWorld::step_signal() {
  SignalState* state = pick(signals_);
  const auto way = random_.below(8);
  constexpr std::array<int, 2> numbers = {SIGUSR1, SIGUSR2};
  if (way < 2) {
    const int number = numbers[random_.below(2)];
    bool caught = false;
    for (auto& [id, each] : signals_) {
      if (each->watcher.signal() != number) continue;
      caught = true;
      each->current->must_run = true;
      ++each->raised;
    }
    if (caught) std::raise(number);
  } else if (state == nullptr || (way == 2 && signals_.size() < handles_max)) {
    auto& made = signals_[next_id_++];
    made = std::make_unique<SignalState>();
    made->watcher = SignalWatcher(loop_);
  } else if (way == 3) {
    silence(state->current);
    std::erase_if(signals_, [&](const auto& entry) { return entry.second.get() == state; });
  } else if (way == 4) {
    state->watcher.stop();
    silence(state->current);
  } else {
    silence(state->current);
    Operation& operation = make("signal", true);
    state->current = &operation;
    state->once = chance(2);
    state->raised = 0;
    auto call = [this, state, ticket = Ticket(operation)](int) {
      EXPECT_GT(state->raised--, 0) << "a signal that was not raised";
      ticket->must_run = false;
      enter(*ticket, state->once);
      leave();
    };
    const int number = numbers[random_.below(2)];
    const auto started = state->once ? state->watcher.once(number, std::move(call))
                                     : state->watcher.start(number, std::move(call));
    EXPECT_TRUE(started.has_value() || options_.faults);
    if (!started) silence(&operation);
  }
}

void RandomWorld::step_waker() {
  WakerState* state = pick(wakers_);
  const auto way = random_.below(8);
  if (state == nullptr || (way == 0 && wakers_.size() < handles_max)) {
    auto& made = wakers_[next_id_++];
    made = std::make_unique<WakerState>();
    Operation& operation = make("waker", true);
    made->current = &operation;
    made->waker = Waker(loop_, [this, state = made.get(), ticket = Ticket(operation)] {
      EXPECT_GT(std::exchange(state->wakes_due, 0), 0);
      ticket->must_run = false;
      enter(*ticket, false);
      leave();
    });
    made->sender = made->waker.sender();
  } else if (way == 1) {
    silence(state->current);
    std::erase_if(wakers_, [&](const auto& entry) { return entry.second.get() == state; });
  } else if (way == 2 && chance(4)) {
    state->waker.stop();
    silence(state->current);
    EXPECT_FALSE(state->sender.wake());
  } else if (state->sender.wake()) {
    ++state->wakes_due;
    state->current->must_run = true;
    EXPECT_TRUE(state->current->may_run);
  } else {
    EXPECT_FALSE(state->current->may_run);
  }
}

// ---- The loop --------------------------------------------------------------------------------

void RandomWorld::step_loop() {
  switch (random_.below(9)) {
    case 0:
      keep_alives_.push_back(loop_.keep_alive());
      break;
    case 1:
      if (!keep_alives_.empty()) keep_alives_.pop_back();
      break;
    case 2:
      loop_.update_now();
      break;
    case 3:
      loop_.wake();
      break;
    case 4:
      if (depth_ > 0 && chance(3)) chance(4) ? loop_.stop_all() : loop_.stop();
      break;
    case 5:
      check_counters();
      break;
    case 6:
      if (StreamState* state = pick(streams_)) {
        chance(2) ? state->stream.unreference() : state->stream.reference();
        state->stream.set_name(chance(2) ? "a name" : "");
      }
      break;
    case 7:
      if (TimerState* state = pick(timers_)) {
        chance(2) ? state->timer.unreference() : state->timer.reference();
      }
      break;
    default: {
      Operation& operation = make("post", false);
      const std::uint64_t number = posts_made_++;
      auto call = [this, number, ticket = Ticket(operation)] {
        EXPECT_EQ(number, posts_run_++) << "posts out of order";
        enter(*ticket, true);
        leave();
      };
      if (chance(2)) {
        loop_.post(std::move(call));
      } else {
        EXPECT_TRUE(loop_.poster().post(std::move(call)).has_value());
      }
    }
  }
}

void RandomWorld::check_counters() {
  std::uint64_t active = keep_alives_.size();
  std::uint64_t handles = 0;
  for (const HandleInfo& info : loop_.handles()) {
    ++handles;
    if (info.active && info.referenced) ++active;
  }
  EXPECT_EQ(handles, timers_.size() + streams_.size() + listeners_.size() + watchers_.size() +
                         signals_.size() + wakers_.size());
  EXPECT_EQ(loop_.counters().handles_active, active);
  std::uint64_t queued = 0;
  for (const auto& [id, state] : streams_) queued += state->stream.send_queue_bytes();
  // What the first send of a queue has got rid of is counted until that send is done.
  EXPECT_GE(loop_.counters().send_queue_bytes, queued);
}

void RandomWorld::run_loop() {
  try {
    int code = 0;
    switch (random_.below(4)) {
      case 0:
        code = loop_.run_ready();
        break;
      case 1:
        code = loop_.run_once(Duration(static_cast<std::int64_t>(random_.below(100'000))));
        break;
      case 2:
        code = loop_.run_for(Duration(static_cast<std::int64_t>(random_.below(300'000))));
        break;
      default:
        code = loop_.run_once(Duration(0));
    }
    if (!options_.faults) {
      EXPECT_EQ(code, 0) << loop_.error().message();
    }
  } catch (const Thrown&) {
    if (depth_ > 0 && chance(2)) throw;
  }
}

void RandomWorld::step_fault() {
  if (!options_.faults) return;
  inject_random_fault(*faulty_.calls, [this](std::uint64_t bound) { return random_.below(bound); });
}

void RandomWorld::step() {
  if (steps_left_ > 0) --steps_left_;
  if (starts_on_stack > 0) return;  // a destructor's
  switch (random_.below(depth_ == 0 ? 24 : 17)) {
    case 0:
    case 1:
      return starting([&] { step_timer(); });
    case 2:
    case 3:
      return starting([&] { step_loop(); });
    case 4:
      return starting([&] { step_watcher(); });
    case 5:
      return starting([&] { step_watcher(); });
    case 6:
      return starting([&] { step_signal(); });
    case 7:
      return starting([&] { step_waker(); });
    case 8:
      return starting([&] { step_listener(); });
    case 9:
      return starting([&] { step_new_stream(); });
    case 10:
      return step_fault();
    case 16:
      if (depth_ == 0 || (depth_ < depth_max && chance(3))) run_loop();
      return;
    default:
      if (depth_ == 0 && chance(3)) return run_loop();
      return starting([&] { step_stream(); });
  }
}

// ---- The end ---------------------------------------------------------------------------------

// Whatever is due without anything new from outside has happened afterwards.
void RandomWorld::settle() {
  ending_ = true;
  faulty_.calls->restore_all();
  loop_.clear_stop();
  const KeepAlive waiting = loop_.keep_alive();
  loop_.update_now();
  const TimePoint end = loop_.now() + 300ms;
  while (loop_.now() < end) {
    ASSERT_EQ(loop_.run_once(10ms), 0) << loop_.error().message();
    loop_.update_now();
  }
  EXPECT_EQ(posts_run_, posts_made_);
  for (const auto& [id, state] : streams_) {
    if (!state->marks || state->stream.closed()) continue;
    const std::size_t queued = state->stream.send_queue_bytes();
    EXPECT_TRUE(state->full ? queued > state->bounds.low_bytes : queued < state->bounds.high_bytes)
        << "the last mark told was " << (state->full ? "full" : "drained") << ", " << queued
        << " bytes are queued";
  }
}

void RandomWorld::end_all() {
  for (auto& [id, state] : timers_) silence(state->current);
  for (auto& [id, state] : watchers_) silence(state->current);
  timers_.clear();
  watchers_.clear();
  for (auto& [id, state] : signals_) state->watcher.stop();
  for (auto& [id, state] : signals_) silence(state->current);
  for (auto& [id, state] : wakers_) silence(state->current);
  wakers_.clear();
  for (auto& [id, state] : listeners_) {
    if (state->accepting != nullptr && state->accepting->series) silence(state->accepting);
    state->listener.close();
  }
  for (auto& [id, state] : streams_) state->stream.close();
  keep_alives_.clear();
  ASSERT_EQ(loop_.run_for(10s), 0);
  EXPECT_EQ(loop_.counters().handles_active, 0U);
  EXPECT_FALSE(loop_.alive());
  EXPECT_EQ(loop_.counters().send_queue_bytes, 0U);
  for (const auto& operation : operations_) {
    EXPECT_FALSE(operation->must_run) << operation->what << " was not told of its end";
  }
  check_counters();
}

// Everything is let go while the handles live, which do nothing any more.
void RandomWorld::end_loop() {
  for (const auto& operation : operations_) silence(operation.get());
  faulty_.loop.reset();
  for (auto& [id, state] : streams_) {
    EXPECT_TRUE(state->stream.closed());
    state->stream.send(bytes_of("late"), [](const Result<void>&) { ADD_FAILURE(); });
    EXPECT_FALSE(state->stream.send_copy("late").has_value());
    state->stream.close([] { ADD_FAILURE(); });
  }
  for (auto& [id, state] : timers_) {
    state->timer.after(0s, [] { ADD_FAILURE(); });
    state->timer.again();
    state->timer.stop();
  }
  for (auto& [id, state] : wakers_) EXPECT_FALSE(state->sender.wake());
  for (const auto& operation : operations_) {
    EXPECT_EQ(operation->copies, 0) << operation->what << " kept its callback after the loop";
  }
}

void RandomWorld::run(std::uint64_t steps) {
  steps_left_ = steps;
  while (steps_left_ > 0 && !testing::Test::HasFailure()) step();
  if (testing::Test::HasFailure()) {
    ending_ = true;
    return;
  }
  if (chance(3)) {
    ending_ = true;
  } else {
    settle();
    if (testing::Test::HasFailure()) return;
    end_all();
    if (testing::Test::HasFailure()) return;
    const bool handles_first = chance(2);
    if (handles_first) {
      streams_.clear();
      listeners_.clear();
      signals_.clear();
      EXPECT_EQ(loop_.counters().handles, 0U);
    }
  }
  end_loop();
  streams_.clear();
  listeners_.clear();
  timers_.clear();
  watchers_.clear();
  signals_.clear();
  wakers_.clear();
  keep_alives_.clear();
  check_ledger();
}

}  // namespace evix::test
