#pragma once

#include <string>

#include "torture/session.hpp"

namespace evix::test {

struct ChildOptions {
  std::string test;  ///< its full name
  Fault fault;
  Allowance allowance;
  bool talks = false;  ///< what the test prints is to be seen
};

/** In a process that was forked for it: runs the test with the fault. */
[[noreturn]] void run_child(const ChildOptions& options, Report& report);

}  // namespace evix::test
