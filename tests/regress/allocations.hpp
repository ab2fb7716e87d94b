#pragma once

namespace evix::test {

/** Counts how often operator new is called on this thread, from here on. */
class CountAllocations {
 public:
  CountAllocations() noexcept;
  CountAllocations(const CountAllocations&) = delete;
  CountAllocations& operator=(const CountAllocations&) = delete;

  /** So far. */
  int count() const noexcept;

 private:
  int before_;
};

/** The nth call of operator new on this thread from here on (1: the next) throws; no other does. */
class FailAllocation {
 public:
  explicit FailAllocation(int nth) noexcept;
  FailAllocation(const FailAllocation&) = delete;
  FailAllocation& operator=(const FailAllocation&) = delete;
  ~FailAllocation();

  bool happened() const noexcept;
};

}  // namespace evix::test
