#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <source_location>
#include <span>
#include <string_view>

#include "evix/address.hpp"
#include "evix/buffer.hpp"
#include "evix/callback.hpp"
#include "evix/error.hpp"
#include "evix/export.hpp"
#include "evix/handle.hpp"
#include "evix/native_handle.hpp"
#include "evix/time.hpp"

/** @file
 * TCP over IPv4 and IPv6.
 *
 * Rules for every operation here: the callback never runs inside the call that started it; it runs
 * exactly once for each accepted operation (receive_start and accept_start: until they end);
 * stopping or closing a handle ends its operations with std::errc::operation_canceled, success
 * beats cancel; destroying a handle ends them without a call; an operation on a closed handle
 * reports Errc::closed. All descriptors are
 * close-on-exec, and no SIGPIPE is ever raised. Without memory a start throws std::bad_alloc and
 * has done nothing; what has been accepted needs no more memory to end.
 */
namespace evix {

namespace detail {
struct StreamRecord;
struct ListenerRecord;
}  // namespace detail

struct ConnectOptions {
  /** From the start to the connection; then std::errc::timed_out. */
  Duration timeout = forever;
  /** The local address to bind to; family none: the kernel's choice. */
  Address local{};
  /**
   * A socket that the kernel connected to itself (possible when the ports collide on a loopback
   * address) is closed and reported as connection_refused.
   */
  bool refuse_self_connect = true;
};

/** Bounds of a send queue, in bytes. */
struct WaterMarks {
  std::size_t low_bytes = 16 * 1024;
  std::size_t high_bytes = 64 * 1024;
  /** Hard cap: a send that would pass it fails with Errc::queue_full; one on an empty queue never.
   */
  std::size_t hard_bytes_max = 16 * 1024 * 1024;
};

/** What is passed twice before it could be told merges: the last one told is how it stands. */
enum class WaterMark : std::uint8_t {
  full,     ///< the queue has reached its high mark: stop producing
  drained,  ///< it has come down to its low mark after that
};

/** How close_gracefully() ends a stream. */
struct GracefulClose {
  /** Input that is read and thrown away while waiting for the peer's end, in bytes. */
  std::size_t drain_bytes_max = 1024 * 1024;
  /** From the call on; afterwards the stream is closed as it is. */
  Duration timeout = std::chrono::seconds(5);
};

/**
 * A TCP connection.
 *
 * Receiving: receive() once, or receive_start() until the end. Bytes come as a leased Buffer; an
 * empty one is the end of the stream, and comes once. An error comes after all bytes that arrived
 * before it; a reset that a send was given comes here too.
 *
 * Sending: sends keep their order and finish partial writes by themselves. When the stream fails,
 * every queued send fails, in order. A failed send does not end receiving.
 *
 * Destroying the handle is close(), but none of its callbacks runs any more.
 */
class EVIX_API TcpStream : public Handle {
 public:
  using ReceiveCallback = Callback<void(Result<Buffer>)>;
  using DoneCallback = Callback<void(Result<void>)>;
  using CountCallback = Callback<void(Result<std::size_t>)>;
  using WaterMarkCallback = Callback<void(WaterMark)>;

  /** An empty handle; assign one made with a loop before use. */
  TcpStream() noexcept = default;
  explicit TcpStream(Loop& loop);
  /** For evix. */
  explicit TcpStream(detail::StreamRecord* record) noexcept;

  /** Takes over a connected stream socket of the caller: sets it non-blocking and closes it. */
  [[nodiscard]] static Result<TcpStream> adopt(Loop& loop, native_handle handle);

  /**
   * Connects. Success means connected: SO_ERROR is read and the peer has a name (connect(2)).
   * The error is the true one, with the address: `connect 127.0.0.1:1: connection refused`.
   */
  void connect(const Address& address, const ConnectOptions& options, DoneCallback callback,
               std::source_location location = std::source_location::current());
  void connect(const Address& address, DoneCallback callback,
               std::source_location location = std::source_location::current()) {
    connect(address, ConnectOptions{}, std::move(callback), location);
  }
  /** As above with Address::parse(text). */
  void connect(std::string_view text, DoneCallback callback,
               std::source_location location = std::source_location::current());

  /** One buffer, the end (empty buffer) or an error. One receive at a time: else Errc::busy. */
  void receive(ReceiveCallback callback,
               std::source_location location = std::source_location::current());
  /** A call for each buffer until the end, an error, or receive_stop(). */
  void receive_start(ReceiveCallback callback,
                     std::source_location location = std::source_location::current());
  /** Ends receive() or receive_start() without a further call; unread bytes stay in the kernel. */
  void receive_stop() noexcept;
  /**
   * Into the caller's memory, which must stay valid until the callback; 0 bytes is the end.
   * Ended by close() only.
   */
  void receive_into(std::span<std::byte> bytes, CountCallback callback,
                    std::source_location location = std::source_location::current());

  /** Sends the caller's bytes, which must stay valid until the callback. */
  void send(std::span<const std::byte> bytes, DoneCallback callback,
            std::source_location location = std::source_location::current());
  /** Sends and owns the buffer. */
  void send(Buffer buffer, DoneCallback callback,
            std::source_location location = std::source_location::current());
  /**
   * Sends without a callback; what the kernel does not take at once is copied and queued. A later
   * failure is reported to the next operation on the stream. With io_uring up to 4 KiB go out at
   * the end of the turn, as with try_send(), or at exit(3) of the loop's thread; not at all when
   * the process ends otherwise before that.
   * @return queue_full (nothing was taken), closed, or the error that the stream has;
   * not_enough_memory when the rest could not be copied: the stream then sends no more.
   */
  Result<void> send_copy(std::span<const std::byte> bytes);
  Result<void> send_copy(std::string_view text) {
    return send_copy(std::as_bytes(std::span(text.data(), text.size())));
  }
  /**
   * Sends what the kernel takes now; 0 when it takes nothing or sends are queued. Inside of run()
   * the backend may take up to 4 KiB itself and hand them over at the end of the turn (io_uring
   * does): they are sent in order, and a failure is reported to the next operation on the stream.
   * After close() they are sent still, and keep run() going until they are, for a minute at most;
   * if they cannot be, the peer is told by a reset.
   */
  [[nodiscard]] Result<std::size_t> try_send(std::span<const std::byte> bytes);
  /** Half-close: the peer sees the end after all queued sends. shutdown(2) with SHUT_WR. */
  void shutdown_send(DoneCallback callback,
                     std::source_location location = std::source_location::current());

  void set_water_marks(const WaterMarks& marks, WaterMarkCallback callback = {});
  std::size_t send_queue_bytes() const noexcept;

  /**
   * A receive that gets nothing for `timeout` ends with std::errc::timed_out (receive_start: and is
   * stopped). Counts from the start and from each buffer. forever: none.
   */
  void set_receive_timeout(Duration timeout);
  /** Queued sends that make no progress for `timeout` fail the stream with timed_out. */
  void set_send_timeout(Duration timeout);

  /** TCP_NODELAY, tcp(7). */
  Result<void> set_no_delay(bool enabled);
  /** SO_KEEPALIVE with TCP_KEEPIDLE = `idle`, in whole seconds, at least 1; nullopt: off. */
  Result<void> set_keep_alive(std::optional<std::chrono::seconds> idle);

  Result<Address> local_address() const;
  Result<Address> peer_address() const;
  native_handle native() const noexcept;
  bool connected() const noexcept;
  bool closed() const noexcept;

  /**
   * Ends every operation with operation_canceled, releases the descriptor before it returns, and
   * completes last: after the callbacks of the operations. Twice does nothing. What try_send() and
   * send_copy() copied over io_uring is sent still, see there.
   */
  void close() noexcept;
  void close(Callback<void()> callback);
  /**
   * Sends what is queued, shuts the sending side, reads and drops input until the peer's end or the
   * limits, then closes; so that the peer gets the last bytes instead of a reset.
   * A receive() or receive_start() ends as by receive_stop(); a stream with a receive_into() in
   * flight, or whose sending has failed, is closed at once.
   * Asking again while that goes on changes nothing; every callback runs at the end.
   *
   * Keep the handle until then: destroying it closes at once, and the peer sees the end of a stream
   * that lacks what was still queued. Capturing the handle's owner in `callback` does that.
   */
  void close_gracefully(const GracefulClose& limits = {}, Callback<void()> callback = {});
  /** Closes with a reset (SO_LINGER 0): queued and unsent bytes are thrown away. */
  void abort() noexcept;
};

struct ListenOptions {
  /** Connections that wait to be accepted; the kernel cuts it to net.core.somaxconn. */
  int backlog_max = 4096;
  bool reuse_address = true;  ///< SO_REUSEADDR
  bool reuse_port = false;    ///< SO_REUSEPORT
  bool ipv6_only = false;     ///< IPV6_V6ONLY
  /** TCP_NODELAY for all that are accepted: they inherit it, which saves a call for each. */
  bool no_delay = false;
  /**
   * After an accept failed for want of descriptors or memory (reported once): how long to wait
   * before the next try, unless a stream of this loop is closed earlier.
   */
  Duration retry_delay = std::chrono::milliseconds(100);
};

/** A listening TCP socket. Destroying the handle is close(). */
class EVIX_API TcpListener : public Handle {
 public:
  using AcceptCallback = Callback<void(Result<TcpStream>)>;

  /** An empty handle; assign one made with a loop before use. */
  TcpListener() noexcept = default;
  explicit TcpListener(Loop& loop);

  /** Binds and listens: bind(2), listen(2). @return what failed, with the address. */
  [[nodiscard]] Result<void> listen(const Address& address, const ListenOptions& options = {});
  [[nodiscard]] Result<void> listen(std::string_view text, const ListenOptions& options = {});
  /** As listen() and accept_start(). */
  [[nodiscard]] Result<void> listen(
      std::string_view text, AcceptCallback callback,
      std::source_location location = std::source_location::current());

  /**
   * A call for each connection until accept_stop(). Errors that end it are reported once. Being out
   * of descriptors or memory does not end it: it is reported once, and goes on after
   * ListenOptions::retry_delay, or as soon as this loop closes a descriptor. Nor does
   * Errc::connections_full: see LoopOptions::connections_max.
   */
  void accept_start(AcceptCallback callback,
                    std::source_location location = std::source_location::current());
  /**
   * One connection, or the error that makes it impossible: one call. One that is still waiting ends
   * with operation_canceled. Out of descriptors, memory or places (LoopOptions::connections_max)
   * it waits until there are some.
   */
  void accept(AcceptCallback callback,
              std::source_location location = std::source_location::current());
  /** Ends accept() or accept_start() without a further call. */
  void accept_stop() noexcept;

  Result<Address> local_address() const;
  native_handle native() const noexcept;
  bool closed() const noexcept;
  /** The port is free when this returns. Connections not yet accepted are reset by the kernel. */
  void close() noexcept;
};

}  // namespace evix
