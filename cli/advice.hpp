#pragma once

#include <evix/error.hpp>
#include <evix/loop.hpp>
#include <string>

#include "options.hpp"

namespace evix::cli {

// What the user can do about an error; empty where nothing better than the message is known.
std::string advice(const Error& error);

// Prints `evix: MESSAGE` and the advice to the standard error stream.
// Returns exit_failed, so that a command can end with it.
int complain_with_advice(const Error& error);

// A loop on a backend that reaches the network; complains when there is none.
std::expected<Loop, int> make_network_loop(const LoopOptions& options);

}  // namespace evix::cli
