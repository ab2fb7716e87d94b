#include "pattern.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace evix::cli {
namespace {

std::vector<std::byte> stream(const Pattern& pattern, std::uint64_t connection,
                              std::uint64_t position, std::size_t size) {
  std::vector<std::byte> bytes;
  while (bytes.size() < size) {
    const std::size_t piece = std::min<std::size_t>(size - bytes.size(), 1000);
    const auto slice = pattern.slice(connection, position + bytes.size(), piece);
    bytes.insert(bytes.end(), slice.begin(), slice.end());
  }
  return bytes;
}

TEST(Pattern, FindsNothingInItsOwnBytes) {
  const Pattern pattern;
  for (const std::uint64_t position : {0U, 1U, 65'520U, 65'521U, 1'000'000U}) {
    const auto bytes = stream(pattern, 3, position, 200'000);
    EXPECT_EQ(pattern.wrong_bytes(3, position, bytes), 0) << position;
  }
}

TEST(Pattern, CountsEveryChangedByte) {
  const Pattern pattern;
  auto bytes = stream(pattern, 3, 77, 200'000);
  for (const std::size_t index : {0U, 1U, 65'535U, 65'536U, 199'999U}) bytes[index] ^= std::byte{1};
  EXPECT_EQ(pattern.wrong_bytes(3, 77, bytes), 5);
}

// About 255 of 256 bytes differ when random bytes are compared with others.
TEST(Pattern, NoticesShiftsRepeatsAndOtherConnections) {
  const Pattern pattern;
  const auto bytes = stream(pattern, 3, 0, 4'096);
  EXPECT_GT(pattern.wrong_bytes(3, 1, bytes), 4'000);
  EXPECT_GT(pattern.wrong_bytes(3, 64, bytes), 4'000);
  EXPECT_GT(pattern.wrong_bytes(3, 4'096, bytes), 4'000);
  EXPECT_GT(pattern.wrong_bytes(3, 65'536, bytes), 4'000);
  EXPECT_GT(pattern.wrong_bytes(2, 0, bytes), 4'000);
  EXPECT_GT(pattern.wrong_bytes(8'999, 0, bytes), 4'000);
}

}  // namespace
}  // namespace evix::cli
