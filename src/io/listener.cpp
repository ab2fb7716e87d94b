#include <evix/loop.hpp>
#include <evix/tcp.hpp>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>

#include "base/mutation.hpp"
#include "io/stream_record.hpp"
#include "sys/address.hpp"
#include "sys/error.hpp"
#include "sys/fd.hpp"
#include "sys/inet.hpp"

namespace evix {
namespace detail {
namespace {

void run_accept(Work* work);
void run_retry(TimerWork* work);
void run_full_notice(Work* work);

struct ListenerTimer : TimerWork {
  ListenerRecord* listener = nullptr;
};

/** Shared with the calls that are running: user code may stop, restart, close or nest meanwhile. */
using SharedCallback = std::shared_ptr<TcpListener::AcceptCallback>;

/** An end that is told from the loop's queue: a refused start, or a close. */
struct AcceptNotice : Work {
  ListenerRecord* listener = nullptr;
  SharedCallback callback;
  int error = 0;
};

/** "connections_full" on its way; part of its listener, as it may be due without memory. */
struct FullNotice : Work {
  ListenerRecord* listener = nullptr;
  bool queued = false;
};

}  // namespace

struct ListenerRecord : HandleRecord, AcceptOp {
  Source socket;
  SharedCallback on_accept;
  std::unique_ptr<AcceptNotice> end_notice;  ///< of accept(), for its end without a connection
  ListenerTimer retry;
  std::int64_t retry_delay_ns = 0;
  bool wanted = false;     ///< accept_start() or accept(), not yet ended
  bool starved = false;    ///< no descriptors or memory; told once until the next success
  bool full = false;       ///< waits until the loop has fewer connections
  bool told_full = false;  ///< until a part of them is free again, whatever is stopped or started
  FullNotice full_notice;

  using HandleRecord::kind;
  ListenerRecord() noexcept : HandleRecord(HandleKind::listener) {
    run = run_accept;
    source = &socket;
    socket.kind = SourceKind::listener;
    retry.run = run_retry;
    retry.listener = this;
    full_notice.run = run_full_notice;
    full_notice.listener = this;
  }
  AcceptOp& accept_op() noexcept { return *this; }
  bool opened() const noexcept { return socket.handle != no_handle; }
  void stop_accepting() noexcept;
  void close() noexcept;
  void shut() noexcept {
    close();
    on_accept.reset();
  }
  void describe(HandleInfo& info) const {
    info.handle = socket.handle;
    if (retry.armed()) info.waits_for = "descriptors or memory to accept with";
    if (full) info.waits_for = "fewer connections";
    if (in_flight()) info.waits_for = "accept";
  }
};

namespace {

ListenerRecord& record_of(const TcpListener& listener) noexcept {
  check(listener.record() != nullptr, "an empty listener was used");
  auto& record = static_cast<ListenerRecord&>(*listener.record());
  record.core->check_usable("a listener was used by a thread that does not run its loop");
  return record;
}

// accept(2): the process or the system has run out; the connection stays in the queue.
bool is_starvation(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

// accept(2), "Error handling": errors that belong to the connection, not to the listener. EPERM is
// a firewall's.
bool is_of_connection(int error) noexcept {
  switch (error) {
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EPERM:
      return true;
    default:
      return mutated("T048");
  }
}

void descriptors_changed(LoopCore& core);

// Until this loop closes a connection.
void wait_for_fewer_connections(ListenerRecord& listener) noexcept {
  LoopCore& core = *listener.core;
  listener.full = true;
  core.set_descriptor_hook(descriptors_changed);
  // A single accept() has one result to give, so it waits without a word.
  if (!listener.multishot || listener.told_full) return;
  if (std::exchange(listener.full_notice.queued, true)) return;
  core.queue_finished(listener, listener.full_notice);
}

// Starts the operation; an error comes back as it would from the loop.
int start_accepting(ListenerRecord& listener) {
  if (listener.core->connections_left() == 0) {
    wait_for_fewer_connections(listener);
    return 0;
  }
  listener.full = false;
  if (listener.core->backend().start(listener.accept_op()) == Started::done) {
    return listener.result;
  }
  return 0;
}

/** Keeps record and callback while the callback runs. */
struct AcceptCall {
  ListenerRecord& listener;
  LoopCore& core;
  SharedCallback callback;

  explicit AcceptCall(ListenerRecord& record) noexcept
      : listener(record), core(*record.core), callback(record.on_accept) {
    ++listener.works_queued;
  }
  AcceptCall(const AcceptCall&) = delete;
  AcceptCall& operator=(const AcceptCall&) = delete;
  ~AcceptCall() { core.work_taken(listener); }

  void operator()(Result<TcpStream> result) {
    if (!listener.wanted) listener.on_accept.reset();
    if (callback != nullptr && *callback) (*callback)(std::move(result));
  }
};

Failure accept_failure(const ListenerRecord& listener, int error) {
  const Subject subject =
      listener.opened() ? Subject::descriptor(listener.socket.handle) : Subject();
  return Failure(make_error(error, "accept", subject));
}

void give_error(ListenerRecord& listener, int error) {
  AcceptCall call(listener);
  call(accept_failure(listener, error));
}

void run_accept_notice(Work* work) {
  const std::unique_ptr<AcceptNotice> notice(static_cast<AcceptNotice*>(work));
  ListenerRecord& listener = *notice->listener;
  const WorkTaken taken(listener);
  if (listener.released || listener.core->discarding() || !*notice->callback) return;
  (*notice->callback)(accept_failure(listener, notice->error));
}

void queue_error(ListenerRecord& listener, std::unique_ptr<AcceptNotice> notice,
                 int error) noexcept {
  notice->run = run_accept_notice;
  notice->listener = &listener;
  notice->callback = listener.on_accept;
  notice->error = error;
  listener.core->queue_finished(listener, *notice.release());
}

void run_full_notice(Work* work) {
  ListenerRecord& listener = *static_cast<FullNotice*>(work)->listener;
  const WorkTaken taken(listener);
  listener.full_notice.queued = false;
  if (listener.released || listener.core->discarding()) return;
  // Things may have changed since it was queued, by the callback of the last connection too.
  if (!listener.full || !listener.multishot || listener.core->connections_left() != 0) return;
  listener.told_full = true;
  give_error(listener, static_cast<int>(Errc::connections_full));
}

// After a while, or when this loop closes a descriptor.
void wait_for_descriptors(ListenerRecord& listener) noexcept {
  const bool storms = mutated("T044") || mutated("T045");
  listener.core->start_timer(listener.retry, storms ? 0 : listener.retry_delay_ns);
  listener.core->set_descriptor_hook(descriptors_changed);
}

void handle_accept_error(ListenerRecord& listener, int error) {
  if (is_of_connection(error)) {
    const int restarted = listener.in_flight() ? 0 : start_accepting(listener);
    if (restarted == 0) return;
    error = -restarted;
  }
  if (is_starvation(error)) {
    // A single accept() has one result to give, so it waits without a word.
    const bool told = std::exchange(listener.starved, true) || !listener.multishot;
    wait_for_descriptors(listener);
    if (!told) give_error(listener, error);
    return;
  }
  listener.wanted = false;
  listener.core->set_active(listener, false);
  give_error(listener, error);
}

// Null when there is no memory for it: the connection is closed then.
StreamRecord* accepted_stream(LoopCore& core, native_handle handle) noexcept {
  Fd accepted(core.calls(), handle);
  try {
    StreamRecord* stream = make_stream(core, handle, false);
    (void)accepted.release();
    return stream;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// `last` has taken the last place: the next one that becomes free is offered to the others first.
void stop_at_the_limit(ListenerRecord& last) noexcept {
  const auto stop = [](HandleRecord& record, void*) {
    auto& listener = static_cast<ListenerRecord&>(record);
    if (!listener.in_flight()) return;
    listener.core->backend().cancel(listener.accept_op());
    wait_for_fewer_connections(listener);
  };
  last.core->set_last_at_limit(&last);
  last.core->store(HandleKind::listener)->for_each(stop, nullptr);
}

// Not anew when it is due already: a close in each turn would put it off for ever.
void retry_at_once(ListenerRecord& listener) noexcept {
  if (listener.retry.armed() && listener.retry.delay_ns == 0) return;
  listener.core->stop_timer(listener.retry);
  listener.core->start_timer(listener.retry, 0);
}

// The next full listener in the circle gets a turn of its own to take what is free, then the one
// behind it: else the one that the kernel names first would always have it.
void offer_to_one_behind(LoopCore& core, const void* last) noexcept {
  struct Search {
    const void* last;
    bool behind = false;
    ListenerRecord* first = nullptr;
    ListenerRecord* next = nullptr;
    bool offered = false;
  } search{last};
  const auto look = [](HandleRecord& record, void* context) {
    auto& listener = static_cast<ListenerRecord&>(record);
    auto& found = *static_cast<Search*>(context);
    if (listener.full) {
      found.offered = found.offered || listener.retry.armed();
      if (found.first == nullptr) found.first = &listener;
      if (found.behind && found.next == nullptr) found.next = &listener;
    }
    if (&listener == found.last) found.behind = true;
  };
  core.store(HandleKind::listener)->for_each(look, &search);
  ListenerRecord* next = search.next != nullptr ? search.next : search.first;
  if (next != nullptr && !search.offered) retry_at_once(*next);
}

void run_accept(Work* work) {
  auto& listener = static_cast<ListenerRecord&>(*static_cast<AcceptOp*>(work));
  LoopCore& core = *listener.core;
  if (listener.result < 0) {
    handle_accept_error(listener, -listener.result);
    return;
  }
  StreamRecord* record = accepted_stream(core, listener.result);
  if (record == nullptr) {
    core.backend().cancel(listener.accept_op());
    handle_accept_error(listener, ENOMEM);
    return;
  }
  TcpStream stream(record);
  record->accepted = true;
  core.connection_accepted();
  if (core.connections_left() == 0) stop_at_the_limit(listener);
  listener.starved = false;
  if (!listener.in_flight() && !listener.full) {
    listener.wanted = false;
    core.set_active(listener, false);
  }
  AcceptCall call(listener);
  call(std::move(stream));
}

void retry(ListenerRecord& listener) {
  if (!listener.wanted || listener.in_flight()) return;
  const bool was_full = listener.full;
  const int error = start_accepting(listener);
  if (was_full && !listener.full) offer_to_one_behind(*listener.core, &listener);
  if (error < 0) handle_accept_error(listener, -error);
}

void run_retry(TimerWork* work) { retry(*static_cast<ListenerTimer*>(work)->listener); }

// A descriptor was closed: those that wait for one, or for fewer connections, try again.
void descriptors_changed(LoopCore& core) {
  core.set_descriptor_hook(nullptr);
  const auto look = [](HandleRecord& record, void*) {
    auto& listener = static_cast<ListenerRecord&>(record);
    LoopCore& loop = *listener.core;
    const std::uint64_t part = std::max<std::uint64_t>(loop.options().connections_max / 8, 1);
    if (loop.connections_left() >= part) listener.told_full = false;
    if (listener.told_full || listener.full) loop.set_descriptor_hook(descriptors_changed);
    if (listener.starved && listener.retry.armed()) retry_at_once(listener);
  };
  core.store(HandleKind::listener)->for_each(look, nullptr);
  if (core.connections_left() != 0) offer_to_one_behind(core, core.last_at_limit());
}

void begin_accepting(ListenerRecord& listener, bool multishot,
                     TcpListener::AcceptCallback&& callback, std::source_location location) {
  LoopCore& core = *listener.core;
  if (core.dead()) return;
  // All memory first: without it nothing has happened.
  auto accepting = std::make_shared<TcpListener::AcceptCallback>(std::move(callback));
  auto refusal = std::make_unique<AcceptNotice>();
  auto end_notice = multishot ? nullptr : std::make_unique<AcceptNotice>();
  // An accept() that is still waiting ends; accept_start() is only restarted.
  const bool waits_for_one = listener.wanted && !listener.multishot;
  if (waits_for_one) queue_error(listener, std::move(listener.end_notice), ECANCELED);
  listener.stop_accepting();
  listener.location = location;
  // Lives to the end of this call: it may own the listener.
  const SharedCallback before = std::exchange(listener.on_accept, accepting);
  listener.end_notice = std::move(end_notice);
  listener.multishot = multishot;
  listener.one_at_a_time = core.options().connections_max != 0;
  listener.wanted = true;
  core.set_active(listener, true);
  int error = 0;
  if (!listener.opened()) {
    error = static_cast<int>(Errc::closed);
  } else if (core.forked()) {
    error = static_cast<int>(Errc::forked);
  } else {
    error = -start_accepting(listener);
  }
  if (error == 0) return;
  // Told from the loop, never from inside this call.
  if (is_starvation(error)) {
    listener.starved = true;
    wait_for_descriptors(listener);
    if (multishot) queue_error(listener, std::move(refusal), error);
    return;
  }
  queue_error(listener, std::move(refusal), error);
  listener.stop_accepting();
  listener.on_accept.reset();
}

}  // namespace

void ListenerRecord::stop_accepting() noexcept {
  if (core->dead()) return;
  const bool was_offered = full && retry.armed();
  core->stop_timer(retry);
  core->backend().cancel(accept_op());
  wanted = full = false;
  core->set_active(*this, false);
  if (was_offered && !core->discarding()) offer_to_one_behind(*core, this);
}

void ListenerRecord::close() noexcept {
  if (core->dead()) return;
  stop_accepting();
  closed = true;
  if (!opened()) return;
  core->backend().detach(socket);
  core->calls().close(std::exchange(socket.handle, no_handle));
  core->descriptor_closed();
}

namespace {

int set_flag(Calls& calls, int handle, int level, int name, bool enabled) {
  const int value = enabled ? 1 : 0;
  return calls.set_option(handle, level, name, &value, sizeof value);
}

int configure(Calls& calls, int handle, const SocketAddress& address,
              const ListenOptions& options) {
  if (const int e = set_flag(calls, handle, SOL_SOCKET, SO_REUSEADDR, options.reuse_address)) {
    return e;
  }
  if (options.reuse_port) {
    if (const int e = set_flag(calls, handle, SOL_SOCKET, SO_REUSEPORT, true)) return e;
  }
  if (address.family() == AF_INET6) {
    if (const int e = set_flag(calls, handle, IPPROTO_IPV6, IPV6_V6ONLY, options.ipv6_only)) {
      return e;
    }
  }
  if (options.no_delay) {
    if (const int e = set_flag(calls, handle, IPPROTO_TCP, TCP_NODELAY, true)) return e;
  }
  if (const int e = calls.bind(handle, address.get(), address.size)) return e;
  return calls.listen(handle, options.backlog_max < 1 ? 1 : options.backlog_max);
}

}  // namespace
}  // namespace detail

TcpListener::TcpListener(Loop& loop)
    : Handle((loop.core().reserve_timer(),
              loop.core().make_record<detail::ListenerRecord>(HandleKind::listener))) {}

Result<void> TcpListener::listen(const Address& address, const ListenOptions& options) {
  detail::ListenerRecord& listener = detail::record_of(*this);
  const Subject subject = Subject::address(address);
  if (listener.core->dead() || listener.closed) {
    return detail::failure(Errc::closed, "listen", subject);
  }
  if (listener.core->forked()) return detail::failure(Errc::forked, "listen", subject);
  if (listener.opened()) return detail::failure(Errc::busy, "listen", subject);
  if (address.family() == Address::Family::none) {
    return detail::failure(Errc::invalid_address, "listen", subject);
  }
  detail::Calls& calls = listener.core->calls();
  const detail::SocketAddress target = detail::to_socket_address(address);
  const int handle =
      calls.socket(target.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  int error = handle;
  if (handle >= 0) error = detail::configure(calls, handle, target, options);
  if (error >= 0) {
    listener.socket.handle = handle;
    error = listener.core->backend().attach(listener.socket);
  }
  if (error < 0) {
    listener.socket.handle = no_handle;
    if (handle >= 0) calls.close(handle);
    return detail::failure(-error, "listen", subject);
  }
  listener.retry_delay_ns = options.retry_delay.count();
  return {};
}

Result<void> TcpListener::listen(std::string_view text, const ListenOptions& options) {
  const auto address = Address::parse(text);
  if (!address) return std::unexpected(address.error());
  return listen(*address, options);
}

Result<void> TcpListener::listen(std::string_view text, AcceptCallback callback,
                                 std::source_location location) {
  const auto listening = listen(text);
  if (listening) accept_start(std::move(callback), location);
  return listening;
}

void TcpListener::accept_start(AcceptCallback callback, std::source_location location) {
  detail::begin_accepting(detail::record_of(*this), true, std::move(callback), location);
}

void TcpListener::accept(AcceptCallback callback, std::source_location location) {
  detail::begin_accepting(detail::record_of(*this), false, std::move(callback), location);
}

void TcpListener::accept_stop() noexcept {
  detail::ListenerRecord& listener = detail::record_of(*this);
  if (listener.core->dead()) return;
  listener.stop_accepting();
  listener.on_accept.reset();
}

Result<Address> TcpListener::local_address() const {
  const detail::ListenerRecord& listener = detail::record_of(*this);
  if (!listener.opened()) return detail::failure(Errc::closed, "local address");
  detail::SocketAddress address;
  address.size = sizeof address.storage;
  const int error =
      listener.core->calls().local_name(listener.socket.handle, address.get(), &address.size);
  if (error < 0) {
    return detail::failure(-error, "local address", Subject::descriptor(listener.socket.handle));
  }
  return detail::from_socket_address(address.storage, address.size);
}

native_handle TcpListener::native() const noexcept {
  return detail::record_of(*this).socket.handle;
}

bool TcpListener::closed() const noexcept {
  const detail::ListenerRecord& listener = detail::record_of(*this);
  return listener.closed || listener.core->dead();
}

void TcpListener::close() noexcept {
  detail::ListenerRecord& listener = detail::record_of(*this);
  // accept() promised one call; accept_start() is a series, which simply ends.
  const bool told = listener.wanted && !listener.multishot && !listener.core->dead();
  listener.close();
  if (told) detail::queue_error(listener, std::move(listener.end_notice), ECANCELED);
  listener.on_accept.reset();
}

}  // namespace evix
