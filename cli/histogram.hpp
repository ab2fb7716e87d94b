#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace evix::cli {

// Counts of values from 0 to 2^64 - 1. Values below 128 have a bucket each; above, every power of
// two is cut into 128 equal buckets, so that a bucket is narrower than 1/128 of its values (0.79
// %).
class Histogram {
 public:
  void record(std::uint64_t value) noexcept {
    ++counts_[bucket_of(value)];
    ++count_;
    if (value > max_) max_ = value;
  }

  std::uint64_t count() const noexcept { return count_; }
  // Exact; 0 when nothing was recorded.
  std::uint64_t max() const noexcept { return max_; }

  // The value that `per_mille` of 1000 recorded values do not exceed (nearest rank), as the upper
  // edge of its bucket: never too small, too large by at most 0.79 %. 0 when nothing was recorded.
  std::uint64_t percentile(std::uint32_t per_mille) const noexcept;

 private:
  static constexpr unsigned fine_bits = 7;
  static constexpr std::size_t fine = std::size_t{1} << fine_bits;
  static constexpr std::size_t bucket_count = fine * (64 - fine_bits + 1);

  static std::size_t bucket_of(std::uint64_t value) noexcept {
    if (value < fine) return static_cast<std::size_t>(value);
    const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - 1 - fine_bits;
    return fine * shift + static_cast<std::size_t>(value >> shift);
  }
  static std::uint64_t upper_edge(std::size_t bucket) noexcept;

  std::uint64_t count_ = 0;
  std::uint64_t max_ = 0;
  std::array<std::uint64_t, bucket_count> counts_{};
};

}  // namespace evix::cli
