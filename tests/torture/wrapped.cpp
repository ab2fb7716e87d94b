// The doors between the library and the kernel, and between the loop and its backend. The linker
// puts these functions in place of the library's (--wrap, cmake/Evix_tests.cmake), so that every
// loop of every test goes through them and no test knows.

#include <memory>
#include <string>

#include "backend/contract.hpp"
#include "backend/sim.hpp"
#include "poll/driver.hpp"
#include "support/fault_calls.hpp"
#include "torture/ledger.hpp"
#include "torture/session.hpp"

namespace evix::test {

using detail::Backend;
using detail::BufferPool;
using detail::CallId;
using detail::Calls;
using detail::FaultCalls;
using detail::PollDriver;

// The library's own, by the names that the linker gives them.
Calls& kernel_itself() asm("__real__ZN4evix6detail5Calls6kernelEv");
detail::Sim make_sim_itself(std::uint64_t seed) asm("__real__ZN4evix6detail8make_simEm");
std::unique_ptr<Backend>
make_readiness_itself(std::unique_ptr<PollDriver> driver, Calls& calls, BufferPool& pool) asm(
    "__real__ZN4evix6detail22make_readiness_backendESt10unique_ptrINS0_10Poll"
    "DriverESt14default_deleteIS2_EERNS0_5CallsERNS0_10BufferPoolE");
std::unique_ptr<Backend>
make_io_uring_itself(Calls& calls, BufferPool& pool, int& error, std::string& why) asm(
    "__real__ZN4evix6detail21make_io_uring_backendERNS0_5CallsERNS0_10Buffer"
    "PoolERiRNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");

namespace {

/** Counts the calls, makes the one fail that is to fail, and knows which descriptors are left. */
class TortureCalls : public FaultCalls {
 public:
  TortureCalls(Calls& inner, bool simulated) : FaultCalls(inner), simulated_(simulated) {
    before = [this](CallId id) { before_call(id); };
  }

  int socket(int domain, int type, int protocol) noexcept override {
    return made(FaultCalls::socket(domain, type, protocol));
  }
  int accept(int fd) noexcept override { return made(FaultCalls::accept(fd)); }
  int epoll_create() noexcept override { return made(FaultCalls::epoll_create()); }
  int event_create() noexcept override { return made(FaultCalls::event_create()); }
  int ring_setup(unsigned entries, void* parameters) noexcept override {
    return made(FaultCalls::ring_setup(entries, parameters));
  }
  int close(int fd) noexcept override {
    descriptor_closed(fd);
    return FaultCalls::close(fd);
  }
  int memory_map(int fd, std::size_t size, std::uint64_t offset, void** memory) noexcept override {
    const int error = FaultCalls::memory_map(fd, size, offset, memory);
    if (error == 0) mapping_made(*memory);
    return error;
  }
  int memory_unmap(void* memory, std::size_t size) noexcept override {
    mapping_gone(memory);
    return FaultCalls::memory_unmap(memory, size);
  }

 private:
  void before_call(CallId id) noexcept {
    Session* const session = Session::current();
    if (session == nullptr) return;
    // Events and signals of a simulated loop are the kernel's: its table counts them.
    const bool passed_on = id == CallId::event_create || id == CallId::event_read ||
                           id == CallId::event_write || id == CallId::signal_action;
    if (simulated_ && passed_on) return;
    makes_ring_operations = session->fault().ring_operations;
    if (!session->call(id)) return;
    const Fault& fault = session->fault();
    if (fault.kind == FaultKind::shortened) return shorten(id, 1, 1);
    fail(id, 1, fault.error);
  }
  int made(int fd) noexcept {
    if (!simulated_) descriptor_made(fd);
    return fd;
  }

  const bool simulated_;
};

/** The simulator's table with the one around it, which is made first and goes last. */
struct SimTable {
  std::unique_ptr<Calls> simulated;
};
class SimTortureCalls final : private SimTable, public TortureCalls {
 public:
  explicit SimTortureCalls(std::unique_ptr<Calls> calls)
      : SimTable{std::move(calls)}, TortureCalls(*simulated, true) {}
};

std::unique_ptr<Backend> with_ledger(std::unique_ptr<Backend> backend) {
  if (backend == nullptr || Session::current() == nullptr) return backend;
  return std::make_unique<LedgerBackend>(std::move(backend));
}

}  // namespace

Calls& kernel_of_test() asm("__wrap__ZN4evix6detail5Calls6kernelEv");
Calls& kernel_of_test() {
  static auto& calls = *new TortureCalls(kernel_itself(), false);
  return calls;
}

detail::Sim make_sim_of_test(std::uint64_t seed) asm("__wrap__ZN4evix6detail8make_simEm");
detail::Sim make_sim_of_test(std::uint64_t seed) {
  detail::Sim sim = make_sim_itself(seed);
  return {std::make_unique<SimTortureCalls>(std::move(sim.calls)), std::move(sim.driver)};
}

std::unique_ptr<Backend>
make_readiness_of_test(std::unique_ptr<PollDriver> driver, Calls& calls, BufferPool& pool) asm(
    "__wrap__ZN4evix6detail22make_readiness_backendESt10unique_ptrINS0_10Poll"
    "DriverESt14default_deleteIS2_EERNS0_5CallsERNS0_10BufferPoolE");
std::unique_ptr<Backend> make_readiness_of_test(std::unique_ptr<PollDriver> driver, Calls& calls,
                                                BufferPool& pool) {
  return with_ledger(make_readiness_itself(std::move(driver), calls, pool));
}

std::unique_ptr<Backend>
make_io_uring_of_test(Calls& calls, BufferPool& pool, int& error, std::string& why) asm(
    "__wrap__ZN4evix6detail21make_io_uring_backendERNS0_5CallsERNS0_10Buffer"
    "PoolERiRNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
std::unique_ptr<Backend> make_io_uring_of_test(Calls& calls, BufferPool& pool, int& error,
                                               std::string& why) {
  return with_ledger(make_io_uring_itself(calls, pool, error, why));
}

std::int64_t true_time_ns() noexcept { return kernel_itself().Calls::clock_now(); }

}  // namespace evix::test
