#include <algorithm>

#include "backend/random_world.hpp"

// The half of the random world that has connections.
namespace evix::test {
namespace {

constexpr std::size_t streams_max = 12;
constexpr std::size_t header_size = 12;

const std::string& pattern_block() {
  static const std::string block = pattern(1 << 20, 7) + pattern(1 << 20, 7);
  return block;
}

std::string_view contents(std::uint32_t id, std::uint32_t number, std::size_t size) {
  const std::size_t place = (id * 7919U + number * 104729U) % (1 << 20);
  return std::string_view(pattern_block()).substr(place, size);
}

std::uint32_t word_at(std::string_view bytes, std::size_t place) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data() + place, sizeof word);
  return word;
}

}  // namespace

// ---- Streams come and go ---------------------------------------------------------------------

void RandomWorld::adopt_accepted(TcpStream&& stream) {
  const std::uint32_t id = next_id_++;
  auto& made = streams_[id];
  made = std::make_unique<StreamState>();
  made->id = id;
  made->stream = std::move(stream);
  sent_[id] = made->sent;
  if (options_.backend != BackendKind::sim && made->stream && made->stream.native() >= 0) {
    const int bytes = 20'000;
    setsockopt(made->stream.native(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  }
}

void RandomWorld::step_new_stream() {
  if (streams_.size() >= streams_max) return;
  adopt_accepted(TcpStream(loop_));
  connect(*streams_.rbegin()->second);
}

void RandomWorld::destroy_stream(std::uint32_t id) {
  const auto found = streams_.find(id);
  std::unique_ptr<StreamState> state = std::move(found->second);
  streams_.erase(found);
  state->receiving = nullptr;
  // The callbacks are destroyed with the handle, the bytes only then.
  state->stream = TcpStream();
  drop(state->pending);
}

void RandomWorld::connect(StreamState& state) {
  ListenerState* listener = pick(listeners_);
  Operation& operation = make("connect", false);
  state.pending.insert(&operation);
  ConnectOptions options;
  if (chance(6)) options.timeout = Duration(static_cast<std::int64_t>(random_.below(50'000)));
  Address target = Address::ipv4({127, 0, 0, 1}, 1);
  if (listener != nullptr && !chance(8)) {
    if (const auto address = listener->listener.local_address()) target = *address;
  }
  if (chance(30)) target = Address();
  state.stream.connect(target, options, done(state, operation));
}

TcpStream::DoneCallback RandomWorld::done(StreamState& state, Operation& operation) {
  return [this, &state, ticket = Ticket(operation)](const Result<void>&) {
    enter(*ticket, true);
    if (testing::Test::HasFailure()) return;
    state.pending.erase(&*ticket);
    leave();
  };
}

// ---- Receiving -------------------------------------------------------------------------------

void RandomWorld::received(StreamState& state, Operation& operation, std::string_view bytes,
                           bool last) {
  if (!state.discards) {
    state.input += bytes;
    check_input(state);
  }
  if (!last) return;
  state.pending.erase(&operation);
  if (state.receiving == &operation) state.receiving = nullptr;
}

void RandomWorld::receive(StreamState& state) {
  const bool series = chance(2);
  if (series) stop_receiving(state);  // it is only restarted
  Operation& operation = make(series ? "receive_start" : "receive", series);
  operation.must_run = true;
  state.pending.insert(&operation);
  const bool free = state.receiving == nullptr && state.stream.connected();
  auto call = [this, &state, ticket = Ticket(operation)](Result<Buffer> result) {
    const bool ended = !result || result->empty();
    enter(*ticket, ended || !ticket->series);
    if (testing::Test::HasFailure()) return;
    note_received(state, result);
    if (result && ended) check_end(state);
    received(state, *ticket, result ? result->text() : std::string_view(),
             ended || !ticket->series);
    leave();
  };
  if (series) {
    state.stream.receive_start(std::move(call));
  } else {
    state.stream.receive(std::move(call));
  }
  if (free) state.receiving = &operation;
}

void RandomWorld::receive_into(StreamState& state) {
  Operation& operation = make("receive_into", false);
  operation.bytes.resize(1 + random_.below(chance(4) ? 100'000 : 500));
  state.pending.insert(&operation);
  const bool free = state.receiving == nullptr && state.stream.connected();
  state.stream.receive_into(
      operation.bytes, [this, &state, ticket = Ticket(operation)](Result<std::size_t> result) {
        const std::string bytes(reinterpret_cast<const char*>(ticket->bytes.data()),
                                result ? *result : 0);
        enter(*ticket, true);
        if (testing::Test::HasFailure()) return;
        note_received(state, result);
        if (result && *result == 0) check_end(state);
        received(state, *ticket, bytes, true);
        leave();
      });
  if (free) state.receiving = &operation;
}

// Ends receive() and receive_start(), which are told no more. Whether a start was refused, and so
// is told all the same, is known only without faults and graceful closes.
void RandomWorld::stop_receiving(StreamState& state) {
  Operation* operation = state.receiving;
  if (operation == nullptr || std::string_view(operation->what) == "receive_into") return;
  if (state.stream.closed()) return;  // the close has ended it, and tells
  state.receiving = nullptr;
  operation->must_run = false;
  if (options_.faults || state.graceful) {
    operation->series = false;
    return;
  }
  state.pending.erase(operation);
  silence(operation);
}

void RandomWorld::check_input(StreamState& state) {
  while (state.input.size() >= header_size) {
    const std::uint32_t id = word_at(state.input, 0);
    const std::uint32_t number = word_at(state.input, 4);
    const std::uint32_t size = word_at(state.input, 8);
    if (state.peer_id == 0) state.peer_id = id;
    ASSERT_EQ(id, state.peer_id) << "bytes of another stream, or out of order, after record "
                                 << state.peer_record;
    ASSERT_GT(number, state.peer_record) << "records out of order";
    if (state.input.size() < header_size + size) return;
    ASSERT_TRUE(same_bytes(std::string_view(state.input).substr(header_size, size),
                           contents(id, number, size)));
    state.seen.insert(number);
    state.peer_record = number;
    state.input.erase(0, header_size + size);
  }
}

// The end of the stream: everything that the peer was told to have sent is here.
void RandomWorld::check_end(StreamState& state) {
  if (state.discards || state.reset_told || state.peer_id == 0) return;
  const SentRecords& sent = *sent_.at(state.peer_id);
  for (const std::uint32_t number : sent.told) {
    ASSERT_TRUE(state.seen.contains(number))
        << "record " << number << " of " << state.peer_id << " was told to be sent, and is lost";
  }
  if (sent.ended) {
    EXPECT_EQ(state.input, "") << "the peer's shutdown came before its last bytes";
  }
}

// ---- Sending ---------------------------------------------------------------------------------

std::string RandomWorld::make_record(StreamState& state, std::uint32_t& number) {
  number = ++state.records;
  constexpr std::array<std::uint32_t, 6> sizes = {0, 5, 100, 4000, 70'000, 900'000};
  const auto size = static_cast<std::uint32_t>(sizes[random_.below(chance(3) ? 6 : 4)]);
  const std::array<std::uint32_t, 3> header = {state.id, number, size};
  std::string record(reinterpret_cast<const char*>(header.data()), header_size);
  record += contents(state.id, number, size);
  return record;
}

void RandomWorld::send_records(StreamState& state, int way) {
  std::uint32_t number = 0;
  const std::string record = make_record(state, number);
  const auto bytes = bytes_of(record);
  if (way == 0) {
    (void)state.stream.send_copy(bytes);
  } else if (way == 1) {
    const auto count = state.stream.try_send(bytes);
    if (count && *count > 0) state.left = record.substr(*count);
  } else {
    Operation& operation = make("send", false);
    operation.bytes.assign(bytes.begin(), bytes.end());
    state.pending.insert(&operation);
    auto call = [this, &state, number, ticket = Ticket(operation)](const Result<void>& result) {
      if (result) state.sent->told.insert(number);
      enter(*ticket, true);
      if (testing::Test::HasFailure()) return;
      state.pending.erase(&*ticket);
      leave();
    };
    state.stream.send(operation.bytes, std::move(call));
  }
}

void RandomWorld::send(StreamState& state) {
  if (!state.left.empty()) {  // nothing else may come in between
    const auto count = state.stream.try_send(bytes_of(state.left));
    if (count) state.left.erase(0, *count);
    return;
  }
  send_records(state, static_cast<int>(random_.below(4)));
}

void RandomWorld::set_options(StreamState& state) {
  switch (random_.below(5)) {
    case 0:
      state.timeouts = true;
      state.stream.set_receive_timeout(
          chance(2) ? forever : Duration(static_cast<std::int64_t>(random_.below(3'000'000))));
      break;
    case 1:
      state.stream.set_send_timeout(
          chance(2) ? forever : Duration(static_cast<std::int64_t>(random_.below(3'000'000))));
      break;
    case 2:
      (void)state.stream.set_no_delay(chance(2));
      break;
    default: {
      Operation& operation = make("water mark", true);
      state.pending.insert(&operation);
      state.marks = !chance(4);
      state.full = false;
      state.bounds = {.low_bytes = random_.below(50'000),
                      .high_bytes = 50'000 + random_.below(100'000),
                      .hard_bytes_max = chance(3) ? 200'000U : 16U << 20};
      TcpStream::WaterMarkCallback call = [this, &state,
                                           ticket = Ticket(operation)](WaterMark mark) {
        enter(*ticket, false);
        if (testing::Test::HasFailure()) return;
        EXPECT_NE(state.full, mark == WaterMark::full) << "the same mark twice";
        state.full = mark == WaterMark::full;
        leave();
      };
      if (!state.marks) call = {};
      state.stream.set_water_marks(state.bounds, std::move(call));
    }
  }
}

// ---- Closing ---------------------------------------------------------------------------------

void RandomWorld::close(StreamState& state) {
  const auto way = random_.below(6);
  if (way == 0) return state.stream.close();
  if (way == 1) return state.stream.abort();
  if (way == 2) {
    Operation& operation = make("shutdown", false);
    state.pending.insert(&operation);
    state.stream.shutdown_send(
        [this, &state, ticket = Ticket(operation)](const Result<void>& result) {
          if (result && state.left.empty()) state.sent->ended = true;
          enter(*ticket, true);
          if (testing::Test::HasFailure()) return;
          state.pending.erase(&*ticket);
          leave();
        });
    return;
  }
  Operation& operation = make(way == 3 ? "close" : "close_gracefully", false);
  state.pending.insert(&operation);
  auto call = [this, &state, ticket = Ticket(operation)] {
    enter(*ticket, true);
    if (testing::Test::HasFailure()) return;
    EXPECT_TRUE(state.stream.closed());
    state.pending.erase(&*ticket);
    leave();
  };
  if (way == 3) return state.stream.close(std::move(call));
  const bool into =
      state.receiving != nullptr && std::string_view(state.receiving->what) == "receive_into";
  const bool connected = state.stream.connected();
  GracefulClose limits{.drain_bytes_max = random_.below(100'000),
                       .timeout = Duration(static_cast<std::int64_t>(random_.below(9'000'000)))};
  state.stream.close_gracefully(limits, std::move(call));
  if (connected && !into) {
    if (!state.stream.closed()) {
      stop_receiving(state);
    } else if (state.receiving != nullptr) {
      // Closed at once: told of it when the sending had failed before, stopped when it failed now.
      std::exchange(state.receiving, nullptr)->must_run = false;
    }
    state.graceful = true;
    state.discards = true;
  }
}

void RandomWorld::step_stream() {
  StreamState* state = pick(streams_);
  if (state == nullptr) return step_new_stream();
  switch (random_.below(20)) {
    case 0:
      if (chance(2)) destroy_stream(state->id);
      break;
    case 1:
      if (chance(2)) close(*state);
      break;
    case 2:
      if (!state->stream.connected() && !state->stream.closed()) connect(*state);
      break;
    case 3:
    case 4:
    case 5:
      receive(*state);
      break;
    case 6:
    case 7:
      receive_into(*state);
      break;
    case 8:
      stop_receiving(*state);
      state->stream.receive_stop();
      break;
    case 9:
      set_options(*state);
      break;
    case 10: {
      TcpStream elsewhere = std::move(state->stream);
      state->stream = std::move(elsewhere);
      break;
    }
    default:
      send(*state);
  }
}

// ---- Listeners -------------------------------------------------------------------------------

void RandomWorld::accepted(ListenerState& state, Operation& operation, Result<TcpStream>&& stream) {
  // Starvation does not end accept_start(); other errors do.
  const bool goes_on = stream || stream.error() == std::errc::too_many_files_open ||
                       stream.error() == std::errc::not_enough_memory;
  const bool last = !operation.series || !goes_on;
  enter(operation, last);
  if (testing::Test::HasFailure()) return;
  if (last) {
    state.pending.erase(&operation);
    if (state.accepting == &operation) state.accepting = nullptr;
  }
  if (stream && streams_.size() < streams_max) {
    EXPECT_TRUE(stream->connected());
    adopt_accepted(std::move(*stream));
  } else if (stream) {
    *stream = TcpStream();
  }
  leave();
}

void RandomWorld::accept(ListenerState& state) {
  const bool series = chance(2);
  // A series is only replaced; a single one is told.
  if (state.accepting != nullptr && state.accepting->series && !options_.faults) {
    silence(state.accepting);
    state.pending.erase(state.accepting);
  }
  Operation& operation = make(series ? "accept_start" : "accept", series);
  state.pending.insert(&operation);
  const bool refused = state.listener.closed();
  operation.must_run = !series || refused;
  state.accepting = refused ? nullptr : &operation;
  auto call = [this, &state, ticket = Ticket(operation)](Result<TcpStream> stream) {
    accepted(state, *ticket, std::move(stream));
  };
  if (series) {
    state.listener.accept_start(std::move(call));
  } else {
    state.listener.accept(std::move(call));
  }
}

void RandomWorld::step_listener() {
  ListenerState* state = pick(listeners_);
  const auto way = random_.below(10);
  if (state == nullptr || (way == 0 && listeners_.size() < 3)) {
    auto made = std::make_unique<ListenerState>();
    made->listener = TcpListener(loop_);
    const auto listening = made->listener.listen(chance(2) ? "127.0.0.1:0" : "[::1]:0");
    if (!listening) {
      EXPECT_TRUE(options_.faults) << listening.error().message();
      return;
    }
    if (options_.backend != BackendKind::sim) {
      const int bytes = 20'000;
      setsockopt(made->listener.native(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
    accept(*made);
    listeners_[next_id_++] = std::move(made);
  } else if (way == 1 && chance(3)) {
    std::unique_ptr<ListenerState> gone;
    for (auto& [id, each] : listeners_) {
      if (each.get() == state) gone = std::move(each);
    }
    std::erase_if(listeners_, [](const auto& entry) { return entry.second == nullptr; });
    gone->listener = TcpListener();
    drop(gone->pending);
  } else if (way == 2) {
    if (state->accepting != nullptr) {
      if (options_.faults || state->listener.closed()) {
        // A refused start is told all the same.
        state->accepting->must_run = false;
      } else {
        silence(state->accepting);
      }
    }
    state->accepting = nullptr;
    state->listener.accept_stop();
  } else if (way == 3 && chance(4)) {
    if (state->accepting != nullptr && state->accepting->series) {
      if (!options_.faults) silence(state->accepting);
    }
    state->listener.close();
  } else {
    accept(*state);
  }
}

}  // namespace evix::test
