#pragma once

#include "options.hpp"

namespace evix::cli {

// Each runs one command to its end and returns the exit code.
int run_doctor(const DoctorOptions& options);
int run_echo(const EchoOptions& options);
int run_load(const LoadOptions& options);

}  // namespace evix::cli
