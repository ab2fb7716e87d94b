#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "degraded/measures.hpp"

#if defined(__x86_64__)
#define EVIX_AUDIT_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define EVIX_AUDIT_ARCH AUDIT_ARCH_AARCH64
#else
#define EVIX_AUDIT_ARCH 0
#endif

namespace evix::degraded {
namespace {

/** A call, or those of its uses in which an argument has certain bits. */
struct Refusable {
  const char* name;
  long number;
  unsigned argument = 0;
  std::uint32_t mask = 0;  // 0: every use
  std::uint32_t value = 0;
};

constexpr std::uint32_t whole = UINT32_MAX;
constexpr std::uint32_t signal_number = SIGUSR1;

// Numbers of io_uring_register(2) and flags of io_uring_enter(2), which older headers lack.
constexpr std::array refusables{
    Refusable{"io_uring_setup", SYS_io_uring_setup},
    Refusable{"io_uring_enter", SYS_io_uring_enter},
    Refusable{"io_uring_enter/EXT_ARG", SYS_io_uring_enter, 3, 1U << 3, 1U << 3},
    Refusable{"io_uring_register", SYS_io_uring_register},
    Refusable{"io_uring_register/PROBE", SYS_io_uring_register, 1, whole, 8},
    Refusable{"io_uring_register/ENABLE_RINGS", SYS_io_uring_register, 1, whole, 12},
    Refusable{"io_uring_register/RING_FDS", SYS_io_uring_register, 1, whole, 20},
    Refusable{"io_uring_register/PBUF_RING", SYS_io_uring_register, 1, whole, 22},
    Refusable{"mmap/POPULATE", SYS_mmap, 3, MAP_POPULATE, MAP_POPULATE},
    Refusable{"madvise/DONTFORK", SYS_madvise, 2, whole, MADV_DONTFORK},
    Refusable{"epoll_create1", SYS_epoll_create1},
    Refusable{"epoll_ctl", SYS_epoll_ctl},
#ifdef SYS_epoll_wait
    Refusable{"epoll_wait", SYS_epoll_wait},
#else
    Refusable{"epoll_wait", SYS_epoll_pwait},
#endif
    Refusable{"epoll_pwait2", SYS_epoll_pwait2},
    Refusable{"ppoll", SYS_ppoll},
    Refusable{"eventfd2", SYS_eventfd2},
    Refusable{"rt_sigaction/USR1", SYS_rt_sigaction, 0, whole, signal_number},
    Refusable{"socket", SYS_socket},
    Refusable{"bind", SYS_bind},
    Refusable{"listen", SYS_listen},
    Refusable{"accept4", SYS_accept4},
    Refusable{"connect", SYS_connect},
    Refusable{"sendto", SYS_sendto},
    Refusable{"recvfrom", SYS_recvfrom},
    Refusable{"shutdown", SYS_shutdown},
    Refusable{"getsockname", SYS_getsockname},
    Refusable{"getpeername", SYS_getpeername},
    Refusable{"getsockopt/ERROR", SYS_getsockopt, 2, whole, SO_ERROR},
    Refusable{"setsockopt/REUSEADDR", SYS_setsockopt, 2, whole, SO_REUSEADDR},
    Refusable{"setsockopt/NODELAY", SYS_setsockopt, 2, whole, TCP_NODELAY},
    Refusable{"fcntl/GETFL", SYS_fcntl, 1, whole, F_GETFL},
    Refusable{"clone3", SYS_clone3},
    // What a library like this could use, and this one does not.
    Refusable{"timerfd_create", SYS_timerfd_create},
    Refusable{"signalfd4", SYS_signalfd4},
    Refusable{"pidfd_open", SYS_pidfd_open},
};

constexpr auto nothing_more = static_cast<std::uint8_t>(0);

sock_filter statement(unsigned code, std::uint32_t operand) {
  return {static_cast<std::uint16_t>(code), nothing_more, nothing_more, operand};
}

/** Goes on with the next when equal, else passes over `count`. */
sock_filter unless_equal(std::uint32_t operand, std::uint8_t count) {
  return {static_cast<std::uint16_t>(BPF_JMP | BPF_JEQ | BPF_K), nothing_more, count, operand};
}

constexpr unsigned load_word = BPF_LD | BPF_W | BPF_ABS;

void append(std::vector<sock_filter>& program, const Refusable& call, int error) {
  // The lower half of an argument, on little-endian machines.
  const auto place = offsetof(seccomp_data, args) + call.argument * sizeof(std::uint64_t);
  const bool narrowed = call.mask != 0;
  program.push_back(statement(load_word, offsetof(seccomp_data, nr)));
  program.push_back(unless_equal(static_cast<std::uint32_t>(call.number), narrowed ? 4 : 1));
  if (narrowed) {
    program.push_back(statement(load_word, static_cast<std::uint32_t>(place)));
    program.push_back(statement(BPF_ALU | BPF_AND | BPF_K, call.mask));
    program.push_back(unless_equal(call.value, 1));
  }
  const std::uint32_t refusal = SECCOMP_RET_ERRNO | (static_cast<unsigned>(error) & 0xffffU);
  program.push_back(statement(BPF_RET | BPF_K, refusal));
}

/**
 * With arguments that no kernel accepts, so that nothing happens when it is not refused. Not -1,
 * which means something to some calls.
 */
int error_of(const Refusable& call) {
  long arguments[6] = {-2, -2, -2, -2, -2, -2};
  if (call.mask != 0) arguments[call.argument] = static_cast<long>(call.value);
  errno = 0;
  (void)syscall(call.number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                arguments[5]);
  return errno;
}

struct Refusal {
  const Refusable* call;
  int error;
};

std::vector<Refusal> parse(std::string_view list) {
  std::vector<Refusal> refusals;
  while (!list.empty()) {
    const std::string_view one = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), one.size() + 1));
    const std::size_t colon = one.find(':');
    const Refusable* found = nullptr;
    for (const Refusable& call : refusables) {
      if (one.substr(0, colon) == call.name) found = &call;
    }
    if (found == nullptr || colon == std::string_view::npos) {
      throw std::invalid_argument("no such call: " + std::string(one));
    }
    const auto error = test::errno_number(one.substr(colon + 1));
    if (!error) throw std::invalid_argument("no such error: " + std::string(one));
    refusals.push_back({found, *error});
  }
  return refusals;
}

void install(std::vector<sock_filter>& instructions) {
  const sock_fprog program{static_cast<unsigned short>(instructions.size()), instructions.data()};
  made(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS");
  made(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0, "a seccomp filter");
}

std::string refuse_calls(const std::string& list) {
  if (EVIX_AUDIT_ARCH == 0) throw Unmakeable("no seccomp filter for this processor");
  const std::vector<Refusal> refusals = parse(list);
  std::vector<sock_filter> program{statement(load_word, offsetof(seccomp_data, arch)),
                                   unless_equal(EVIX_AUDIT_ARCH, 1),
                                   // Goes on behind the verdict for other architectures.
                                   sock_filter{BPF_JMP | BPF_JA, nothing_more, nothing_more, 1},
                                   statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  for (const Refusal& refusal : refusals) {
    if (error_of(*refusal.call) == refusal.error) {
      throw Unmakeable(std::string(refusal.call->name) + " says " + errno_name(refusal.error) +
                       " already");
    }
    append(program, *refusal.call, refusal.error);
  }
  program.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  install(program);
  std::string seen;
  for (const Refusal& refusal : refusals) {
    bites(error_of(*refusal.call) == refusal.error, std::string(refusal.call->name) + " is made");
    seen += (seen.empty() ? "" : ", ") + std::string(refusal.call->name) + " says " +
            errno_name(refusal.error);
  }
  return seen;
}

constexpr std::array measures{Measure{"refuse", refuse_calls}};

}  // namespace

std::span<const Measure> refusal_measures() { return measures; }

}  // namespace evix::degraded
