#include "pattern.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace evix::cli {

Pattern::Pattern() : table_(period + slice_bytes_max) {
  std::minstd_rand random(1);
  // The low bits of a linear congruential generator repeat soon; these are high ones.
  std::generate_n(table_.begin(), period,
                  [&random] { return static_cast<std::byte>(random() >> 16); });
  for (std::size_t index = period; index < table_.size(); ++index) {
    table_[index] = table_[index - period];
  }
}

std::uint64_t Pattern::wrong_bytes(std::uint64_t connection, std::uint64_t position,
                                   std::span<const std::byte> received) const noexcept {
  std::uint64_t wrong = 0;
  while (!received.empty()) {
    const std::size_t size = std::min(received.size(), slice_bytes_max);
    const auto expected = slice(connection, position, size);
    if (std::memcmp(received.data(), expected.data(), size) != 0) {
      for (std::size_t index = 0; index < size; ++index) {
        wrong += received[index] != expected[index] ? 1U : 0U;
      }
    }
    received = received.subspan(size);
    position += size;
  }
  return wrong;
}

}  // namespace evix::cli
