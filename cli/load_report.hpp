#pragma once

#include <cstdint>
#include <evix/error.hpp>
#include <string>
#include <vector>

#include "histogram.hpp"
#include "options.hpp"

namespace evix::cli {

// One kind of failure: the first of its operation and code stands for all.
struct LoadFailure {
  Error first;
  std::uint64_t count;
};

// What a load did. `errors` counts connections that could not be made or ended before their time.
struct LoadReport {
  std::string backend;
  Duration measured = Duration::zero();
  std::uint64_t requests = 0;  // came back whole in the measured time
  std::uint64_t echoes_min_per_connection = 0;
  std::uint64_t errors = 0;
  std::uint64_t ended_early = 0;  // of the errors: the server closed the connection
  std::uint64_t not_tried = 0;    // of the errors: connections given up after a time-out
  std::uint64_t lost_bytes = 0;
  std::uint64_t wrong_bytes = 0;
  Histogram latency_ns;
  std::vector<LoadFailure> failures;

  bool clean() const { return errors == 0 && lost_bytes == 0 && wrong_bytes == 0; }
  double requests_per_second() const;
  void add_failure(const Error& error);
};

// Prints the report as the options want it, and the failures with advice to standard error.
void print_report(const LoadReport& report, const LoadOptions& options);

}  // namespace evix::cli
