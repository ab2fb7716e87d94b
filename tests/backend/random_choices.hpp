#pragma once

#include <cstdint>
#include <span>

#include "base/prng.hpp"

/** @file
 * What decides in a random test: a seed, or the input of a fuzzer as long as it lasts.
 */
namespace evix::test {

class RandomChoices {
 public:
  explicit RandomChoices(std::uint64_t seed, std::span<const std::uint8_t> input = {}) noexcept
      : random_(seed), input_(input) {}

  /** In [0, bound); 0 when bound is 0. */
  std::uint64_t below(std::uint64_t bound) {
    if (input_.empty()) return random_.below(bound);
    if (bound < 2) return 0;
    // As few bytes as will do, so that a byte of the input decides one thing.
    std::uint64_t value = 0;
    for (std::uint64_t rest = bound - 1; rest != 0 && !input_.empty(); rest >>= 8) {
      value = value << 8 | input_.front();
      input_ = input_.subspan(1);
    }
    return value % bound;
  }

 private:
  detail::Prng random_;
  std::span<const std::uint8_t> input_;
};

}  // namespace evix::test
