
#include <algorithm>
#include <cerrno>

#include "base/mutation.hpp"
#include "io/stream_record.hpp"
#include "sys/address.hpp"
#include "sys/error.hpp"
#include "sys/inet.hpp"

namespace evix {
namespace detail {
namespace {

Result<Address> name_of(const StreamRecord& stream, bool peer) noexcept {
  const char* operation = peer ? "peer address" : "local address";
  if (!stream.opened()) return failure(Errc::closed, operation);
  SocketAddress address;
  address.size = sizeof address.storage;
  Calls& calls = stream.core->calls();
  const int error = peer ? calls.peer_name(stream.socket.handle, address.get(), &address.size)
                         : calls.local_name(stream.socket.handle, address.get(), &address.size);
  if (error < 0) return failure(-error, operation, Subject::descriptor(stream.socket.handle));
  return from_socket_address(address.storage, address.size);
}

bool connected_to_itself(const StreamRecord& stream) noexcept {
  const auto local = name_of(stream, false);
  const auto peer = name_of(stream, true);
  return local && peer && *local == *peer;
}

// The socket of a connect that failed; the handle can connect again.
void drop_socket(StreamRecord& stream) noexcept {
  stream.core->backend().detach(stream.socket);
  stream.core->calls().close(std::exchange(stream.socket.handle, no_handle));
  stream.core->descriptor_closed();
}

// Brings the stream into its state after a connect that is final. 0 or the negative errno.
int settle_connect(StreamRecord& stream, int result, bool refuse_self_connect) noexcept {
  const bool checks = refuse_self_connect && !mutated("T075");
  if (result == 0 && checks && connected_to_itself(stream)) {
    result = -ECONNREFUSED;  // trap T075
  }
  stream.connected = result == 0;
  if (result < 0) drop_socket(stream);
  update_active(stream);
  return result;
}

void run_connect(Work* work) {
  auto& request = static_cast<ConnectRequest&>(*static_cast<ConnectOp*>(work));
  StreamRecord& stream = *request.stream;
  const std::unique_ptr<ConnectRequest> owned = std::move(stream.extras->connecting);
  int result = owned->result;
  if (!owned->queued) {
    ++stream.works_queued;
    stop_stream_timer(stream, stream.extras->connect_timer);
    result = settle_connect(stream, result, owned->refuse_self_connect);
  }
  const WorkTaken taken(stream);
  if (!owned->callback || stream.released || stream.core->discarding()) return;
  if (result == 0) {
    owned->callback(Result<void>());
  } else {
    owned->callback(Failure(make_error(-result, "connect", Subject::address(owned->address))));
  }
}

void run_connect_timeout(TimerWork* work) {
  StreamRecord& stream = *static_cast<StreamTimer*>(work)->stream;
  ConnectRequest& request = *stream.extras->connecting;
  stream.core->backend().cancel(request);
  if (request.result == -ECANCELED) request.result = -ETIMEDOUT;
  run_connect(&request);
}

int open_socket(StreamRecord& stream, const Address& address, const Address& local) {
  if (address.family() == Address::Family::none) return -static_cast<int>(Errc::invalid_address);
  Calls& calls = stream.core->calls();
  const SocketAddress target = to_socket_address(address);
  const int handle =
      calls.socket(target.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (handle < 0) return handle;
  if (local.family() != Address::Family::none) {
    const SocketAddress from = to_socket_address(local);
    if (const int error = calls.bind(handle, from.get(), from.size); error < 0) {
      calls.close(handle);
      return error;
    }
  }
  stream.socket.handle = handle;
  if (const int error = stream.core->backend().attach(stream.socket); error < 0) {
    calls.close(std::exchange(stream.socket.handle, no_handle));
    return error;
  }
  return 0;
}

// A callback for an error that was known at once, with the address.
void queue_connect_error(StreamRecord& stream, TcpStream::DoneCallback&& callback, Error error) {
  if (!callback) return;
  queue_done(
      stream,
      [told = std::move(callback), error](const Result<void>&) mutable { told(Failure(error)); }, 0,
      "connect");
}

// What is final at once is told from the loop's queue.
void start_connect(StreamRecord& stream, ConnectRequest& request, const Address& local) noexcept {
  int result = open_socket(stream, request.address, local);
  if (result == 0) {
    if (stream.core->backend().start(request) == Started::in_flight) {
      stream.core->set_active(stream, true);
      start_stream_timer(stream, stream.extras->connect_timer);
      return;
    }
    result = settle_connect(stream, request.result, request.refuse_self_connect);
  }
  request.result = result;
  request.queued = true;
  stream.core->queue_finished(stream, request);
}

int connect_refusal(StreamRecord& stream) noexcept {
  if (stream.closed) return static_cast<int>(Errc::closed);
  if (stream.core->forked()) return static_cast<int>(Errc::forked);
  if (stream.connected) return EISCONN;
  const bool connecting = stream.extras != nullptr && stream.extras->connecting != nullptr;
  return stream.opened() || connecting ? static_cast<int>(Errc::busy) : 0;
}

}  // namespace

ConnectRequest::ConnectRequest() noexcept { run = run_connect; }

}  // namespace detail

using detail::StreamRecord;

void TcpStream::connect(const Address& address, const ConnectOptions& options,
                        DoneCallback callback, std::source_location location) {
  StreamRecord& stream = detail::stream_of(*this);
  if (stream.core->dead()) return;
  if (const int error = detail::connect_refusal(stream); error != 0) {
    detail::queue_connect_error(stream, std::move(callback),
                                detail::make_error(error, "connect", Subject::address(address)));
    return;
  }
  detail::StreamExtras& extras = detail::extras_of(stream);
  auto made = std::make_unique<detail::ConnectRequest>();
  if (options.timeout != forever) {
    detail::make_stream_timer(stream, extras.connect_timer, detail::run_connect_timeout,
                              options.timeout.count());
  } else {
    extras.connect_timer.reset();
  }
  extras.connecting = std::move(made);
  detail::ConnectRequest& request = *extras.connecting;
  request.stream = &stream;
  request.source = &stream.socket;
  request.address = address;
  request.refuse_self_connect = options.refuse_self_connect;
  request.callback = std::move(callback);
  stream.location = location;
  detail::start_connect(stream, request, options.local);
}

void TcpStream::connect(std::string_view text, DoneCallback callback,
                        std::source_location location) {
  const auto address = Address::parse(text);
  if (address) {
    connect(*address, ConnectOptions{}, std::move(callback), location);
    return;
  }
  StreamRecord& stream = detail::stream_of(*this);
  if (stream.core->dead()) return;
  detail::queue_connect_error(stream, std::move(callback), address.error());
}

Result<TcpStream> TcpStream::adopt(Loop& loop, native_handle handle) {
  detail::LoopCore& core = loop.core();
  core.check_usable("adopt() from a thread that does not run the loop");
  const Subject subject = Subject::descriptor(handle);
  if (core.forked()) return detail::failure(Errc::forked, "adopt", subject);
  detail::Calls& calls = core.calls();
  detail::SocketAddress peer;
  peer.size = sizeof peer.storage;
  if (const int error = calls.peer_name(handle, peer.get(), &peer.size); error < 0) {
    return detail::failure(-error, "adopt", subject);
  }
  int type = 0;
  socklen_t size = sizeof type;
  const int asked = calls.get_option(handle, SOL_SOCKET, SO_TYPE, &type, &size);
  if (asked < 0) return detail::failure(-asked, "adopt", subject);
  if (type != SOCK_STREAM) return detail::failure(ESOCKTNOSUPPORT, "adopt", subject);
  const int flags = calls.descriptor_flags(handle);
  const int set = flags < 0 ? flags : calls.set_nonblocking(handle, flags);
  if (set < 0) return detail::failure(-set, "adopt", subject);
  // unix(7): what goes with a descriptor is read for itself. Only TCP is known to read all there
  // is.
  int protocol = 0;
  size = sizeof protocol;
  const int known = calls.get_option(handle, SOL_SOCKET, SO_PROTOCOL, &protocol, &size);
  StreamRecord* stream = detail::make_stream(core, handle, true);
  stream->socket.splits = known < 0 || protocol != IPPROTO_TCP;
  return TcpStream(stream);
}

// ---- Options and names -----------------------------------------------------------------------

namespace {

Result<void> set_option(StreamRecord& stream, int level, int name, int value,
                        const char* operation) {
  if (!stream.opened()) return detail::failure(Errc::closed, operation);
  const int error =
      stream.core->calls().set_option(stream.socket.handle, level, name, &value, sizeof value);
  if (error < 0) {
    return detail::failure(-error, operation, Subject::descriptor(stream.socket.handle));
  }
  return {};
}

}  // namespace

Result<void> TcpStream::set_no_delay(bool enabled) {
  return set_option(detail::stream_of(*this), IPPROTO_TCP, TCP_NODELAY, enabled ? 1 : 0,
                    "set no delay");
}

Result<void> TcpStream::set_keep_alive(std::optional<std::chrono::seconds> idle) {
  StreamRecord& stream = detail::stream_of(*this);
  const int enabled = idle.has_value() ? 1 : 0;
  auto set = set_option(stream, SOL_SOCKET, SO_KEEPALIVE, enabled, "set keep alive");
  if (!set || !idle) return set;
  // Linux refuses more than 32767 s with EINVAL (tcp(7), TCP_KEEPIDLE).
  const auto seconds = static_cast<int>(std::clamp<std::int64_t>(idle->count(), 1, 32'767));
  return set_option(stream, IPPROTO_TCP, TCP_KEEPIDLE, seconds, "set keep alive");
}

Result<Address> TcpStream::local_address() const {
  return detail::name_of(detail::stream_of(*this), false);
}

Result<Address> TcpStream::peer_address() const {
  return detail::name_of(detail::stream_of(*this), true);
}

// ---- Graceful close --------------------------------------------------------------------------

namespace {

void run_close_timeout(detail::TimerWork* work) {
  StreamRecord& stream = *static_cast<detail::StreamTimer*>(work)->stream;
  detail::close_stream(stream, detail::CloseMode::told);
}

void start_draining(StreamRecord& stream) {
  stream.multishot = true;
  stream.draining = true;
  if (stream.core->backend().start(stream.receive_op()) == detail::Started::done) {
    stream.draining = false;
    detail::close_stream(stream, detail::CloseMode::told);
  }
}

}  // namespace

void TcpStream::close_gracefully(const GracefulClose& limits, Callback<void()> callback) {
  StreamRecord& stream = detail::stream_of(*this);
  if (stream.core->dead()) return;
  if (!stream.connected || stream.core->forked() || detail::mutated("T061")) {
    close(std::move(callback));
    return;
  }
  detail::StreamExtras& extras = detail::extras_of(stream);
  if (extras.send_error != 0 || extras.receiving_into != nullptr) {
    close(std::move(callback));
    return;
  }
  auto notice = callback ? std::make_unique<detail::Notice>() : nullptr;
  if (!extras.graceful) {
    detail::make_stream_timer(stream, extras.close_timer, run_close_timeout,
                              limits.timeout.count());
  }
  if (notice != nullptr) {
    notice->closed = std::move(callback);
    extras.graceful_notices.push(notice.release());
  }
  if (std::exchange(extras.graceful, true)) return;
  // Also of a receive that has ended: it would be kept for as long as the draining goes on.
  const ReceiveCallback stopped = detail::stop_receiving(stream);
  const ReceiveCallback ended = detail::take_receive_callback(stream);
  extras.drain_left_bytes = limits.drain_bytes_max;
  detail::start_stream_timer(stream, extras.close_timer);
  start_draining(stream);
  if (stream.closed) return;
  stream.core->set_active(stream, true);
  extras.shutdown_wanted = true;
  detail::after_send(stream);
}

}  // namespace evix
