#include <fmt/format.h>

#include <cstdio>
#include <evix/loop.hpp>
#include <nlohmann/json.hpp>
#include <string_view>

#include "advice.hpp"
#include "commands.hpp"
#include "parse.hpp"
#include "system.hpp"

namespace evix::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Diagnosis {
  BackendReport report;
  std::optional<Error> failure;  // why no loop can be made
  ResourceLimit descriptors = descriptor_limit();
  ResourceLimit locked_bytes = locked_memory_limit_bytes();
  std::optional<std::uint64_t> backlog_max = listen_backlog_max();
  std::string kernel = kernel_name_and_release();
  unsigned cores = core_count();
};

// Makes a loop, because that alone shows what a program would get; the probe tries the others too.
Diagnosis diagnose(BackendKind backend) {
  const Result<Loop> loop = Loop::create({.backend = backend});
  Diagnosis diagnosis{.report = probe_backends(backend), .failure = std::nullopt};
  if (loop) return diagnosis;
  diagnosis.failure = loop.error();
  for (BackendChoice& choice : diagnosis.report.choices) choice.chosen = false;
  return diagnosis;
}

Json json_or_null(const std::optional<std::uint64_t>& value) {
  return value ? Json(*value) : Json(nullptr);
}

void print_json(const Diagnosis& diagnosis) {
  Json choices = Json::array();
  for (const BackendChoice& choice : diagnosis.report.choices) {
    choices.push_back({{"name", to_string(choice.kind)},
                       {"available", choice.available},
                       {"chosen", choice.chosen},
                       {"reason", choice.reason}});
  }
  const Json limits = {{"nofile_soft", json_or_null(diagnosis.descriptors.soft)},
                       {"nofile_hard", json_or_null(diagnosis.descriptors.hard)},
                       {"memlock_soft_bytes", json_or_null(diagnosis.locked_bytes.soft)},
                       {"memlock_hard_bytes", json_or_null(diagnosis.locked_bytes.hard)},
                       {"somaxconn", json_or_null(diagnosis.backlog_max)}};
  Json report = {{"version", EVIX_VERSION_TEXT},
                 {"kernel", diagnosis.kernel},
                 {"cores", diagnosis.cores},
                 {"backend", nullptr},
                 {"decided_by", diagnosis.report.decided_by},
                 {"error", nullptr},
                 {"backends", choices},
                 {"fallbacks", diagnosis.report.fallbacks},
                 {"limits", limits}};
  if (diagnosis.failure) {
    report["error"] = diagnosis.failure->message();
  } else {
    report["backend"] = to_string(diagnosis.report.chosen);
  }
  fmt::print("{}\n", report.dump(2));
}

std::string limit_text(const std::optional<std::uint64_t>& value) {
  return value ? format_count(*value) : "unlimited";
}

void print_limit(std::string_view name, const ResourceLimit& limit) {
  fmt::print("  {:<16}{} (hard limit {})\n", name, limit_text(limit.soft), limit_text(limit.hard));
}

void print_text(const Diagnosis& diagnosis) {
  const BackendReport& report = diagnosis.report;
  fmt::print("evix {} on {}, {} core{}\n\n", EVIX_VERSION_TEXT, diagnosis.kernel, diagnosis.cores,
             diagnosis.cores == 1 ? "" : "s");
  fmt::print("backend: {} ({})\n", diagnosis.failure ? "none" : to_string(report.chosen),
             report.decided_by);
  for (const BackendChoice& choice : report.choices) {
    fmt::print("  {} {:<10}{}\n", choice.chosen ? '*' : ' ', to_string(choice.kind), choice.reason);
  }
  fmt::print("\nfallbacks:{}\n", report.fallbacks.empty() ? " none" : "");
  for (const std::string& fallback : report.fallbacks) fmt::print("  {}\n", fallback);
  fmt::print("\nlimits:\n");
  print_limit("descriptors", diagnosis.descriptors);
  print_limit("locked bytes", diagnosis.locked_bytes);
  fmt::print("  {:<16}{}\n", "listen backlog",
             diagnosis.backlog_max ? format_count(*diagnosis.backlog_max) : "not known here");
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
  const Diagnosis diagnosis = diagnose(options.backend);
  if (options.json) {
    print_json(diagnosis);
  } else {
    print_text(diagnosis);
  }
  if (!diagnosis.failure) return exit_ok;
  fmt::print(stderr, "evix: no loop can run in this way: {}\n", diagnosis.failure->message());
  return exit_failed;
}

}  // namespace evix::cli
