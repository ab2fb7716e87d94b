#include "parse.hpp"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <optional>

namespace evix::cli {

namespace {

struct Quantity {
  std::uint64_t count;
  std::string_view unit;
};

std::optional<Quantity> split_quantity(std::string_view text) {
  std::uint64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, count);
  if (failure != std::errc{}) return std::nullopt;
  return Quantity{count, {rest, static_cast<std::size_t>(end - rest)}};
}

// 0 for a unit that does not exist.
std::int64_t unit_ns(std::string_view unit) {
  if (unit == "ns") return 1;
  if (unit == "us") return 1'000;
  if (unit == "ms") return 1'000'000;
  if (unit == "s") return 1'000'000'000;
  if (unit == "m" || unit == "min") return 60'000'000'000;
  if (unit == "h") return 3'600'000'000'000;
  return 0;
}

std::uint64_t unit_bytes(std::string_view unit) {
  if (unit.empty()) return 1;
  if (unit == "k" || unit == "K") return 1U << 10;
  if (unit == "m" || unit == "M") return 1U << 20;
  if (unit == "g" || unit == "G") return 1U << 30;
  return 0;
}

}  // namespace

Parsed<Duration> parse_duration(std::string_view text) {
  const auto quantity = split_quantity(text);
  const std::int64_t unit = quantity ? unit_ns(quantity->unit) : 0;
  if (unit == 0) {
    return std::unexpected(fmt::format("'{}' is no duration: write 500ms, 5s or 1m", text));
  }
  if (quantity->count == 0) return std::unexpected(std::string("a duration of 0 is too short"));
  const auto longest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / unit);
  if (quantity->count > longest) return std::unexpected(fmt::format("{} is too long", text));
  return Duration(static_cast<std::int64_t>(quantity->count) * unit);
}

Parsed<std::uint64_t> parse_size_bytes(std::string_view text) {
  const auto quantity = split_quantity(text);
  const std::uint64_t unit = quantity ? unit_bytes(quantity->unit) : 0;
  if (unit == 0) {
    return std::unexpected(fmt::format("'{}' is no size: write 64, 64k or 1m", text));
  }
  if (quantity->count == 0) return std::unexpected(std::string("a size of 0 is too small"));
  if (quantity->count > std::numeric_limits<std::uint64_t>::max() / unit) {
    return std::unexpected(fmt::format("{} is too large", text));
  }
  return quantity->count * unit;
}

Parsed<std::uint64_t> parse_number(std::string_view text, std::uint64_t max) {
  const auto quantity = split_quantity(text);
  if (!quantity || !quantity->unit.empty() || quantity->count == 0 || quantity->count > max) {
    return std::unexpected(fmt::format("'{}' is no whole number from 1 to {}", text, max));
  }
  return quantity->count;
}

std::string format_duration(std::uint64_t duration_ns) {
  const auto value = static_cast<double>(duration_ns);
  const auto scaled = [](double number, std::string_view unit) {
    const int decimals = number < 10 ? 2 : number < 100 ? 1 : 0;
    return fmt::format("{:.{}f} {}", number, decimals, unit);
  };
  if (duration_ns < 1'000) return fmt::format("{} ns", duration_ns);
  if (duration_ns < 1'000'000) return scaled(value / 1e3, "us");
  if (duration_ns < 1'000'000'000) return scaled(value / 1e6, "ms");
  return scaled(value / 1e9, "s");
}

std::string format_count(std::uint64_t count) {
  std::string digits = std::to_string(count);
  for (std::size_t place = digits.size(); place > 3;) {
    place -= 3;
    digits.insert(place, 1, ',');
  }
  return digits;
}

}  // namespace evix::cli
