#pragma once

#include <cstddef>
#include <cstdint>
#include <evix/evix.hpp>
#include <string>
#include <string_view>

#include "base/prng.hpp"

/** @file
 * The two sides of a connection of the soak: a server that echoes, and a client that sends, reads
 * what comes back, compares, and ends in one of many ways.
 */
namespace evix::soak {

/** What has happened so far, of all peers. */
struct Figures {
  std::uint64_t connections = 0;
  std::uint64_t bytes = 0;      ///< that came back
  std::uint64_t errors = 0;     ///< that ended a client or a server's side; faults are made
  std::uint64_t wrong = 0;      ///< buffers with other bytes than were sent
  std::uint64_t misorders = 0;  ///< callbacks after the end
  std::uint64_t stuck = 0;      ///< clients for which nothing happened for a long time
};

/** The server's side of a connection. `gone` runs once, last; it may destroy this. */
class Served {
 public:
  Served(TcpStream stream, Figures& figures, Callback<void()> gone);

 private:
  void receive();
  void echo(Buffer bytes);
  void close();

  TcpStream stream_;
  Figures& figures_;
  Callback<void()> gone_;
  bool paused_ = false;
  bool ended_ = false;
};

/** One connection of a client. `gone` runs once, last; it may destroy this. */
class Client {
 public:
  Client(Loop& loop, const Address& server, std::uint64_t seed, Figures& figures,
         Callback<void()> gone);

 private:
  /** What it does when all messages have come back. */
  enum class End : std::uint8_t { close, abort, graceful, half_close, silence, at_once };

  void begin();
  void send();
  void check(const Result<Buffer>& bytes);
  void finish();
  void fail();
  void leave();

  TcpStream stream_;
  Timer hang_;
  Figures& figures_;
  Callback<void()> gone_;
  detail::Prng random_;
  std::string message_;
  std::size_t back_ = 0;  ///< bytes of the message that have come back
  std::uint64_t messages_left_;
  End end_;
  bool ending_ = false;
  bool left_ = false;
};

}  // namespace evix::soak
