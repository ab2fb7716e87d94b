// What the load generator sends, compares and counts.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace raw {

/// Largest single send and receive of the load.
constexpr std::size_t piece_bytes = 65'536;

/// The bytes a connection sends: a window sliding over one random table, so that sending needs
/// no copy, comparing is one memcmp, and neither a swapped connection nor a shifted, repeated
/// or missing byte goes unseen.
class Pattern {
 public:
  Pattern() : table_(period + piece_bytes) {
    std::uint64_t state = 0x9e3779b97f4a7c15U;
    for (std::size_t index = 0; index < period; ++index) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      table_[index] = static_cast<char>(state >> 32);
    }
    for (std::size_t index = period; index < table_.size(); ++index) {
      table_[index] = table_[index - period];
    }
  }

  /// At least piece_bytes bytes from this position of this connection's stream.
  const char* at(std::uint64_t connection, std::uint64_t position) const {
    return table_.data() + (connection * 61 + position) % period;
  }

  /// How many of the received bytes are not what the connection sent.
  std::uint64_t wrong(std::uint64_t connection, std::uint64_t position, const char* received,
                      std::size_t length) const {
    const char* expected = at(connection, position);
    if (std::memcmp(received, expected, length) == 0) return 0;
    std::uint64_t count = 0;
    for (std::size_t index = 0; index < length; ++index) {
      count += received[index] != expected[index];
    }
    return count;
  }

 private:
  // Prime: messages of any size begin at a different place of the table each time.
  static constexpr std::size_t period = 65'521;
  std::vector<char> table_;
};

/// Counts of durations in buckets 1/64 of a power of two wide: an error of at most 1.6 %.
class Histogram {
 public:
  void add(std::uint64_t value_ns) {
    ++buckets_[bucket_of(value_ns)];
    ++count_;
    if (value_ns > largest_ns_) largest_ns_ = value_ns;
  }

  /// The upper edge of the bucket that holds this share (0 to 1) of all values.
  std::uint64_t at_share(double share) const {
    const auto wanted = static_cast<std::uint64_t>(share * static_cast<double>(count_));
    std::uint64_t seen = 0;
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      seen += buckets_[bucket];
      if (seen > wanted) return upper_edge(bucket) < largest_ns_ ? upper_edge(bucket) : largest_ns_;
    }
    return largest_ns_;
  }

  std::uint64_t largest_ns() const { return largest_ns_; }

 private:
  static constexpr unsigned fine_bits = 6;
  static constexpr std::uint64_t fine = 1U << fine_bits;

  static std::size_t bucket_of(std::uint64_t value) {
    if (value < fine) return value;
    const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - 1 - fine_bits;
    return (shift + 1) * fine + (value >> shift) - fine;
  }
  static std::uint64_t upper_edge(std::size_t bucket) {
    if (bucket < fine) return bucket;
    const std::size_t shift = bucket / fine - 1;
    return ((bucket % fine + fine + 1) << shift) - 1;
  }

  std::vector<std::uint64_t> buckets_ = std::vector<std::uint64_t>(fine * (65 - fine_bits));
  std::uint64_t count_ = 0;
  std::uint64_t largest_ns_ = 0;
};

struct Counts {
  std::uint64_t echoes = 0;
  std::uint64_t errors = 0;  // connections that ended or fell silent before their time
  std::uint64_t lost = 0;    // messages that did not come back
  std::uint64_t wrong_bytes = 0;
  double seconds = 0;
  Histogram latency;
};

inline std::string json_line(const Counts& counts, std::size_t connections, std::size_t size,
                             std::size_t pipeline) {
  const auto microseconds = [&counts](double share) {
    return static_cast<double>(counts.latency.at_share(share)) * 1e-3;
  };
  const double rate = counts.seconds > 0 ? static_cast<double>(counts.echoes) / counts.seconds : 0;
  char line[600];
  std::snprintf(line, sizeof line,
                "{\"connections\": %zu, \"size\": %zu, \"pipeline\": %zu, \"echoes\": %llu, "
                "\"seconds\": %.6f, \"echoes_per_s\": %.0f, \"errors\": %llu, \"lost\": %llu, "
                "\"wrong_bytes\": %llu, \"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, "
                "\"p99.9_us\": %.1f, \"max_us\": %.1f}",
                connections, size, pipeline, static_cast<unsigned long long>(counts.echoes),
                counts.seconds, rate, static_cast<unsigned long long>(counts.errors),
                static_cast<unsigned long long>(counts.lost),
                static_cast<unsigned long long>(counts.wrong_bytes), microseconds(0.5),
                microseconds(0.9), microseconds(0.99), microseconds(0.999),
                static_cast<double>(counts.latency.largest_ns()) * 1e-3);
  return line;
}

}  // namespace raw
