#pragma once

#include <evix/evix.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/random_choices.hpp"
#include "backend/tcp_support.hpp"

/** @file
 * A loop with many handles on which random calls are made, from outside and in callbacks, next to
 * a model that knows which callbacks are due and which are not.
 */
namespace evix::test {

/** One call that takes a callback, and what the contract says about it. */
struct Operation {
  const char* what = "";
  bool series = false;    ///< receive_start, accept_start, watchers, timers: any number of calls
  bool may_run = true;    ///< a call is allowed
  bool must_run = false;  ///< exactly one more call (of a series: its end) is owed
  int copies = 0;         ///< callbacks that hold it
  int calls = 0;
  std::vector<std::byte> bytes;  ///< that belong to the loop until the callback
};

/** What a callback captures: it notices that it is destroyed, once. */
class Ticket {
 public:
  explicit Ticket(Operation& operation) noexcept : operation_(&operation) { ++operation.copies; }
  Ticket(Ticket&& other) noexcept : operation_(std::exchange(other.operation_, nullptr)) {}
  Ticket& operator=(Ticket&&) = delete;
  ~Ticket() {
    if (operation_ != nullptr) --operation_->copies;
  }
  Operation& operator*() const noexcept { return *operation_; }
  Operation* operator->() const noexcept { return operation_; }

 private:
  Operation* operation_;
};

/** What one end of a connection has sent. A record: stream, number, size, and bytes of those. */
struct SentRecords {
  std::set<std::uint32_t> told;  ///< numbers of the records whose send was told to be done
  bool ended = false;            ///< shutdown_send() was told to be done
};

class RandomWorld {
 public:
  struct Options {
    BackendKind backend = BackendKind::sim;
    std::uint64_t seed = 1;
    bool faults = false;  ///< system calls fail at random
    /** Decides instead of the seed, as long as it lasts. */
    std::span<const std::uint8_t> choices{};
  };
  explicit RandomWorld(const Options& options);
  RandomWorld(const RandomWorld&) = delete;
  RandomWorld& operator=(const RandomWorld&) = delete;
  ~RandomWorld();

  /** Makes `steps` random calls, those in callbacks included; then ends everything. */
  void run(std::uint64_t steps);

 private:
  struct TimerState {
    Timer timer;
    Operation* current = nullptr;
    TimePoint earliest;
    Duration delay{};
    Duration period{};
  };
  struct StreamState {
    TcpStream stream;
    std::uint32_t id = 0;
    Operation* receiving = nullptr;  ///< accepted and not ended
    bool graceful = false;
    bool timeouts = false;
    std::set<Operation*> pending;  ///< dropped with the handle
    std::string left;              ///< of a record that try_send() took in part
    std::uint32_t records = 0;
    std::shared_ptr<SentRecords> sent = std::make_shared<SentRecords>();
    std::string input;  ///< not yet a whole record
    std::uint32_t peer_id = 0;
    std::uint32_t peer_record = 0;
    std::set<std::uint32_t> seen;
    bool discards = false;    ///< input was dropped: no more checks
    bool reset_told = false;  ///< to a receive: those that follow are told of the end
    bool marks = false;
    bool full = false;  ///< the last mark that was told
    WaterMarks bounds;
  };
  struct ListenerState {
    TcpListener listener;
    Operation* accepting = nullptr;
    std::set<Operation*> pending;
  };
  struct PipeState {
    RawSocket ends[2];
  };
  struct WatcherState {
    Watcher watcher;
    Operation* current = nullptr;
    int pipe = -1;
    Ready interest = Ready::none;
    bool once = false;
  };
  struct SignalState {
    SignalWatcher watcher;
    Operation* current = nullptr;
    bool once = false;
    int raised = 0;  ///< since the start, and not yet told
  };
  struct WakerState {
    Waker waker;
    WakeSender sender;
    Operation* current = nullptr;
    int wakes_due = 0;
  };
  struct Thrown {};

  bool chance(std::uint64_t one_in) { return random_.below(one_in) == 0; }
  template <class State>
  State* pick(std::map<std::uint32_t, std::unique_ptr<State>>& states) {
    if (states.empty()) return nullptr;
    auto place = states.begin();
    std::advance(place, static_cast<std::ptrdiff_t>(random_.below(states.size())));
    return place->second.get();
  }
  Operation& make(const char* what, bool series);
  /** At the beginning of each callback. */
  void enter(Operation& operation, bool last);
  /** At the end of each callback: random calls, perhaps an exception. */
  void leave();
  void drop(std::set<Operation*>& pending);
  static void silence(Operation* operation);

  void step();
  void step_timer();
  void step_stream();
  void step_new_stream();
  void step_listener();
  void step_watcher();
  void step_signal();
  void step_waker();
  void step_loop();
  void step_fault();
  void run_loop();
  void restart_timer(TimerState& state);
  void timer_ran(TimerState& state, Operation& operation);

  void connect(StreamState& state);
  void receive(StreamState& state);
  void receive_into(StreamState& state);
  void received(StreamState& state, Operation& operation, std::string_view bytes, bool last);
  void send(StreamState& state);
  void send_records(StreamState& state, int way);
  void close(StreamState& state);
  void set_options(StreamState& state);
  void destroy_stream(std::uint32_t id);
  void stop_receiving(StreamState& state);
  void adopt_accepted(TcpStream&& stream);
  std::string make_record(StreamState& state, std::uint32_t& number);
  void check_input(StreamState& state);
  void check_end(StreamState& state);
  template <class T>
  static void note_received(StreamState& state, const Result<T>& result) {
    if (!result && result.error() == std::errc::connection_reset) state.reset_told = true;
  }
  TcpStream::DoneCallback done(StreamState& state, Operation& operation);

  void accept(ListenerState& state);
  void accepted(ListenerState& state, Operation& operation, Result<TcpStream>&& stream);
  void check_counters();
  void settle();
  void end_all();
  void end_loop();
  void check_ledger();

  const Options options_;
  RandomChoices random_;
  std::vector<std::unique_ptr<Operation>> operations_;  // callbacks point there
  FaultyLoop faulty_;
  Loop& loop_ = *faulty_.loop;
  std::uint64_t steps_left_ = 0;
  int depth_ = 0;  ///< of callbacks
  bool ending_ = false;
  std::uint32_t next_id_ = 1;
  std::map<std::uint32_t, std::shared_ptr<SentRecords>> sent_;
  std::map<std::uint32_t, std::unique_ptr<TimerState>> timers_;
  std::map<std::uint32_t, std::unique_ptr<StreamState>> streams_;
  std::map<std::uint32_t, std::unique_ptr<ListenerState>> listeners_;
  std::map<std::uint32_t, std::unique_ptr<WatcherState>> watchers_;
  std::map<std::uint32_t, std::unique_ptr<SignalState>> signals_;
  std::map<std::uint32_t, std::unique_ptr<WakerState>> wakers_;
  std::vector<KeepAlive> keep_alives_;
  std::array<PipeState, 3> pipes_;
  std::uint64_t posts_made_ = 0;
  std::uint64_t posts_run_ = 0;
};

}  // namespace evix::test
