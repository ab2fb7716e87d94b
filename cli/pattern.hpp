#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace evix::cli {

// What the connections of a load send: one random table, read round and round, from a different
// place for each connection. A byte that is changed, lost, repeated or another connection's stands
// out, sending needs no copy, and checking is one comparison of memory per received buffer.
class Pattern {
 public:
  // The most that one slice() holds, and that check() compares at once.
  static constexpr std::size_t slice_bytes_max = std::size_t{64} * 1024;

  Pattern();

  // The bytes from `position` of the stream of a connection on; `size` at most slice_bytes_max.
  std::span<const std::byte> slice(std::uint64_t connection, std::uint64_t position,
                                   std::size_t size) const noexcept {
    return {table_.data() + (connection * connection_stride + position) % period, size};
  }

  // How many of `received` differ from the stream of the connection at `position`.
  std::uint64_t wrong_bytes(std::uint64_t connection, std::uint64_t position,
                            std::span<const std::byte> received) const noexcept;

 private:
  // Prime, so that messages of any size differ from those before them.
  static constexpr std::size_t period = 65'521;
  // Prime too: no two of 65,521 connections begin at the same place.
  static constexpr std::size_t connection_stride = 7'919;

  std::vector<std::byte> table_;  // a period and as much again as a slice
};

}  // namespace evix::cli
