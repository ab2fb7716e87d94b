#include <evix/time.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>

#include "base/saturating.hpp"

namespace evix {
namespace {

using std::chrono::duration;
using Limits = std::numeric_limits<std::int64_t>;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

using DoubleSeconds = duration<double>;
using DoubleNanoseconds = duration<double, std::nano>;
using FloatSeconds = duration<float>;
using Picoseconds = duration<std::int64_t, std::pico>;
using Unsigned = duration<std::uint64_t, std::nano>;

TEST(Saturate, WholeNumbers) {
  EXPECT_EQ(saturate(std::chrono::nanoseconds(1)).count(), 1);
  EXPECT_EQ(saturate(std::chrono::nanoseconds::max()), forever);
  EXPECT_EQ(saturate(std::chrono::nanoseconds::min()), Duration::min());
  EXPECT_EQ(saturate(std::chrono::milliseconds(-3)).count(), -3'000'000);
  EXPECT_EQ(saturate(std::chrono::hours(1)).count(), 3'600'000'000'000);
  EXPECT_EQ(saturate(std::chrono::hours::max()), Duration::max());
  EXPECT_EQ(saturate(std::chrono::hours::min()), Duration::min());
  EXPECT_EQ(saturate(std::chrono::seconds::max()), Duration::max());
  EXPECT_EQ(saturate(std::chrono::seconds(9'223'372'036)).count(), 9'223'372'036'000'000'000);
  EXPECT_EQ(saturate(std::chrono::seconds(9'223'372'037)), Duration::max());
  EXPECT_EQ(saturate(std::chrono::seconds(-9'223'372'037)), Duration::min());
  EXPECT_EQ(saturate(std::chrono::milliseconds(std::int64_t{1} << 31)).count(),
            2'147'483'648'000'000);
  EXPECT_EQ(saturate(std::chrono::milliseconds((std::int64_t{1} << 32) + 1)).count(),
            4'294'967'297'000'000);
  EXPECT_EQ(saturate(Unsigned(std::numeric_limits<std::uint64_t>::max())), Duration::max());
  EXPECT_EQ(saturate(duration<std::int8_t, std::ratio<60>>(-2)).count(), -120'000'000'000);
}

TEST(Saturate, FractionsRoundUp) {
  EXPECT_EQ(saturate(Picoseconds(0)).count(), 0);
  EXPECT_EQ(saturate(Picoseconds(1)).count(), 1);
  EXPECT_EQ(saturate(Picoseconds(1000)).count(), 1);
  EXPECT_EQ(saturate(Picoseconds(1001)).count(), 2);
  EXPECT_EQ(saturate(Picoseconds(-1)).count(), 0);
  EXPECT_EQ(saturate(Picoseconds(-1001)).count(), -1);
  EXPECT_EQ(saturate(Picoseconds(Limits::max())).count(), 9'223'372'036'854'776);
  EXPECT_EQ(saturate(duration<std::int64_t, std::ratio<1, 3>>(1)).count(), 333'333'334);
  EXPECT_EQ(saturate(DoubleNanoseconds(0.25)).count(), 1);
  EXPECT_EQ(saturate(DoubleNanoseconds(-0.25)).count(), 0);
  EXPECT_EQ(saturate(DoubleNanoseconds(1.0)).count(), 1);
  EXPECT_EQ(saturate(DoubleSeconds(1e-10)).count(), 1);
  EXPECT_EQ(saturate(DoubleSeconds(0.5)).count(), 500'000'000);
}

TEST(Saturate, FloatingPointExtremes) {
  EXPECT_EQ(saturate(DoubleSeconds(nan)).count(), 0);
  EXPECT_EQ(saturate(DoubleSeconds(-nan)).count(), 0);
  EXPECT_EQ(saturate(FloatSeconds(std::numeric_limits<float>::quiet_NaN())).count(), 0);
  EXPECT_EQ(saturate(DoubleSeconds(infinity)), Duration::max());
  EXPECT_EQ(saturate(DoubleSeconds(-infinity)), Duration::min());
  EXPECT_EQ(saturate(DoubleSeconds(std::numeric_limits<double>::max())), Duration::max());
  EXPECT_EQ(saturate(DoubleSeconds(std::numeric_limits<double>::lowest())), Duration::min());
  EXPECT_EQ(saturate(DoubleSeconds(std::numeric_limits<double>::min())).count(), 1);
  EXPECT_EQ(saturate(DoubleSeconds(std::numeric_limits<double>::denorm_min())).count(), 1);
  EXPECT_EQ(saturate(DoubleNanoseconds(9.3e18)), Duration::max());
  EXPECT_EQ(saturate(DoubleNanoseconds(-9.3e18)), Duration::min());
  EXPECT_EQ(saturate(DoubleNanoseconds(0x1p53)).count(), std::int64_t{1} << 53);
  EXPECT_EQ(saturate(DoubleNanoseconds(0x1p63)), Duration::max());
  EXPECT_EQ(saturate(DoubleNanoseconds(-0.0)).count(), 0);
}

static_assert(saturate(std::chrono::hours::max()) == Duration::max());

TEST(Saturating, AdditionStopsAtTheEnds) {
  using detail::add_saturating;
  EXPECT_EQ(add_saturating(1, 2), 3);
  EXPECT_EQ(add_saturating(Limits::max(), 0), Limits::max());
  EXPECT_EQ(add_saturating(Limits::max(), 1), Limits::max());
  EXPECT_EQ(add_saturating(1, Limits::max()), Limits::max());
  EXPECT_EQ(add_saturating(Limits::max(), Limits::max()), Limits::max());
  EXPECT_EQ(add_saturating(Limits::min(), -1), Limits::min());
  EXPECT_EQ(add_saturating(-1, Limits::min()), Limits::min());
  EXPECT_EQ(add_saturating(Limits::min(), Limits::max()), -1);
  EXPECT_EQ(add_saturating(Limits::min(), Limits::min()), Limits::min());
}

TEST(Saturating, SubtractionStopsAtTheEnds) {
  using detail::subtract_saturating;
  EXPECT_EQ(subtract_saturating(1, 2), -1);
  EXPECT_EQ(subtract_saturating(Limits::max(), -1), Limits::max());
  EXPECT_EQ(subtract_saturating(0, Limits::min()), Limits::max());
  EXPECT_EQ(subtract_saturating(-1, Limits::min()), Limits::max());
  EXPECT_EQ(subtract_saturating(-2, Limits::min()), Limits::max() - 1);
  EXPECT_EQ(subtract_saturating(Limits::min(), 1), Limits::min());
  EXPECT_EQ(subtract_saturating(Limits::min(), Limits::min()), 0);
  EXPECT_EQ(subtract_saturating(-2, Limits::max()), Limits::min());
  EXPECT_EQ(subtract_saturating(Limits::max(), Limits::max()), 0);
}

}  // namespace
}  // namespace evix
