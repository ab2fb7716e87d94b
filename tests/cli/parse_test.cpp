#include "parse.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

namespace evix::cli {
namespace {

using namespace std::chrono_literals;

TEST(ParseDuration, TakesEveryUnit) {
  EXPECT_EQ(parse_duration("1ns"), Duration(1));
  EXPECT_EQ(parse_duration("250us"), Duration(250us));
  EXPECT_EQ(parse_duration("500ms"), Duration(500ms));
  EXPECT_EQ(parse_duration("5s"), Duration(5s));
  EXPECT_EQ(parse_duration("1m"), Duration(1min));
  EXPECT_EQ(parse_duration("2min"), Duration(2min));
  EXPECT_EQ(parse_duration("1h"), Duration(1h));
  EXPECT_EQ(parse_duration("9223372036854775807ns"), Duration::max());
  EXPECT_EQ(parse_duration("9223372036s"), Duration(9223372036s));
}

TEST(ParseDuration, RejectsTheRest) {
  for (const char* text :
       {"", "5", "s", "-5s", "+5s", "5 s", " 5s", "5s ", "5.5s", "5x", "5sm", "0s", "0ms",
        "9223372037s", "9223372036854775808ns", "99999999999999999999s", "5e3s", "0x5s"}) {
    EXPECT_FALSE(parse_duration(text)) << text;
  }
}

TEST(ParseSize, TakesEveryUnit) {
  EXPECT_EQ(parse_size_bytes("1"), 1);
  EXPECT_EQ(parse_size_bytes("64"), 64);
  EXPECT_EQ(parse_size_bytes("64k"), 65'536);
  EXPECT_EQ(parse_size_bytes("64K"), 65'536);
  EXPECT_EQ(parse_size_bytes("1m"), 1'048'576);
  EXPECT_EQ(parse_size_bytes("1g"), 1'073'741'824);
  EXPECT_EQ(parse_size_bytes("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
}

TEST(ParseSize, RejectsTheRest) {
  for (const char* text : {"", "k", "0", "0k", "-1", "+1", "1.5k", "64kb", "64 k", "1t",
                           "18446744073709551616", "18014398509481984k"}) {
    EXPECT_FALSE(parse_size_bytes(text)) << text;
  }
}

TEST(ParseNumber, StaysBetweenOneAndTheMaximum) {
  EXPECT_EQ(parse_number("1", 10), 1);
  EXPECT_EQ(parse_number("10", 10), 10);
  for (const char* text : {"", "0", "11", "-1", "+1", "1k", "ten", "18446744073709551617"}) {
    EXPECT_FALSE(parse_number(text, 10)) << text;
  }
}

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(0), "0 ns");
  EXPECT_EQ(format_duration(999), "999 ns");
  EXPECT_EQ(format_duration(1'000), "1.00 us");
  EXPECT_EQ(format_duration(12'345), "12.3 us");
  EXPECT_EQ(format_duration(412'000), "412 us");
  EXPECT_EQ(format_duration(3'500'000), "3.50 ms");
  EXPECT_EQ(format_duration(5'000'000'000), "5.00 s");
}

TEST(Format, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1'000), "1,000");
  EXPECT_EQ(format_count(12'345'678), "12,345,678");
}

}  // namespace
}  // namespace evix::cli
