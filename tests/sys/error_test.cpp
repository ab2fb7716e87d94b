#include "sys/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <string>

namespace evix::detail {
namespace {

Address loopback(std::uint16_t port) { return Address::ipv4({127, 0, 0, 1}, port); }

TEST(Error, MessageIsOperationSubjectReason) {
  const Error error = make_error(ECONNREFUSED, "connect", Subject::address(loopback(3000)));
  EXPECT_EQ(error.message(), "connect 127.0.0.1:3000: connection refused");
  EXPECT_STREQ(error.operation(), "connect");
  EXPECT_EQ(error.code(), std::errc::connection_refused);
  EXPECT_EQ(error.code().category(), std::system_category());
}

TEST(Error, MessageWithoutSubjectOrOperation) {
  EXPECT_EQ(make_error(EPIPE, "send").message(), "send: broken pipe");
  EXPECT_EQ(make_error(EPIPE, "").message(), "broken pipe");
  EXPECT_EQ(make_error(EPIPE, nullptr).message(), "broken pipe");
  EXPECT_EQ(make_error(EPIPE, "", Subject::text("x")).message(), "x: broken pipe");
}

TEST(Error, FirstLetterStaysWhenItBeginsAnAbbreviation) {
  EXPECT_EQ(make_error(EIO, "read").message(), "read: input/output error");
  EXPECT_EQ(make_error(ENOSYS, "wait").message(), "wait: function not implemented");
  EXPECT_EQ(make_error(EMULTIHOP, "x").message(), "x: multihop attempted");
  EXPECT_EQ(make_error(ENOTUNIQ, "x").message(), "x: name not unique on network");
  EXPECT_EQ(make_error(EL2HLT, "x").message(), "x: level 2 halted");
  EXPECT_EQ(make_error(EL2NSYNC, "x").message(), "x: level 2 not synchronized");
  EXPECT_EQ(make_error(ENOCSI, "x").message(), "x: no CSI structure available");
  EXPECT_EQ(make_error(ESRMNT, "x").message(), "x: srmount error");
  EXPECT_EQ(make_error(EBFONT, "x").message(), "x: bad font file format");
  EXPECT_EQ(make_error(ELIBSCN, "x").message(), "x: .lib section in a.out corrupted");
  EXPECT_EQ(make_error(ERFKILL, "x").message(), "x: operation not possible due to RF-kill");
}

class CategoryWithAbbreviation : public std::error_category {
 public:
  const char* name() const noexcept override { return "test"; }
  std::string message(int code) const override { return code == 1 ? "I/O failed" : "TLS failed"; }
};

TEST(Error, AbbreviationOfAnotherCategory) {
  const CategoryWithAbbreviation category;
  EXPECT_EQ(Error({1, category}, "x").message(), "x: I/O failed");
  EXPECT_EQ(Error({2, category}, "x").message(), "x: TLS failed");
}

TEST(Error, SubjectDescriptor) {
  EXPECT_EQ(Subject::descriptor(5).to_string(), "descriptor 5");
  EXPECT_EQ(Subject::descriptor(-1).to_string(), "descriptor -1");
  EXPECT_EQ(make_error(EBADF, "poll", Subject::descriptor(2147483647)).message(),
            "poll descriptor 2147483647: bad file descriptor");
}

TEST(Error, SubjectTextIsCutBetweenCharacters) {
  const std::string thirty(30, 'a');
  EXPECT_EQ(Subject::text(thirty).to_string(), thirty);
  EXPECT_EQ(Subject::text(thirty + "b").to_string(), thirty);
  const std::string euro = "\xe2\x82\xac";
  EXPECT_EQ(Subject::text(std::string(28, 'a') + euro).to_string(), std::string(28, 'a'));
  EXPECT_EQ(Subject::text(std::string(27, 'a') + euro).to_string(), std::string(27, 'a') + euro);
  EXPECT_EQ(Subject::text("").to_string(), "");
  EXPECT_EQ(Subject().to_string(), "");
}

TEST(Error, SubjectTextHasNoControlCharacters) {
  EXPECT_EQ(Subject::text("a\n\x1b[2Jb\x7f").to_string(), "a??[2Jb?");
  EXPECT_EQ(Subject::text(std::string_view("a\0b", 3)).to_string(), "a?b");
}

TEST(Error, SubjectAddress) {
  EXPECT_EQ(Subject::address(loopback(0)).to_string(), "127.0.0.1:0");
  EXPECT_EQ(Subject::address(Address()).to_string(), "");
}

TEST(Error, CodeChoosesTheCategory) {
  EXPECT_EQ(make_code(4095).category(), std::system_category());
  EXPECT_EQ(make_code(5000).category(), std::system_category());
  EXPECT_EQ(make_code(5001).category(), evix_category());
  EXPECT_EQ(make_code(5001), Errc::closed);
  EXPECT_EQ(make_error(Errc::busy, "receive"), Errc::busy);
  EXPECT_STREQ(evix_category().name(), "evix");
}

struct Equivalent {
  Errc code;
  std::errc condition;
};

TEST(Error, EvixCodesCompareWithTheirEquivalents) {
  constexpr Equivalent table[] = {
      {Errc::closed, std::errc::bad_file_descriptor},
      {Errc::stale_handle, std::errc::bad_file_descriptor},
      {Errc::queue_full, std::errc::no_buffer_space},
      {Errc::invalid_address, std::errc::invalid_argument},
      {Errc::backend_unknown, std::errc::invalid_argument},
      {Errc::backend_unavailable, std::errc::not_supported},
      {Errc::already_registered, std::errc::file_exists},
      {Errc::busy, std::errc::device_or_resource_busy},
      {Errc::not_connected, std::errc::not_connected},
  };
  for (const auto& [code, condition] : table) {
    EXPECT_EQ(make_error_code(code), condition) << make_error_code(code).message();
    EXPECT_EQ(make_error(code, "x"), condition);
    EXPECT_NE(make_error_code(code), std::errc::connection_refused);
  }
  for (const Errc code : {Errc::wrong_thread, Errc::forked, Errc::connections_full}) {
    EXPECT_EQ(make_error_code(code).default_error_condition().category(), evix_category());
  }
}

TEST(Error, EveryEvixCodeHasItsOwnMessage) {
  std::vector<std::string> messages;
  for (int code = 5001; code <= static_cast<int>(Errc::connections_full); ++code) {
    const std::string message = evix_category().message(code);
    EXPECT_NE(message, "unknown error") << code;
    EXPECT_FALSE(message.ends_with('.')) << message;
    EXPECT_TRUE(message[0] >= 'a' && message[0] <= 'z') << message;
    messages.push_back(message);
  }
  std::sort(messages.begin(), messages.end());
  EXPECT_EQ(std::unique(messages.begin(), messages.end()), messages.end());
  EXPECT_EQ(evix_category().message(static_cast<int>(Errc::connections_full) + 1), "unknown error");
}

TEST(Error, FailureConvertsToResult) {
  const Result<int> result = failure(ENOENT, "open", Subject::text("/x"));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message(), "open /x: no such file or directory");
}

TEST(Error, ComplainPrintsOneLineAndGivesOne) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(complain(make_error(EADDRINUSE, "listen", Subject::address(loopback(80)))), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "listen 127.0.0.1:80: address already in use\n");
}

}  // namespace
}  // namespace evix::detail
