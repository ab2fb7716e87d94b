#include "sys/address.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cstring>
#include <string>
#include <string_view>

#include "sys/error.hpp"

namespace evix::detail {
namespace {

using namespace std::string_view_literals;

struct Good {
  std::string_view text;
  std::string_view printed;
};

TEST(Address, ParsesAndPrints) {
  constexpr Good table[] = {
      {"127.0.0.1:3000", "127.0.0.1:3000"},
      {"0.0.0.0:0", "0.0.0.0:0"},
      {"255.255.255.255:65535", "255.255.255.255:65535"},
      {"[::]:0", "[::]:0"},
      {"[::1]:3000", "[::1]:3000"},
      {"[0:0:0:0:0:0:0:1]:3000", "[::1]:3000"},
      {"[FE80::1]:80", "[fe80::1]:80"},
      {"[fe80::1%2]:80", "[fe80::1%2]:80"},
      {"[fe80::1%4294967295]:80", "[fe80::1%4294967295]:80"},
      {"[::ffff:1.2.3.4]:80", "[::ffff:1.2.3.4]:80"},
      {"[2001:db8:1111:2222:3333:4444:5555:6666]:65535",
       "[2001:db8:1111:2222:3333:4444:5555:6666]:65535"},
  };
  for (const auto& [text, printed] : table) {
    const auto address = Address::parse(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->to_string(), printed);
    const auto again = Address::parse(printed);
    ASSERT_TRUE(again) << printed;
    EXPECT_EQ(*again, *address);
  }
}

TEST(Address, PartsOfAParsedAddress) {
  const auto four = Address::parse("10.20.30.40:1234");
  ASSERT_TRUE(four);
  EXPECT_EQ(four->family(), Address::Family::ipv4);
  EXPECT_EQ(four->port(), 1234);
  EXPECT_EQ(four->scope(), 0U);
  EXPECT_EQ(*four, Address::ipv4({10, 20, 30, 40}, 1234));
  const auto six = Address::parse("[fe80::1%7]:1234");
  ASSERT_TRUE(six);
  EXPECT_EQ(six->family(), Address::Family::ipv6);
  EXPECT_EQ(six->scope(), 7U);
  EXPECT_EQ(six->bytes()[0], 0xfe);
  EXPECT_EQ(six->bytes()[15], 1);
  EXPECT_NE(*six, *Address::parse("[fe80::1%8]:1234"));
  EXPECT_NE(*six, *Address::parse("[fe80::1%7]:1235"));
}

TEST(Address, RefusesEverythingElse) {
  const std::string long_host(5000, '1');
  const std::string_view table[] = {
      "",
      " ",
      ":",
      ":80",
      "80",
      "127.0.0.1",
      "127.0.0.1:",
      "127.0.0.1: 80",
      "127.0.0.1:80 ",
      " 127.0.0.1:80",
      "127.0.0.1 :80",
      "127.0.0.1:-1",
      "127.0.0.1:+80",
      "127.0.0.1:65536",
      "127.0.0.1:99999999999999999999",
      "127.0.0.1:0x50",
      "127.0.0.1:080",
      "127.0.0.1:00",
      "127.0.0.1:http",
      "127.0.0.1:80a",
      "127.0.0.1:8.0",
      "127.0.0.1:80:80",
      "127.0.0:80",
      "127.1:80",
      "127.0.0.1.1:80",
      "256.0.0.1:80",
      "127.0.0.01:80",
      "127.0.0.-1:80",
      "0x7f.0.0.1:80",
      "2130706433:80",
      "localhost:80",
      "example.com:80",
      "*:80",
      "[]:80",
      "[:80",
      "]:80",
      "[::1]",
      "[::1]80",
      "[::1]:",
      "[::1:80",
      "::1]:80",
      "::1:80",
      "[::1]:65536",
      "[::1]:-1",
      "[127.0.0.1]:80",
      "[:::1]:80",
      "[1:2:3:4:5:6:7]:80",
      "[1:2:3:4:5:6:7:8:9]:80",
      "[12345::1]:80",
      "[g::1]:80",
      "[::1 ]:80",
      "[ ::1]:80",
      "[[::1]]:80",
      "[fe80::1%]:80",
      "[fe80::1%0]:80",
      "[fe80::1%02]:80",
      "[fe80::1%lo]:80",
      "[fe80::1%-1]:80",
      "[fe80::1%4294967296]:80",
      "[fe80::1%1%1]:80",
      "[%1]:80",
      "127.0.0.1%1:80",
      "[::1]:80]",
      "x[::1]:80",
      "[::1]x:80",
      "[::ffff:256.1.1.1]:80",
      "127.0.0.1:80\n",
      "\t127.0.0.1:80",
      "127.0.0.1\0:80"sv,
      "127.0.0.1:80\0"sv,
      "\0"sv,
      "[::1\0]:80"sv,
      "tcp://127.0.0.1:80",
      "127.0.0.1:80/",
      "127.0.0.1,80",
      "\xff\xff:80",
      "١٢٧.0.0.1:80",
      long_host,
  };
  EXPECT_GE(std::size(table), 40U);
  for (const std::string_view text : table) {
    const auto address = Address::parse(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error(), Errc::invalid_address) << text;
    EXPECT_EQ(address.error(), std::errc::invalid_argument) << text;
    EXPECT_EQ(address.error().subject().to_string(), Subject::text(text).to_string());
  }
}

TEST(Address, RefusalSaysWhatAndWhatIsExpected) {
  EXPECT_EQ(Address::parse("localhost:80").error().message(),
            "parse localhost:80: not an address; expected IPV4:PORT or [IPV6]:PORT");
}

TEST(Address, Loopback) {
  EXPECT_TRUE(Address::parse("127.0.0.1:1")->is_loopback());
  EXPECT_TRUE(Address::parse("127.255.255.255:1")->is_loopback());
  EXPECT_FALSE(Address::parse("128.0.0.1:1")->is_loopback());
  EXPECT_TRUE(Address::parse("[::1]:1")->is_loopback());
  EXPECT_FALSE(Address::parse("[::]:1")->is_loopback());
  EXPECT_FALSE(Address::parse("[7f00::1]:1")->is_loopback());
  EXPECT_FALSE(Address().is_loopback());
}

TEST(Address, NoneHasNoText) {
  EXPECT_EQ(Address().to_string(), "");
  EXPECT_EQ(to_socket_address(Address()).size, 0U);
  EXPECT_EQ(to_socket_address(Address()).family(), AF_UNSPEC);
}

TEST(Address, SocketAddressRoundTrip) {
  for (const auto text : {"127.0.0.1:3000", "[::1]:1", "[fe80::1%3]:65535", "0.0.0.0:0"}) {
    const Address address = *Address::parse(text);
    const SocketAddress socket_address = to_socket_address(address);
    EXPECT_EQ(from_socket_address(socket_address.storage, socket_address.size), address);
    EXPECT_EQ(from_socket_address(socket_address.storage, socket_address.size - 1), Address());
    EXPECT_EQ(from_socket_address(socket_address.storage, 0), Address());
  }
}

TEST(Address, SocketAddressIsInNetworkOrder) {
  const SocketAddress four = to_socket_address(*Address::parse("1.2.3.4:258"));
  ASSERT_EQ(four.size, sizeof(sockaddr_in));
  const auto* bytes = reinterpret_cast<const unsigned char*>(four.get());
  EXPECT_EQ(std::memcmp(bytes + 2, "\x01\x02\x01\x02\x03\x04", 6), 0);
}

TEST(Address, OtherFamiliesAreNone) {
  sockaddr_storage storage{};
  storage.ss_family = AF_UNIX;
  EXPECT_EQ(from_socket_address(storage, sizeof(sockaddr_un)), Address());
}

}  // namespace
}  // namespace evix::detail
