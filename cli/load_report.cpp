#include "load_report.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "advice.hpp"
#include "parse.hpp"

namespace evix::cli {

namespace {

double seconds(Duration duration) { return static_cast<double>(duration.count()) * 1e-9; }

void print_json(const LoadReport& report, const LoadOptions& options) {
  using Json = nlohmann::ordered_json;
  const Histogram& latency = report.latency_ns;
  const Json object = {{"connections", options.connections},
                       {"size_bytes", options.size_bytes},
                       {"pipeline", options.pipeline},
                       {"backend", report.backend},
                       {"duration_seconds", seconds(report.measured)},
                       {"requests", report.requests},
                       {"requests_per_second", report.requests_per_second()},
                       {"echoes_min_per_connection", report.echoes_min_per_connection},
                       {"errors", report.errors},
                       {"lost_bytes", report.lost_bytes},
                       {"wrong_bytes", report.wrong_bytes},
                       {"latency_ns",
                        {{"p50", latency.percentile(500)},
                         {"p90", latency.percentile(900)},
                         {"p99", latency.percentile(990)},
                         {"p999", latency.percentile(999)},
                         {"max", latency.max()}}}};
  fmt::print("{}\n", object.dump(2));
}

void print_table(const LoadReport& report, const LoadOptions& options) {
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("{:<24}{:>16}\n", name, value);
  };
  fmt::print("{} connections, {} bytes, {} in flight on each, backend {}, {:.2f} s\n",
             options.connections, options.size_bytes, options.idle ? 0 : options.pipeline,
             report.backend, seconds(report.measured));
  row("requests", format_count(report.requests));
  row("requests/s", format_count(static_cast<std::uint64_t>(report.requests_per_second())));
  row("least on a connection", format_count(report.echoes_min_per_connection));
  row("errors", format_count(report.errors));
  row("lost bytes", format_count(report.lost_bytes));
  row("wrong bytes", format_count(report.wrong_bytes));
  if (report.latency_ns.count() == 0) return;
  row("latency p50", format_duration(report.latency_ns.percentile(500)));
  row("latency p90", format_duration(report.latency_ns.percentile(900)));
  row("latency p99", format_duration(report.latency_ns.percentile(990)));
  row("latency p99.9", format_duration(report.latency_ns.percentile(999)));
  row("latency max", format_duration(report.latency_ns.max()));
}

}  // namespace

double LoadReport::requests_per_second() const {
  return measured > Duration::zero() ? static_cast<double>(requests) / seconds(measured) : 0.0;
}

void LoadReport::add_failure(const Error& error) {
  ++errors;
  for (LoadFailure& failure : failures) {
    if (failure.first.code() == error.code() &&
        std::strcmp(failure.first.operation(), error.operation()) == 0) {
      ++failure.count;
      return;
    }
  }
  failures.push_back({error, 1});
}

void print_report(const LoadReport& report, const LoadOptions& options) {
  if (options.json) {
    print_json(report, options);
  } else {
    print_table(report, options);
  }
  std::fflush(stdout);
  const auto complain_about = [](std::uint64_t count, const char* what) {
    if (count == 0) return;
    fmt::print(stderr, "evix: {} connection{} {}\n", format_count(count), count == 1 ? "" : "s",
               what);
  };
  complain_about(report.ended_early, "closed by the server before the end");
  complain_about(report.not_tried, "not tried any more after one had timed out");
  for (const LoadFailure& failure : report.failures) {
    const std::string hint = advice(failure.first);
    fmt::print(stderr, "evix: {} ({} time{})\n", failure.first.message(),
               format_count(failure.count), failure.count == 1 ? "" : "s");
    if (!hint.empty()) fmt::print(stderr, "      {}\n", hint);
  }
}

}  // namespace evix::cli
