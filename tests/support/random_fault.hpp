#pragma once

#include <array>
#include <cerrno>
#include <cstdint>

#include "support/fault_calls.hpp"

/** @file
 * A fault that a program on Linux can meet, chosen at random.
 */
namespace evix::test {

/**
 * Makes one of the next three calls of a kind fail, sometimes two in a row, or some of the next
 * sends short. Not receives: the kernel gives all there is (epoll(7), question 9).
 * @param below gives a number in [0, bound), as a test's source of choices does
 */
template <class Below>
void inject_random_fault(detail::FaultCalls& calls, Below below) {
  using enum detail::CallId;
  struct Fault {
    detail::CallId call;
    int error;
  };
  constexpr std::array<Fault, 25> faults = {{
      {receive, EINTR},       {receive, ECONNRESET},   {receive, ETIMEDOUT},
      {send, EINTR},          {send, EPIPE},           {send, ECONNRESET},
      {send, ENOBUFS},        {accept, EINTR},         {accept, ECONNABORTED},
      {accept, EMFILE},       {accept, ENOMEM},        {accept, EPERM},
      {connect, EINTR},       {connect, ENETUNREACH},  {connect, EADDRINUSE},
      {socket, EMFILE},       {get_option, ENOBUFS},   {shutdown, ENOTCONN},
      {close, EINTR},         {epoll_control, ENOMEM}, {epoll_control, ENOSPC},
      {epoll_wait_ns, EINTR}, {poll, EINTR},           {event_write, EINTR},
      {set_option, ENOBUFS},
  }};
  const Fault fault = faults[below(faults.size())];
  const bool shortens = below(4) == 0;
  const std::uint64_t nth = 1 + below(3);
  if (shortens) {
    const std::uint64_t size = 1 + below(3000);
    calls.shorten(send, nth, size, below(5));
  } else {
    calls.fail(fault.call, nth, fault.error, 1 + below(2));
  }
}

}  // namespace evix::test
