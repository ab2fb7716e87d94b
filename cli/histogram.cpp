#include "histogram.hpp"

#include <algorithm>

namespace evix::cli {

std::uint64_t Histogram::percentile(std::uint32_t per_mille) const noexcept {
  // Split, because count_ * per_mille may pass 2^64.
  const std::uint64_t exact = count_ / 1000 * per_mille;
  const std::uint64_t rest = (count_ % 1000 * per_mille + 999) / 1000;
  const std::uint64_t rank = std::max<std::uint64_t>(exact + rest, 1);
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < bucket_count; ++bucket) {
    seen += counts_[bucket];
    if (seen >= rank) return std::min(upper_edge(bucket), max_);
  }
  return max_;
}

std::uint64_t Histogram::upper_edge(std::size_t bucket) noexcept {
  if (bucket < 2 * fine) return bucket;
  const std::size_t shift = bucket / fine - 1;
  const std::uint64_t mantissa = fine + bucket % fine;
  // For the last bucket the shift wraps to 0, and 0 - 1 is the largest value, as it should be.
  return ((mantissa + 1) << shift) - 1;
}

}  // namespace evix::cli
