#include "evix/poller.hpp"

#include <algorithm>
#include <utility>

#include "poll/driver.hpp"
#include "poll/poller_state.hpp"
#include "sys/calls.hpp"
#include "sys/error.hpp"

/** @file
 * The public face of PollerState: choice of the driver, Results and durations.
 */
namespace evix {
namespace {

using detail::Calls;
using detail::failure;
using detail::PollDriver;

std::unique_ptr<PollDriver> make_driver(BackendKind kind, Calls& calls, int& error) {
  switch (kind) {
    case BackendKind::epoll:
      return detail::make_epoll_driver(calls, error);
    case BackendKind::poll:
      return detail::make_poll_driver(calls, error);
    case BackendKind::automatic: {
      if (auto driver = detail::make_epoll_driver(calls, error)) return driver;
      return detail::make_poll_driver(calls, error);
    }
    case BackendKind::sim:
    case BackendKind::io_uring:
    case BackendKind::kqueue:
    case BackendKind::custom:
      break;
  }
  error = -static_cast<int>(Errc::backend_unavailable);
  return nullptr;
}

Result<void> to_result(int code, const char* operation) {
  if (code < 0) return failure(-code, operation);
  return {};
}

}  // namespace

Poller::Poller(std::unique_ptr<detail::PollerState> state) noexcept : state_(std::move(state)) {}
Poller::Poller(Poller&&) noexcept = default;
Poller& Poller::operator=(Poller&&) noexcept = default;
Poller::~Poller() = default;

Result<Poller> Poller::create(PollerOptions options) {
  Calls& calls = options.system_calls != nullptr ? *options.system_calls : Calls::kernel();
  int error = 0;
  auto driver = make_driver(options.kind, calls, error);
  if (driver == nullptr) return failure(-error, "create poller");
  return over(std::move(driver), options.events_max);
}

Poller Poller::over(std::unique_ptr<PollDriver> driver, std::size_t events_max) {
  return Poller(std::make_unique<detail::PollerState>(std::move(driver), events_max));
}

BackendKind Poller::kind() const noexcept { return std::as_const(*state_).driver().kind(); }

bool Poller::supports_edge() const noexcept {
  return std::as_const(*state_).driver().supports_edge();
}

Result<InterestId> Poller::add(native_handle handle, Ready interest, Trigger trigger,
                               std::uint64_t token, bool enabled) {
  InterestId id;
  const int error = state_->add(handle, interest, trigger, token, enabled, id);
  if (error < 0) return failure(-error, "register", Subject::descriptor(handle));
  return id;
}

Result<InterestId> Poller::add_now(native_handle handle, Ready interest, Trigger trigger,
                                   std::uint64_t token) {
  InterestId id;
  const int error = state_->add_now(handle, interest, trigger, token, id);
  if (error < 0) return failure(-error, "register", Subject::descriptor(handle));
  return id;
}

Result<void> Poller::modify(InterestId id, Ready interest, Trigger trigger) {
  return to_result(state_->modify(id, interest, trigger), "modify interest");
}

Result<void> Poller::set_token(InterestId id, std::uint64_t token) {
  return to_result(state_->set_token(id, token), "set token");
}

Result<void> Poller::enable(InterestId id) {
  return to_result(state_->enable(id), "enable interest");
}

Result<void> Poller::disable(InterestId id) {
  return to_result(state_->disable(id), "disable interest");
}

Result<void> Poller::remove(InterestId id) {
  return to_result(state_->remove(id), "remove interest");
}

Result<void> Poller::forget(InterestId id) {
  return to_result(state_->forget(id), "forget interest");
}

std::size_t Poller::commit() { return state_->commit(); }

std::span<const ChangeFailure> Poller::failures() const noexcept { return state_->failures(); }

Result<std::size_t> Poller::wait(Duration timeout) {
  const bool unlimited = timeout == forever;
  const std::int64_t timeout_ns = unlimited ? -1 : std::max<std::int64_t>(timeout.count(), 0);
  const int count = state_->wait(timeout_ns);
  if (count < 0) return failure(-count, "wait");
  return static_cast<std::size_t>(count);
}

std::optional<PollEvent> Poller::next() {
  PollEvent event;
  if (!state_->next_event(event)) return std::nullopt;
  return event;
}

std::size_t Poller::size() const noexcept { return state_->size(); }

Result<void> Poller::after_fork() { return to_result(state_->after_fork(), "after_fork"); }

}  // namespace evix
