#pragma once

#include <sys/poll.h>
#include <evix/ready.hpp>

/** @file
 * The bits of Ready are those of poll(2), so that nothing converts them.
 */
namespace evix::detail {

static_assert(POLLIN == static_cast<int>(Ready::readable) &&
              POLLPRI == static_cast<int>(Ready::priority) &&
              POLLOUT == static_cast<int>(Ready::writable) &&
              POLLERR == static_cast<int>(Ready::error) &&
              POLLHUP == static_cast<int>(Ready::hangup) &&
              POLLNVAL == static_cast<int>(Ready::invalid) &&
              POLLRDHUP == static_cast<int>(Ready::read_closed));

/**
 * What the kernel is asked for. The peer's half-close belongs to reading: a level-triggered
 * interest in writing alone would otherwise wake for ever when the peer has shut its side.
 */
constexpr Ready with_read_closed(Ready interest) noexcept {
  return any(interest, Ready::readable) ? interest | Ready::read_closed : interest;
}

}  // namespace evix::detail
