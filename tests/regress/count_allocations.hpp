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

}  // namespace evix::test
