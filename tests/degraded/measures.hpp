#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

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

/** "ENOENT", else the number. */
std::string errno_name(int error);
/** "EPERM" and so on as a number; throws std::invalid_argument for another word. */
int errno_number(std::string_view name);

/** Throws Toothless with `what`. */
void bites(bool condition, const std::string& what);
/** Throws Unmakeable with `what` and the name of errno. */
void made(bool condition, const std::string& what);

/** "io_uring_setup:EPERM,epoll_pwait2:ENOSYS": by a seccomp filter, for good. */
std::string refuse_calls(std::string_view list);

/** The part behind "name=". */
using Apply = std::string (*)(const std::string& argument);
struct Measure {
  const char* name;
  Apply apply;
};

/** Limits, users and what a process inherits; nullptr for another name. */
Apply find_process_measure(std::string_view name);
/** Namespaces, mounts, shares of a processor: what some machines do not allow. */
Apply find_machine_measure(std::string_view name);

}  // namespace evix::degraded
