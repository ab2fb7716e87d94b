#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "torture/fault.hpp"

/** @file
 * What one child does: runs one test with one fault, and reports through memory that its parent
 * shares.
 */
namespace evix::test {

enum class Verdict : std::uint8_t {
  died,          ///< it has not said anything
  held,          ///< the library did what it must
  violation,     ///< it did not
  left_waiting,  ///< the test waits for what the fault has made impossible; nothing was found
};

struct Report {
  Verdict verdict = Verdict::died;
  bool injected = false;
  bool ended_early = false;  ///< an assertion of the test failed
  bool other_threads = false;
  bool sleeps = false;  ///< without a fault: it slept although an operation could go on
  std::array<std::uint64_t, call_count> calls{};
  std::array<std::uint64_t, call_count> set_up_calls{};  ///< of these before a loop was used
  std::uint64_t allocations = 0;
  std::uint64_t set_up_allocations = 0;
  std::uint64_t blocks_left = 0;
  std::uint64_t mappings_left = 0;
  std::int64_t took_ns = 0;
  char what[3000] = {};
};

/** What a run of the test without a fault has left behind. */
struct Allowance {
  std::uint64_t blocks = 0;
  std::uint64_t mappings = 0;
};

/** Of this process; a child has one. */
class Session {
 public:
  /** Null: in the parent, where nothing is counted. */
  static Session* current() noexcept;
  static void open(Report& report, const Fault& fault, const Allowance& allowance);

  void begin() noexcept;
  /** Judges what the test has left, and ends the process. */
  [[noreturn]] void end();
  /** Notes it and allocates nothing, for what could fail on the way to the full message. */
  void say(Verdict verdict, std::string_view what) noexcept;
  /** Ends the process. */
  [[noreturn]] void violation(std::string_view what);
  [[noreturn]] void leave_waiting(std::string_view what);

  /** At each call, before it is made. @return whether the fault is due. */
  bool call(detail::CallId id) noexcept;
  /** At each allocation of the library. */
  bool allocation() noexcept;
  void loop_used() noexcept;
  /** At each call of a backend: the loop goes on. */
  void step() noexcept { steps_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t steps() const noexcept { return steps_.load(std::memory_order_relaxed); }

  bool active() const noexcept { return active_.load(std::memory_order_relaxed); }
  bool on_main_thread() const noexcept;
  Report& report() noexcept { return report_; }
  const Fault& fault() const noexcept { return fault_; }

 private:
  Session(Report& report, const Fault& fault, const Allowance& allowance);

  Report& report_;
  const Fault fault_;
  const Allowance allowance_;
  std::atomic<bool> active_ = false;
  std::atomic<bool> loop_used_ = false;
  std::atomic<std::uint64_t> steps_ = 0;
  std::array<std::atomic<std::uint64_t>, call_count> calls_{};
  std::atomic<std::uint64_t> allocations_ = 0;
  std::int64_t begin_ns_ = 0;
};

/** The kernel's time, past the table that is tortured. */
std::int64_t true_time_ns() noexcept;
bool has_other_threads() noexcept;

// ---- What belongs to the library and has to go (resources.cpp) --------------------------------

void watch_resources();
void descriptor_made(int fd);
void descriptor_closed(int fd);
void mapping_made(void* memory);
void mapping_gone(void* memory);
std::uint64_t blocks_left();
std::uint64_t mappings_left();
/** The first descriptor of the library that is still open, or -1. */
int descriptor_left();
/** Where the latest of the blocks that are left was made. */
std::string describe_blocks();

}  // namespace evix::test
