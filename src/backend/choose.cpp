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
#if !defined(__linux__)
    case BackendKind::io_uring:
      return "only Linux has io_uring";
    case BackendKind::epoll:
      return "only Linux has epoll";
    case BackendKind::kqueue:
      return "not part of this version of evix";
#else
#if defined(EVIX_WITHOUT_IO_URING)
    case BackendKind::io_uring:
      return "left out when evix was built (EVIX_IO_URING)";
#endif
    case BackendKind::kqueue:
      return "this is Linux, which has no kqueue";
#endif
    default:
      return "";
  }
}

struct Made {
  std::unique_ptr<Calls> own_calls;
  std::unique_ptr<PollDriver> driver;  // until it is chosen
  std::unique_ptr<Backend> backend;
  int error = 0;
  std::string why;  // of the error; empty: its text says it
};

Made make_kind(BackendKind kind, std::uint64_t sim_seed, Calls& calls,
               [[maybe_unused]] BufferPool& pool) {
  Made made;
  switch (kind) {
#if !defined(EVIX_WITHOUT_IO_URING)
    case BackendKind::io_uring:
      made.backend = make_io_uring_backend(calls, pool, made.error, made.why);
      break;
#endif
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

std::string refused(const Made& made) {
  if (!made.why.empty()) return made.why;
  return "the kernel refuses it: " + make_code(-made.error).message();
}

// By itself no simulation, and no io_uring: decision 0010.
bool may_choose(BackendKind kind, BackendKind wanted) noexcept {
  if (wanted != BackendKind::automatic) return wanted == kind;
  return kind != BackendKind::sim && kind != BackendKind::io_uring;
}

std::string_view why_not_chosen(BackendKind kind, BackendKind wanted) noexcept {
  if (kind == BackendKind::sim) return "works; simulates, so it is never chosen by itself";
  if (wanted != BackendKind::automatic) return "works; another one was asked for";
  return may_choose(kind, wanted)
             ? "works; a better one was found"
             : "works; sends at the end of a turn, so it is never chosen by itself";
}

struct Wish {
  BackendKind wanted;
  std::uint64_t sim_seed;
  bool tries_all;  // for the report
};

// Fills the report and returns what was made for the chosen one.
Made choose(const Wish& wish, Calls& calls, BufferPool& pool, BackendReport& report) {
  Made chosen;
  for (const BackendKind kind : preference) {
    BackendChoice choice{kind, false, false, std::string(why_never(kind))};
    const bool wanted = may_choose(kind, wish.wanted) && chosen.backend == nullptr;
    // A ring is not made only to be able to say that it works.
    const bool skipped = kind == BackendKind::io_uring && !wanted && !wish.tries_all;
    if (choice.reason.empty() && skipped) {
      choice.reason = "not tried";
    } else if (choice.reason.empty()) {
      Made made = make_kind(kind, wish.sim_seed, calls, pool);
      choice.available = made.driver != nullptr || made.backend != nullptr;
      choice.chosen = choice.available && wanted;
      if (!choice.available) {
        choice.reason = refused(made);
      } else if (choice.chosen) {
        choice.reason = wish.wanted == kind ? "asked for" : "the best that works here";
        report.chosen = kind;
        chosen = std::move(made);
        if (chosen.backend == nullptr) {
          Calls& used = chosen.own_calls != nullptr ? *chosen.own_calls : calls;
          chosen.backend = make_readiness_backend(std::move(chosen.driver), used, pool);
        }
        report.fallbacks = chosen.backend->fallbacks();
      } else {
        choice.reason = why_not_chosen(kind, wish.wanted);
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
  Made made = choose({wanted->kind, wish.sim_seed, false}, calls, pool, result.report);
  if (made.backend == nullptr) return Failure(unavailable(wanted->kind));
  result.own_calls = std::move(made.own_calls);
  result.backend = std::move(made.backend);
  return result;
}

}  // namespace detail

BackendReport probe_backends(BackendKind wanted) {
  BackendReport report;
  const auto resolved = detail::resolve(wanted);
  // Nothing is chosen for a name that does not exist, as no loop would be made.
  const BackendKind kind = resolved ? resolved->kind : BackendKind::custom;
  report.decided_by = resolved ? resolved->decided_by : resolved.error().message();
  detail::BufferPool* pool = detail::BufferPool::make(1);
  (void)detail::choose({kind, 1, true}, detail::Calls::kernel(), *pool, report);
  pool->abandon();
  return report;
}

}  // namespace evix
