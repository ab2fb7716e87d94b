#pragma once

#include <unordered_map>
#include <vector>

#include "capi/state.hpp"
#include "evix.h"
#include "poll/driver.hpp"

/** @file
 * A program's own backend, five C functions, as a poll driver.
 */
namespace evix::detail::capi {

/**
 * Level-triggered, in milliseconds. The program knows descriptors by their number, evix by a key:
 * the map between them is here. Calls user code (see LoopState::in_backend): while one of the five
 * functions runs, the loop refuses everything but evix_backend_ready() and the backend's data.
 */
class CustomDriver final : public PollDriver {
 public:
  /** Copies the functions. */
  CustomDriver(const evix_backend_t& functions, LoopState& state);
  CustomDriver(const CustomDriver&) = delete;
  CustomDriver& operator=(const CustomDriver&) = delete;
  ~CustomDriver() override;

  /** The program's init, once, before anything else. 0 or a negative errno. */
  int init();

  BackendKind kind() const noexcept override { return BackendKind::custom; }
  bool supports_edge() const noexcept override { return false; }
  bool waits_nanoseconds() const noexcept override { return false; }

  int add(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) override;
  int modify(native_handle handle, std::uint64_t key, Ready interest, Trigger trigger) override;
  int remove(native_handle handle, std::uint64_t key) override;
  int wait(std::int64_t timeout_ns, std::span<DriverEvent> out) override;
  /** -EOPNOTSUPP: only the program could make its kernel objects anew. */
  int rebuild() override;

  /** What evix_backend_ready() does. 0 or a positive errno or Errc. */
  int ready(native_handle handle, Ready events);

 private:
  struct Watch {
    std::uint64_t key;
    Ready interest;
    Ready pending;  ///< reported and not given yet
    Trigger trigger;
    bool added;  ///< the program was told; a one-shot that fired is not
  };

  int tell_add(native_handle handle, Watch& watch);
  int tell_remove(native_handle handle, Watch& watch);
  int give(std::span<DriverEvent> out);

  const evix_backend_t functions_;
  LoopState& state_;
  bool initialized_ = false;
  bool polling_ = false;
  std::unordered_map<native_handle, Watch> watches_;
  std::vector<native_handle> reported_;  ///< in order; may name watches that are gone
};

}  // namespace evix::detail::capi
