#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace evix::detail {

/// Small seeded generator for tests, benchmarks and the simulator: the same seed gives the same
/// sequence on every platform. Not for secrets. One owner thread.
///
/// State of xoshiro256** (Blackman and Vigna), filled from the seed by SplitMix64 so that seeds
/// which differ in one bit, and seed 0, give unrelated sequences.
class Prng {
 public:
  explicit Prng(std::uint64_t seed) {
    for (std::uint64_t& word : state_) {
      seed += 0x9e3779b97f4a7c15U;
      std::uint64_t mixed = seed;
      mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
      mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
      word = mixed ^ (mixed >> 31);
    }
  }

  /// 64 uniform bits.
  std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  /// Uniform in [0, bound); 0 when bound is 0. Rejects the incomplete last range, so unbiased.
  std::uint64_t below(std::uint64_t bound) {
    if (bound == 0) return 0;
    const std::uint64_t reject_below = (0 - bound) % bound;
    std::uint64_t value = next();
    while (value < reject_below) value = next();
    return value % bound;
  }

 private:
  std::array<std::uint64_t, 4> state_{};
};

}  // namespace evix::detail
