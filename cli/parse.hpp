#pragma once

#include <cstdint>
#include <evix/time.hpp>
#include <expected>
#include <string>
#include <string_view>

namespace evix::cli {

// What is wrong with the text, for the user.
template <class T>
using Parsed = std::expected<T, std::string>;

// `500us`, `500ms`, `5s`, `1m`, `1h`: a whole number above 0 and its unit.
Parsed<Duration> parse_duration(std::string_view text);

// `64`, `64k`, `1m`, `1g`: bytes; a whole number above 0, k, m and g are powers of 1024.
Parsed<std::uint64_t> parse_size_bytes(std::string_view text);

// A whole number from 1 to `max`.
Parsed<std::uint64_t> parse_number(std::string_view text, std::uint64_t max);

// Nanoseconds with three figures or more: `412 ns`, `12.3 us`, `5.00 s`.
std::string format_duration(std::uint64_t duration_ns);

// `1,234,567`.
std::string format_count(std::uint64_t count);

}  // namespace evix::cli
