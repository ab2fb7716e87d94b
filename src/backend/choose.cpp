#include "backend/choose.hpp"

#include <array>

#include "backend/sim.hpp"
#include "poll/driver.hpp"
#include "sys/calls.hpp"
#include "sys/error.hpp"
#include "sys/process.hpp"

namespace evix {
namespace {

struct Named {
  BackendKind kind;
  std::string_view name;
};

constexpr std::array names{
    Named{BackendKind::automatic, "automatic"}, Named{BackendKind::io_uring, "io_uring"},
    Named{BackendKind::epoll, "epoll"},         Named{BackendKind::kqueue, "kqueue"},
    Named{BackendKind::poll, "poll"},           Named{BackendKind::sim, "sim"},
    Named{BackendKind::custom, "custom"},
};

}  // namespace

std::string_view to_string(BackendKind kind) noexcept {
  for (const Named& named : names) {
    if (named.kind == kind) return named.name;
  }
  return "unknown";
}

Result<BackendKind> backend_kind(std::string_view name) {
  for (const Named& named : names) {
    if (named.name == name && named.kind != BackendKind::custom) return named.kind;
  }
  return detail::failure(Errc::backend_unknown, "choose backend", Subject::text(name));
}

namespace detail {
namespace {

// In the order of preference; sim is never chosen by itself.
constexpr std::array preference{BackendKind::io_uring, BackendKind::epoll, BackendKind::kqueue,
                                BackendKind::poll, BackendKind::sim};

/** Empty when the backend can be tried; else why not. */
std::string_view why_never(BackendKind kind) noexcept {
  switch (kind) {
    case BackendKind::io_uring:
      return "not part of this version of evix";
    case BackendKind::kqueue:
#if defined(__linux__)
      return "this is Linux, which has no kqueue";
#else
      return "not part of this version of evix";
    case BackendKind::epoll:
      return "only Linux has epoll";
#endif
    default:
      return "";
  }
}

struct Made {
  std::unique_ptr<Calls> own_calls;
  std::unique_ptr<PollDriver> driver;
  int error = 0;
};

Made make_driver(BackendKind kind, std::uint64_t sim_seed, Calls& calls) {
  Made made;
  switch (kind) {
    case BackendKind::epoll:
      made.driver = make_epoll_driver(calls, made.error);
      break;
    case BackendKind::poll:
      made.driver = make_poll_driver(calls, made.error);
      break;
    case BackendKind::sim: {
      Sim sim = make_sim(sim_seed);
      made.own_calls = std::move(sim.calls);
      made.driver = std::move(sim.driver);
      break;
    }
    default:
      break;
  }
  return made;
}

std::string refused(int error) { return "the kernel refuses it: " + make_code(-error).message(); }

// Fills the report and returns what was made for the chosen one.
Made choose(BackendKind wanted, std::uint64_t sim_seed, Calls& calls, BackendReport& report) {
  Made chosen;
  for (const BackendKind kind : preference) {
    BackendChoice choice{kind, false, false, std::string(why_never(kind))};
    const bool may_be_chosen =
        wanted == kind || (wanted == BackendKind::automatic && kind != BackendKind::sim);
    if (choice.reason.empty()) {
      Made made = make_driver(kind, sim_seed, calls);
      choice.available = made.driver != nullptr;
      choice.chosen = choice.available && may_be_chosen && chosen.driver == nullptr;
      if (!choice.available) {
        choice.reason = refused(made.error);
      } else if (choice.chosen) {
        choice.reason = wanted == kind ? "asked for" : "the best that works here";
        report.chosen = kind;
        chosen = std::move(made);
      } else if (kind == BackendKind::sim) {
        choice.reason = "works; simulates, so it is never chosen by itself";
      } else {
        choice.reason = wanted == BackendKind::automatic ? "works; a better one was found"
                                                         : "works; another one was asked for";
      }
    }
    report.choices.push_back(std::move(choice));
  }
  return chosen;
}

struct Wanted {
  BackendKind kind;
  const char* decided_by;
};

Result<Wanted> resolve(BackendKind wish) {
  if (wish != BackendKind::automatic) return Wanted{wish, "LoopOptions::backend"};
  const char* name = environment("EVIX_BACKEND");
  if (name == nullptr || *name == '\0') return Wanted{wish, "automatic choice"};
  const auto kind = backend_kind(name);
  if (!kind) return std::unexpected(kind.error());
  return Wanted{*kind, *kind == BackendKind::automatic ? "automatic choice" : "EVIX_BACKEND"};
}

// The reason is in the report of probe_backends(); a subject is short.
Error unavailable(BackendKind wanted) {
  return make_error(Errc::backend_unavailable, "choose backend", Subject::text(to_string(wanted)));
}

}  // namespace

Result<ChosenBackend> choose_backend(const BackendWish& wish, Calls& calls, BufferPool& pool) {
  const auto wanted = resolve(wish.kind);
  if (!wanted) return std::unexpected(wanted.error());
  ChosenBackend result;
  result.report.decided_by = wanted->decided_by;
  Made made = choose(wanted->kind, wish.sim_seed, calls, result.report);
  if (made.driver == nullptr) return Failure(unavailable(wanted->kind));
  result.own_calls = std::move(made.own_calls);
  Calls& used = result.own_calls != nullptr ? *result.own_calls : calls;
  result.backend = make_readiness_backend(std::move(made.driver), used, pool);
  result.report.fallbacks = result.backend->fallbacks();
  return result;
}

}  // namespace detail

BackendReport probe_backends(BackendKind wanted) {
  BackendReport report;
  const auto resolved = detail::resolve(wanted);
  // Nothing is chosen for a name that does not exist, as no loop would be made.
  const BackendKind kind = resolved ? resolved->kind : BackendKind::custom;
  report.decided_by = resolved ? resolved->decided_by : resolved.error().message();
  detail::Calls& kernel = detail::Calls::kernel();
  detail::Made made = detail::choose(kind, 1, kernel, report);
  if (made.driver == nullptr) return report;
  detail::BufferPool* pool = detail::BufferPool::make(1);
  report.fallbacks =
      detail::make_readiness_backend(std::move(made.driver), kernel, *pool)->fallbacks();
  pool->abandon();
  return report;
}

}  // namespace evix
