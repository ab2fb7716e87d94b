#include "soak/peers.hpp"

#include <span>
#include <utility>

namespace evix::soak {
namespace {

using namespace std::chrono_literals;

constexpr Duration patience = 300ms;  // of a server with a peer that neither sends nor reads
constexpr Duration hang_limit = 10s;

}  // namespace

// ---- The server's side -----------------------------------------------------------------------

Served::Served(TcpStream stream, Figures& figures, Callback<void()> gone)
    : stream_(std::move(stream)), figures_(figures), gone_(std::move(gone)) {
  stream_.set_receive_timeout(patience);
  stream_.set_send_timeout(patience);
  stream_.set_water_marks({}, [this](WaterMark mark) {
    if (ended_) return;
    if (mark == WaterMark::full) {
      paused_ = true;
      stream_.receive_stop();
    } else if (std::exchange(paused_, false)) {
      receive();
    }
  });
  receive();
}

void Served::receive() {
  stream_.receive_start([this](Result<Buffer> bytes) {
    if (ended_) {
      if (bytes || bytes.error() != std::errc::operation_canceled) ++figures_.misorders;
    } else if (!bytes) {
      ++figures_.errors;
      close();
    } else if (bytes->empty()) {
      ended_ = true;
      stream_.close_gracefully({.timeout = patience}, std::move(gone_));
    } else {
      echo(std::move(bytes).value());
    }
  });
}

void Served::echo(Buffer bytes) {
  stream_.send(std::move(bytes), [this](const Result<void>& sent) {
    if (sent || ended_) return;
    ++figures_.errors;
    close();
  });
}

void Served::close() {
  ended_ = true;
  stream_.close(std::move(gone_));
}

// ---- The client ------------------------------------------------------------------------------

Client::Client(Loop& loop, const Address& server, std::uint64_t seed, Figures& figures,
               Callback<void()> gone)
    : stream_(loop),
      hang_(loop),
      figures_(figures),
      gone_(std::move(gone)),
      random_(seed),
      messages_left_(1 + random_.below(8)),
      end_(static_cast<End>(random_.below(6))) {
  hang_.after(hang_limit, [this] {
    ++figures_.stuck;
    fail();
  });
  stream_.connect(server, [this](const Result<void>& connected) {
    if (!connected) return fail();
    ++figures_.connections;
    begin();
  });
}

void Client::begin() {
  stream_.receive_start([this](const Result<Buffer>& bytes) { check(bytes); });
  send();
}

void Client::send() {
  back_ = 0;
  // Many small ones, some that do not fit into the kernel's buffers.
  message_.resize(1 + random_.below(std::uint64_t{1} << random_.below(18)));
  for (char& each : message_) each = static_cast<char>(random_.next());
  if (random_.below(2) == 0) {
    if (!stream_.send_copy(message_)) fail();
  } else {
    // The message stays until the stream is closed or all of it has come back.
    stream_.send(std::as_bytes(std::span(message_)), [this](const Result<void>& sent) {
      if (!sent && !ending_) fail();
    });
  }
  if (end_ == End::at_once && messages_left_ == 1) finish();
}

void Client::check(const Result<Buffer>& bytes) {
  if (left_) {
    if (bytes || bytes.error() != std::errc::operation_canceled) ++figures_.misorders;
    return;
  }
  hang_.again();
  if (!bytes) return fail();
  if (bytes->empty()) {
    if (!ending_) ++figures_.errors;
    return leave();
  }
  const std::string_view expected = std::string_view(message_).substr(back_);
  const std::string_view text = bytes->text();
  if (!expected.starts_with(text)) ++figures_.wrong;
  back_ += text.size();
  figures_.bytes += text.size();
  if (back_ < message_.size() || ending_) return;
  if (--messages_left_ == 0) return finish();
  send();
}

void Client::finish() {
  ending_ = true;
  switch (end_) {
    case End::close:
    case End::at_once:
      return leave();
    case End::abort:
      stream_.abort();
      return leave();
    case End::graceful:
      left_ = true;
      return stream_.close_gracefully({.timeout = patience}, std::move(gone_));
    case End::half_close:
      return stream_.shutdown_send([this](const Result<void>& shut) {
        if (!shut && !left_) fail();
      });
    case End::silence:
      return;  // the server has enough of it
  }
}

void Client::fail() {
  if (left_) return;
  if (!ending_) ++figures_.errors;
  leave();
}

void Client::leave() {
  ending_ = left_ = true;
  stream_.close(std::move(gone_));
}

}  // namespace evix::soak
