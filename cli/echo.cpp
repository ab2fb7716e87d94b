#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <deque>
#include <evix/evix.hpp>
#include <optional>
#include <system_error>
#include <vector>

#include "advice.hpp"
#include "commands.hpp"
#include "system.hpp"

namespace evix::cli {

namespace {

class EchoServer {
 public:
  EchoServer(Loop& loop, const EchoOptions& options)
      : loop_(loop),
        options_(options),
        listener_(loop),
        interrupt_signal_(loop),
        terminate_signal_(loop) {}

  // Serves until a signal or --echoes ends it; the exit code.
  int run();

 private:
  // All that a connection needs here. The pool never shrinks, so callbacks may keep its address.
  struct Session {
    TcpStream stream;
  };

  void accepted(Result<TcpStream> stream);
  void accept_failed(const Error& error);
  void start_receiving(Session* session);
  void received(Session* session, Result<Buffer>& buffer);
  // Out of the way of received(), which most calls never leave.
  [[gnu::noinline]] void send_rest(Session* session, std::span<const std::byte> bytes);
  [[gnu::noinline]] void ended(Session* session);
  [[gnu::noinline]] void failed(Session* session);
  void release(Session* session);
  [[gnu::noinline]] void echo_limit_reached(Session* session);
  void print_totals() const;

  static constexpr WaterMarks water_marks{};

  Loop& loop_;
  const EchoOptions& options_;
  TcpListener listener_;
  SignalWatcher interrupt_signal_;
  SignalWatcher terminate_signal_;
  std::deque<Session> sessions_;
  std::vector<Session*> free_sessions_;
  std::uint64_t connections_ = 0;
  std::uint64_t echoes_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t errors_ = 0;
  std::optional<std::error_code> accept_failure_;  // of the episode that is not over yet
  int exit_code_ = exit_ok;
};

int EchoServer::run() {
  const auto stop = [this](int) { loop_.stop(); };
  for (const Result<void>& started :
       {interrupt_signal_.start(SIGINT, stop), terminate_signal_.start(SIGTERM, stop),
        // An echo is never worth waiting for more.
        listener_.listen(options_.address, {.no_delay = true})}) {
    if (!started) return complain_with_advice(started.error());
  }
  const Result<Address> address = listener_.local_address();
  if (!address) return complain_with_advice(address.error());
  listener_.accept_start([this](Result<TcpStream> stream) { accepted(std::move(stream)); });
  fmt::print("listening on {}\n", address->to_string());
  if (std::fflush(stdout) != 0) return exit_failed;  // main() says why

  if (loop_.run() != 0) return complain_with_advice(loop_.error());
  if (!options_.quiet) print_totals();
  return exit_code_;
}

void EchoServer::accepted(Result<TcpStream> stream) {
  if (!stream) return accept_failed(stream.error());
  accept_failure_.reset();
  ++connections_;
  if (free_sessions_.empty()) {
    free_sessions_.push_back(&sessions_.emplace_back());
  }
  Session* const session = free_sessions_.back();
  free_sessions_.pop_back();
  session->stream = std::move(*stream);
  start_receiving(session);
}

void EchoServer::accept_failed(const Error& error) {
  if (accept_failure_ != error.code()) {
    accept_failure_ = error.code();
    ++errors_;
    complain_with_advice(error);
  }
  if (listener_.active()) return;
  exit_code_ = exit_failed;
  loop_.stop();
}

void EchoServer::start_receiving(Session* session) {
  session->stream.receive_start(
      [this, session](Result<Buffer>&& buffer) { received(session, buffer); });
}

void EchoServer::received(Session* session, Result<Buffer>& buffer) {
  if (!buffer) return failed(session);
  if (buffer->empty()) return ended(session);
  ++echoes_;
  bytes_ += buffer->size();
  const Result<std::size_t> sent = session->stream.try_send(*buffer);
  if (!sent) return failed(session);
  if (*sent != buffer->size()) [[unlikely]] {
    send_rest(session, buffer->bytes().subspan(*sent));
  }
  if (echoes_ == options_.echoes_max) [[unlikely]] {
    echo_limit_reached(session);
  }
}

// The peer takes less than it sends: queue, and read nothing more while much is queued. The marks
// are set only now because most connections never need them.
void EchoServer::send_rest(Session* session, std::span<const std::byte> bytes) {
  TcpStream& stream = session->stream;
  if (stream.send_queue_bytes() == 0) {
    stream.set_water_marks(water_marks, [this, session](WaterMark mark) {
      if (mark == WaterMark::drained) start_receiving(session);
    });
  }
  if (!stream.send_copy(bytes)) return failed(session);
  if (stream.send_queue_bytes() >= water_marks.high_bytes) stream.receive_stop();
}

// A peer that only shut its sending side still gets the echoes that are queued.
void EchoServer::ended(Session* session) {
  if (session->stream.send_queue_bytes() == 0) return release(session);
  session->stream.close_gracefully({}, [this, session] { release(session); });
}

void EchoServer::failed(Session* session) {
  ++errors_;
  release(session);
}

void EchoServer::release(Session* session) {
  session->stream = TcpStream();
  free_sessions_.push_back(session);
}

void EchoServer::echo_limit_reached(Session* session) {
  listener_.close();
  if (!session->stream || session->stream.send_queue_bytes() == 0) return loop_.stop();
  session->stream.receive_stop();
  session->stream.close_gracefully({}, [this] { loop_.stop(); });
}

void EchoServer::print_totals() const {
  fmt::print(stderr, "evix echo: {} connections, {} echoes, {} bytes, {} errors, {} waits\n",
             connections_, echoes_, bytes_, errors_, loop_.counters().waits);
}

}  // namespace

int run_echo(const EchoOptions& options) {
  raise_descriptor_limit();
  std::expected<Loop, int> loop = make_network_loop({.backend = options.backend});
  if (!loop) return loop.error();
  return EchoServer(*loop, options).run();
}

}  // namespace evix::cli
