#include "histogram.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace evix::cli {
namespace {

constexpr std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();

TEST(Histogram, IsZeroWhenEmpty) {
  const Histogram histogram;
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.max(), 0);
  EXPECT_EQ(histogram.percentile(500), 0);
  EXPECT_EQ(histogram.percentile(1000), 0);
}

TEST(Histogram, IsExactBelow256) {
  for (std::uint64_t value = 0; value < 256; ++value) {
    Histogram histogram;
    histogram.record(value);
    histogram.record(1000);  // so that max() does not cut the bucket's edge
    EXPECT_EQ(histogram.percentile(500), value);
  }
}

// One value at a time, around every power of two and at its thirds.
TEST(Histogram, OverstatesByLessThanOnePercentEverywhere) {
  std::vector<std::uint64_t> values{largest, largest - 1};
  for (unsigned shift = 8; shift < 64; ++shift) {
    const std::uint64_t power = std::uint64_t{1} << shift;
    values.insert(values.end(), {power - 1, power, power + 1, power + power / 3, power / 3 * 5});
  }
  for (const std::uint64_t value : values) {
    Histogram histogram;
    histogram.record(value);
    histogram.record(largest);
    const std::uint64_t found = histogram.percentile(500);
    EXPECT_GE(found, value);
    EXPECT_LE(found - value, value / 128) << value;
  }
}

TEST(Histogram, NeverPassesTheExactMaximum) {
  Histogram histogram;
  histogram.record(1'000'001);
  EXPECT_EQ(histogram.max(), 1'000'001);
  EXPECT_EQ(histogram.percentile(500), 1'000'001);
  EXPECT_EQ(histogram.percentile(999), 1'000'001);
}

// Nearest rank, against the sorted values themselves.
TEST(Histogram, PercentilesMatchSortedValues) {
  std::mt19937_64 random(7);
  for (const std::size_t count : {1U, 2U, 9U, 10U, 11U, 999U, 1000U, 1001U, 20'000U}) {
    Histogram histogram;
    std::vector<std::uint64_t> values;
    for (std::size_t index = 0; index < count; ++index) {
      values.push_back(random() >> (random() % 60));
      histogram.record(values.back());
    }
    std::sort(values.begin(), values.end());
    EXPECT_EQ(histogram.count(), count);
    EXPECT_EQ(histogram.max(), values.back());
    for (const std::uint32_t per_mille : {1U, 500U, 900U, 990U, 999U, 1000U}) {
      const std::size_t rank = (count * per_mille + 999) / 1000;
      const std::uint64_t exact = values[rank - 1];
      const std::uint64_t found = histogram.percentile(per_mille);
      EXPECT_GE(found, exact) << count << " values, " << per_mille;
      EXPECT_LE(found - exact, exact / 128) << count << " values, " << per_mille;
    }
  }
}

}  // namespace
}  // namespace evix::cli
