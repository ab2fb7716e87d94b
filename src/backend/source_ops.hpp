#pragma once

#include <cerrno>
#include <cstdint>

#include "base/mutation.hpp"
#include "op/op.hpp"
#include "sys/address.hpp"
#include "sys/calls.hpp"
#include "sys/poll_bits.hpp"

/** @file
 * What every backend does with the operations of a source.
 */
namespace evix::detail {

// Results that one source gives in a turn before others of the next turn come first. More saves
// the empty look at the kernel between the parts of a bulk stream; 4 x 64 KiB stays below 0.1 ms.
inline constexpr std::uint8_t visits_max = 4;

inline constexpr Ready all_bits = static_cast<Ready>(UINT16_MAX);
inline constexpr Ready ends = Ready::hangup | Ready::error | Ready::invalid;

/** What a watcher with this interest is told. The bits are those of all of its descriptor. */
constexpr Ready reportable(Ready interest) noexcept { return with_read_closed(interest) | ends; }

/** The first watch operation from `op` on that is to be told one of `bits`. */
inline WatchOp* first_pending(Op* op, Ready bits) noexcept {
  auto* watch = static_cast<WatchOp*>(op);
  while (watch != nullptr && !any(watch->pending & bits)) watch = watch->next_watch;
  return watch;
}

/** Behind the other watch operations of its source. */
inline void push_watch(Source& source, WatchOp& op) noexcept {
  op.source = &source;
  op.previous_watch = op.next_watch = nullptr;
  if (source.in == nullptr) {
    source.in = &op;
    return;
  }
  auto* last = static_cast<WatchOp*>(source.in);
  while (last->next_watch != nullptr) last = last->next_watch;
  last->next_watch = &op;
  op.previous_watch = last;
}

/** From any place among the watch operations of its source, which it has no more. */
inline void unlink_watch(WatchOp& op) noexcept {
  if (op.previous_watch != nullptr) {
    op.previous_watch->next_watch = op.next_watch;
  } else {
    op.source->in = op.next_watch;
  }
  if (op.next_watch != nullptr) op.next_watch->previous_watch = op.previous_watch;
  op.previous_watch = op.next_watch = nullptr;
  op.source = nullptr;
}

/** What all watch operations of a source want together. */
inline Ready interest_of(const Source& source) noexcept {
  Ready interest = Ready::none;
  for (auto* op = static_cast<WatchOp*>(source.in); op != nullptr; op = op->next_watch) {
    interest |= op->interest;
  }
  return interest;
}

inline void finish(Op& op, std::int32_t result) noexcept {
  op.result = result;
  op.state = OpState::idle;
}

/** Behind the other sends of its source. */
inline void push_out(Source& source, Op& op) noexcept {
  op.state = OpState::in_flight;
  if (source.out != nullptr) {
    auto& first = static_cast<SendOp&>(*source.out);
    auto& last = static_cast<SendOp&>(op);
    last.next_send = nullptr;
    first.last_send->next_send = &last;
    first.last_send = &last;
    return;
  }
  source.out = &op;
  if (op.kind == OpKind::send) {
    auto& first = static_cast<SendOp&>(op);
    first.next_send = nullptr;
    first.last_send = &first;
  }
}

/** From any place among the sends of its source. */
inline void remove_send(SendOp& op) noexcept {
  Source& source = *op.source;
  auto* first = static_cast<SendOp*>(source.out);
  if (first == &op) {
    if (op.next_send != nullptr) op.next_send->last_send = op.last_send;
    source.out = op.next_send;
    return;
  }
  SendOp* before = first;
  while (before->next_send != &op) before = before->next_send;
  before->next_send = op.next_send;
  if (first->last_send == &op) first->last_send = before;
}

/** connect(2) that a table may interrupt. */
inline int connect_now(Calls& calls, const ConnectOp& op) noexcept {
  const SocketAddress address = to_socket_address(op.address);
  int result = 0;
  do {
    result = calls.connect(op.source->handle, address.get(), address.size);
  } while (result == -EINTR);
  return result;
}

inline constexpr int not_yet = 1;

/** What became of a connecting socket that is `ready`: 0, -errno, or not_yet. */
inline int connect_result(Calls& calls, native_handle handle, Ready ready) noexcept {
  int error = 0;
  socklen_t size = sizeof error;
  const int asked = calls.get_option(handle, SOL_SOCKET, SO_ERROR, &error, &size);
  int result = asked < 0 ? asked : -error;
  if (mutated("T072")) return 0;
  if (result == 0) {
    // Without a peer's name it is not connected, whatever the bits say (traps T056, T072).
    SocketAddress peer;
    peer.size = sizeof peer.storage;
    result = calls.peer_name(handle, peer.get(), &peer.size);
    if (result == -ENOTCONN) result = any(ready, ends) ? -ECONNREFUSED : not_yet;
  }
  return result < 0 || result == not_yet ? result : 0;
}

}  // namespace evix::detail
