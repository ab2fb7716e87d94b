#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "support/errno_names.hpp"

/** @file
 * What the launcher does to itself before it becomes the self-test. Each measure is applied and
 * then seen to bite, in words for the table of `tests/degraded/run`.
 */
namespace evix::degraded {

/** This machine, or this user, cannot make the environment: a skip with the reason. */
struct Unmakeable : std::runtime_error {
  using runtime_error::runtime_error;
};

/** The environment was made and has no effect: then a self-test that passes shows nothing. */
struct Toothless : std::runtime_error {
  using runtime_error::runtime_error;
};

using test::errno_name;

/** Throws Toothless with `what`. */
void bites(bool condition, const std::string& what);
/** Throws Unmakeable with `what` and the name of errno. */
void made(bool condition, const std::string& what);

/** The part behind "name=". */
using Apply = std::string (*)(const std::string& argument);
struct Measure {
  const char* name;
  Apply apply;
};

/** `refuse`, of "io_uring_setup:EPERM,epoll_pwait2:ENOSYS": by a seccomp filter, for good. */
std::span<const Measure> refusal_measures();
/** Limits, users and what a process inherits. */
std::span<const Measure> process_measures();
/** Namespaces, mounts, shares of a processor: what some machines do not allow. */
std::span<const Measure> machine_measures();

}  // namespace evix::degraded
