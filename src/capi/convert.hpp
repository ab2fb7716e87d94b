#pragma once

#include <evix/poller.hpp>
#include <evix/time.hpp>

#include <cstdint>
#include <cstring>

#include "evix.h"

/** @file
 * Values of the C API and of the C++ API, into each other.
 */
namespace evix::detail::capi {

/** A delay or period; what does not fit is never. */
constexpr Duration to_duration(std::uint64_t value, std::uint64_t unit_ns = 1) noexcept {
  if (value > static_cast<std::uint64_t>(forever.count()) / unit_ns) return forever;
  return Duration(static_cast<std::int64_t>(value * unit_ns));
}

/** A timeout; negative is no limit. */
constexpr Duration to_timeout(std::int64_t timeout_ns) noexcept {
  return timeout_ns < 0 ? forever : Duration(timeout_ns);
}

inline constexpr int interest_events = EVIX_IO_READ | EVIX_IO_WRITE | EVIX_IO_PRIORITY;
inline constexpr int all_events =
    interest_events | EVIX_IO_ERROR | EVIX_IO_HANGUP | EVIX_IO_READ_CLOSED | EVIX_IO_INVALID;

struct EventBit {
  int event;
  Ready ready;
};
inline constexpr EventBit event_bits[] = {
    {EVIX_IO_READ, Ready::readable},     {EVIX_IO_WRITE, Ready::writable},
    {EVIX_IO_PRIORITY, Ready::priority}, {EVIX_IO_ERROR, Ready::error},
    {EVIX_IO_HANGUP, Ready::hangup},     {EVIX_IO_READ_CLOSED, Ready::read_closed},
    {EVIX_IO_INVALID, Ready::invalid},
};

constexpr Ready to_ready(int events) noexcept {
  Ready ready = Ready::none;
  for (const EventBit& bit : event_bits) {
    if ((events & bit.event) != 0) ready |= bit.ready;
  }
  return ready;
}

constexpr int to_events(Ready ready) noexcept {
  int events = 0;
  for (const EventBit& bit : event_bits) {
    if (any(ready, bit.ready)) events |= bit.event;
  }
  return events;
}

/** Whether an older version of T may have this size: it ends between two fields, never in one. */
template <class T>
constexpr bool valid_size(std::size_t size) noexcept {
  return size >= sizeof(std::size_t) && size <= sizeof(T) && size % alignof(T) == 0;
}

/**
 * A structure that begins with its size (convention 7), as far as the program knows it; the rest
 * is zero. @return false for a size that no version of it has, or a later one.
 */
template <class T>
bool read_options(const T* from, T& options) noexcept {
  options = T{};
  if (from == nullptr) return true;
  const std::size_t size = from->size;
  if (!valid_size<T>(size)) return false;
  std::memcpy(&options, from, size);
  return true;
}

}  // namespace evix::detail::capi
