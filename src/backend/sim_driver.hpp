#pragma once

#include <cerrno>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/sim_kernel.hpp"
#include "poll/driver.hpp"

namespace evix::detail {

/** Readiness and time of the simulated kernel; see sim.hpp. */
class SimDriver final : public PollDriver {
 public:
  explicit SimDriver(std::shared_ptr<SimKernel> kernel) : kernel_(std::move(kernel)) {}
  ~SimDriver() override;
  SimDriver(const SimDriver&) = delete;
  SimDriver& operator=(const SimDriver&) = delete;

  BackendKind kind() const noexcept override { return BackendKind::sim; }
  bool supports_edge() const noexcept override { return true; }
  bool waits_nanoseconds() const noexcept override { return true; }

  int check(native_handle handle) noexcept override { return is_open(handle) ? 0 : -EBADF; }
  int add(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) override;
  int modify(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) override;
  int remove(native_handle handle, std::uint64_t key) override;
  int wait(std::int64_t timeout_ns, std::span<DriverEvent> out) override;
  int rebuild() override;

 private:
  std::shared_ptr<SimInterest> find(native_handle handle) const;
  bool is_open(native_handle handle) const noexcept;
  int missing(native_handle handle) const { return is_open(handle) ? -ENOENT : -EBADF; }
  Ready report(SimInterest& entry) const;
  /** Asks the real kernel about the event descriptors. An edge is a level for them. */
  int poll_events(std::int64_t timeout_ns);
  int collect(std::span<DriverEvent> out);

  std::shared_ptr<SimKernel> kernel_;
  std::size_t left_over_ = 0;  ///< first entries of the ready list, which found no room last time
  std::vector<std::shared_ptr<SimInterest>> again_;
  std::vector<pollfd> entries_;
};

}  // namespace evix::detail
