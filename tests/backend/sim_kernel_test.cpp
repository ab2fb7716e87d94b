#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "backend/sim.hpp"
#include "evix/poller.hpp"

/** @file
 * What the simulated kernel does where the real one cannot be asked: numbers, time, order, limits,
 * triggers one by one. tests/backend/sim_differential_test.cpp compares TCP itself.
 */
namespace evix::detail {
namespace {

constexpr Ready read_write = Ready::readable | Ready::writable;
constexpr std::int64_t second_ns = 1'000'000'000;

struct Pair {
  int client;
  int server;
};

class SimKernelTest : public testing::Test {
 protected:
  explicit SimKernelTest(std::uint64_t seed = 1)
      : sim_(make_sim(seed)), calls_(*sim_.calls), driver_(*sim_.driver) {}

  int make_socket() { return calls_.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0); }

  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  int bind_to(int fd, int port) {
    const sockaddr_in address = loopback(port);
    return calls_.bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }

  int connect_to(int fd, int port) {
    const sockaddr_in address = loopback(port);
    return calls_.connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }

  int port_of(int fd) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    calls_.local_name(fd, reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin_port);
  }

  int make_listener(int port, int backlog = 4096) {
    const int fd = make_socket();
    EXPECT_EQ(bind_to(fd, port), 0);
    EXPECT_EQ(calls_.listen(fd, backlog), 0);
    return fd;
  }

  Pair make_pair(int listener, int port) {
    const int client = make_socket();
    EXPECT_EQ(connect_to(client, port), -EINPROGRESS);
    wait(0);
    return {client, calls_.accept(listener)};
  }

  std::int64_t send(int fd, const std::string& text) {
    return calls_.send(fd, text.data(), text.size());
  }

  std::string receive(int fd, std::size_t size = 100) {
    std::string text(size, '\0');
    const std::int64_t count = calls_.receive(fd, text.data(), size);
    return count < 0 ? "error " + std::to_string(-count)
                     : text.substr(0, static_cast<std::size_t>(count));
  }

  int error_of(int fd) {
    int value = -1;
    socklen_t size = sizeof value;
    EXPECT_EQ(calls_.get_option(fd, SOL_SOCKET, SO_ERROR, &value, &size), 0);
    return value;
  }

  /** Keys and bits in the order of the events. */
  std::vector<std::pair<std::uint64_t, Ready>> wait(std::int64_t timeout_ns,
                                                    std::size_t size = 10'000) {
    std::vector<DriverEvent> events(size);
    const int count = driver_.wait(timeout_ns, events);
    EXPECT_GE(count, 0);
    std::vector<std::pair<std::uint64_t, Ready>> seen;
    for (int index = 0; index < count; ++index) {
      const DriverEvent event = events[static_cast<std::size_t>(index)];
      // By value: a record as the kernel packs it has no aligned members to refer to.
      seen.push_back({std::uint64_t{event.key}, Ready{event.ready}});
    }
    return seen;
  }

  using Seen = std::vector<std::pair<std::uint64_t, Ready>>;

  Sim sim_;
  Calls& calls_;
  PollDriver& driver_;
};

TEST_F(SimKernelTest, DriverSaysWhatItIs) {
  EXPECT_EQ(driver_.kind(), BackendKind::sim);
  EXPECT_TRUE(driver_.supports_edge());
  EXPECT_TRUE(driver_.waits_nanoseconds());
}

TEST_F(SimKernelTest, NumbersAreTheLowestFreeFromTheBase) {
  EXPECT_EQ(make_socket(), 1'000'000);
  EXPECT_EQ(make_socket(), 1'000'001);
  EXPECT_EQ(make_socket(), 1'000'002);
  EXPECT_EQ(make_socket(), 1'000'003);
  EXPECT_EQ(calls_.close(1'000'002), 0);
  EXPECT_EQ(calls_.close(1'000'000), 0);
  EXPECT_EQ(calls_.close(1'000'000), -EBADF);
  EXPECT_EQ(make_socket(), 1'000'000);
  EXPECT_EQ(make_socket(), 1'000'002);
  EXPECT_EQ(make_socket(), 1'000'004);
}

TEST_F(SimKernelTest, TheLimitIsTwentyThousand) {
  const int listener = make_listener(80);
  for (int count = 1; count < 20'000; ++count) ASSERT_EQ(make_socket(), 1'000'000 + count);
  EXPECT_EQ(make_socket(), -EMFILE);
  EXPECT_EQ(calls_.accept(listener), -EMFILE) << "Linux takes the number before it looks";

  // K15: the connection stays queued and the listener readable.
  EXPECT_EQ(connect_to(1'019'999, 80), -EINPROGRESS);
  EXPECT_EQ(driver_.add(listener, 7, Ready::readable, Trigger::level), 0);
  EXPECT_EQ(wait(0), (Seen{{7, Ready::readable}}));
  EXPECT_EQ(calls_.accept(listener), -EMFILE);
  EXPECT_EQ(wait(0), (Seen{{7, Ready::readable}}));
  EXPECT_EQ(calls_.close(1'000'500), 0);
  EXPECT_EQ(calls_.accept(listener), 1'000'500);
  EXPECT_EQ(wait(0), Seen{});
}

TEST_F(SimKernelTest, OnlyNonBlockingStreamSocketsExist) {
  EXPECT_EQ(calls_.socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), -EAFNOSUPPORT);
  EXPECT_EQ(calls_.socket(AF_INET, SOCK_STREAM, 0), -EINVAL);
  EXPECT_EQ(calls_.socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), -EPROTONOSUPPORT);
  EXPECT_EQ(calls_.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_UDP), -EPROTONOSUPPORT);
  EXPECT_EQ(calls_.socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP),
            1'000'000);
  EXPECT_EQ(calls_.descriptor_flags(1'000'000), O_RDWR | O_NONBLOCK);
  EXPECT_EQ(calls_.set_nonblocking(1'000'000, O_RDWR), 0);
}

TEST_F(SimKernelTest, RealDescriptorsDoNotExistHere) {
  const int real = Calls::kernel().socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  ASSERT_GE(real, 0);
  EXPECT_EQ(calls_.listen(real, 1), -EBADF);
  EXPECT_EQ(calls_.descriptor_flags(real), -EBADF);
  EXPECT_EQ(calls_.set_nonblocking(real, 0), -EBADF);
  EXPECT_EQ(calls_.close(real), -EBADF);
  EXPECT_EQ(driver_.add(real, 1, Ready::readable, Trigger::level), -EBADF);
  EXPECT_EQ(driver_.modify(real, 1, Ready::readable, Trigger::level), -EBADF);
  EXPECT_EQ(driver_.remove(real, 1), -EBADF);
  EXPECT_EQ(Calls::kernel().close(real), 0) << "still open";
  EXPECT_EQ(driver_.add(-1, 1, Ready::readable, Trigger::level), -EBADF);
  EXPECT_EQ(driver_.add(INT32_MAX, 1, Ready::readable, Trigger::level), -EBADF);
  EXPECT_EQ(driver_.add(INT32_MIN, 1, Ready::readable, Trigger::level), -EBADF);
}

TEST_F(SimKernelTest, OtherCallsForWaitingAreRefused) {
  epoll_event event{};
  pollfd entry{};
  EXPECT_EQ(calls_.epoll_create(), -ENOSYS);
  EXPECT_EQ(calls_.epoll_control(1, EPOLL_CTL_ADD, 2, &event), -ENOSYS);
  EXPECT_EQ(calls_.epoll_wait_ns(1, &event, 1, 0), -ENOSYS);
  EXPECT_EQ(calls_.epoll_wait_ms(1, &event, 1, 0), -ENOSYS);
  EXPECT_EQ(calls_.poll(&entry, 1, 0), -ENOSYS);
}

TEST_F(SimKernelTest, TheEphemeralRangeStartsAtItsFirstPort) {
  const int first = make_socket();
  const int second = make_socket();
  EXPECT_EQ(bind_to(first, 0), 0);
  EXPECT_EQ(bind_to(second, 0), 0);
  EXPECT_EQ(port_of(first), 32768);
  EXPECT_EQ(port_of(second), 32769);
  const int client = make_socket();
  EXPECT_EQ(connect_to(client, 80), -EINPROGRESS);
  EXPECT_EQ(port_of(client), 32770);
}

TEST_F(SimKernelTest, AddressesOutsideAreUnreachable) {
  const int fd = make_socket();
  sockaddr_in address = loopback(80);
  address.sin_addr.s_addr = htonl(0xcb007101);  // 203.0.113.1
  EXPECT_EQ(calls_.connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address),
            -ENETUNREACH);
  EXPECT_EQ(calls_.connect(fd, reinterpret_cast<const sockaddr*>(&address), 8), -EINVAL);
  EXPECT_EQ(calls_.connect(fd, reinterpret_cast<const sockaddr*>(&address), 1), -EINVAL);
  EXPECT_EQ(connect_to(fd, 80), -EINPROGRESS) << "nothing of it stuck";
}

TEST_F(SimKernelTest, NamesAreCutToTheRoomGiven) {
  const int fd = make_socket();
  EXPECT_EQ(bind_to(fd, 80), 0);
  std::array<unsigned char, 8> cut{};
  cut.fill(0xee);
  socklen_t size = 4;
  EXPECT_EQ(calls_.local_name(fd, reinterpret_cast<sockaddr*>(cut.data()), &size), 0);
  EXPECT_EQ(size, sizeof(sockaddr_in));
  EXPECT_EQ(cut[3], 80);
  EXPECT_EQ(cut[4], 0xee);
}

TEST_F(SimKernelTest, OptionsAreCutAndChecked) {
  const int fd = make_socket();
  std::array<unsigned char, 4> cut = {0xee, 0xee, 0xee, 0xee};
  socklen_t size = 1;
  EXPECT_EQ(calls_.get_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, cut.data(), &size), 0);
  EXPECT_EQ(size, 1U);
  EXPECT_EQ(cut[0], 7200 & 0xff);
  EXPECT_EQ(cut[1], 0xee);
  const int value = 1;
  EXPECT_EQ(calls_.set_option(fd, SOL_SOCKET, SO_REUSEADDR, &value, 3), -EINVAL);
  EXPECT_EQ(calls_.set_option(fd, SOL_SOCKET, SO_LINGER, &value, sizeof value), -EINVAL);
}

TEST_F(SimKernelTest, BuffersAreBounded) {
  const int listener = make_listener(80);
  const auto [client, server] = make_pair(listener, 80);
  const std::string block(2'000'000, 'x');
  EXPECT_EQ(send(client, block), 2'000'000);
  EXPECT_EQ(send(client, block), 621'440) << "a short write";
  EXPECT_EQ(send(client, "x"), -EAGAIN);
  EXPECT_EQ(driver_.add(client, 1, Ready::writable, Trigger::level), 0);
  EXPECT_EQ(receive(server, 873'812).size(), 873'812U);
  EXPECT_EQ(wait(0), Seen{}) << "one byte less than a third is free";
  EXPECT_EQ(receive(server, 1).size(), 1U);
  EXPECT_EQ(wait(0), (Seen{{1, Ready::writable}}));
  EXPECT_EQ(send(client, block), 873'813);
  std::size_t rest = 0;
  for (std::string bytes; (bytes = receive(server, 700'000))[0] == 'x';) rest += bytes.size();
  EXPECT_EQ(rest, 2'621'440U);
}

TEST_F(SimKernelTest, ASetSendBufferBoundsTheDirection) {
  const int listener = make_listener(80);
  const auto [client, server] = make_pair(listener, 80);
  const int value = 5000;
  EXPECT_EQ(calls_.set_option(client, SOL_SOCKET, SO_SNDBUF, &value, sizeof value), 0);
  EXPECT_EQ(send(client, std::string(20'000, 'x')), 10'000);
  EXPECT_EQ(send(server, std::string(20'000, 'x')), 20'000);
}

TEST_F(SimKernelTest, TimeMovesByTheTimeoutAndOnlyWhenNothingIsReady) {
  EXPECT_EQ(calls_.clock_now(), second_ns);
  EXPECT_EQ(wait(0), Seen{});
  EXPECT_EQ(calls_.clock_now(), second_ns);
  EXPECT_EQ(wait(1), Seen{});
  EXPECT_EQ(calls_.clock_now(), second_ns + 1);
  EXPECT_EQ(wait(3600 * second_ns), Seen{});
  EXPECT_EQ(calls_.clock_now(), 3601 * second_ns + 1);
  const int fd = make_socket();
  EXPECT_EQ(driver_.add(fd, 5, Ready::readable, Trigger::level), 0);
  EXPECT_EQ(wait(second_ns), (Seen{{5, Ready::hangup}}));
  EXPECT_EQ(wait(-1), (Seen{{5, Ready::hangup}}));
  EXPECT_EQ(calls_.clock_now(), 3601 * second_ns + 1);
  EXPECT_EQ(driver_.remove(fd, 5), 0);
  EXPECT_EQ(wait(INT64_MAX), Seen{});
  EXPECT_EQ(calls_.clock_now(), INT64_MAX) << "stops at the end, does not wrap";
}

TEST_F(SimKernelTest, ConnectsCompleteInALaterWaitWithoutTime) {
  const int listener = make_listener(80);
  const int client = make_socket();
  EXPECT_EQ(driver_.add(listener, 1, Ready::readable, Trigger::level), 0);
  EXPECT_EQ(connect_to(client, 80), -EINPROGRESS);
  EXPECT_EQ(calls_.accept(listener), -EAGAIN);
  EXPECT_EQ(send(client, "x"), -EAGAIN);
  EXPECT_EQ(driver_.add(client, 2, Ready::writable, Trigger::level), 0);
  Seen seen = wait(-1);
  std::ranges::sort(seen, {}, &std::pair<std::uint64_t, Ready>::first);
  EXPECT_EQ(seen, (Seen{{1, Ready::readable}, {2, Ready::writable}}));
  EXPECT_EQ(calls_.clock_now(), second_ns);
}

TEST_F(SimKernelTest, ConnectsCompleteAlsoWhenOthersAreAlwaysReady) {
  const int listener = make_listener(80);
  const int busy = make_socket();
  EXPECT_EQ(driver_.add(busy, 1, Ready::writable, Trigger::level), 0);
  const int client = make_socket();
  EXPECT_EQ(connect_to(client, 80), -EINPROGRESS);
  wait(0);
  EXPECT_EQ(calls_.accept(listener), 1'000'003);
}

TEST_F(SimKernelTest, AConnectWaitsForTheQueueAndGivesUpAfter127Seconds) {
  const int listener = make_listener(80, 0);
  const int first = make_socket();
  const int second = make_socket();
  const int third = make_socket();
  for (const int fd : {first, second, third}) EXPECT_EQ(connect_to(fd, 80), -EINPROGRESS);
  EXPECT_EQ(wait(100 * second_ns), Seen{});
  EXPECT_GE(calls_.accept(listener), 0);
  EXPECT_EQ(wait(20 * second_ns), Seen{});
  EXPECT_EQ(calls_.clock_now(), 121 * second_ns);

  // Two have got in; the one that has not fails at 127 s, in the middle of the wait.
  int waiting = no_handle;
  for (const int fd : {first, second, third}) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (calls_.peer_name(fd, reinterpret_cast<sockaddr*>(&address), &size) < 0) waiting = fd;
  }
  EXPECT_EQ(driver_.add(waiting, 9, Ready::writable, Trigger::level), 0);
  EXPECT_EQ(wait(6 * second_ns), Seen{});
  EXPECT_EQ(wait(100 * second_ns),
            (Seen{{9, Ready::writable | Ready::error | Ready::hangup | Ready::read_closed}}));
  EXPECT_EQ(calls_.clock_now(), 128 * second_ns);
  EXPECT_EQ(error_of(waiting), ETIMEDOUT);
}

TEST_F(SimKernelTest, AConnectThatNobodyWatchesGivesUpWithoutChangingTheWait) {
  make_listener(80, 0);
  const int first = make_socket();
  const int second = make_socket();
  for (const int fd : {first, second}) EXPECT_EQ(connect_to(fd, 80), -EINPROGRESS);
  EXPECT_EQ(wait(200 * second_ns), Seen{});
  EXPECT_EQ(calls_.clock_now(), 201 * second_ns);
  EXPECT_EQ(error_of(first) + error_of(second), ETIMEDOUT) << "one got in, the other gave up";
}

TEST_F(SimKernelTest, APortStaysInTimeWaitForSixtySeconds) {
  const int listener = make_listener(80);
  const auto [client, server] = make_pair(listener, 80);
  EXPECT_EQ(calls_.close(listener), 0);
  EXPECT_EQ(calls_.close(server), 0);
  EXPECT_EQ(calls_.close(client), 0);
  const int again = make_socket();
  EXPECT_EQ(bind_to(again, 80), -EADDRINUSE);
  EXPECT_EQ(wait(60 * second_ns - 1), Seen{});
  EXPECT_EQ(bind_to(again, 80), -EADDRINUSE);
  EXPECT_EQ(wait(1), Seen{});
  EXPECT_EQ(bind_to(again, 80), 0);
}

TEST_F(SimKernelTest, TheChoiceOfInterestIsKept) {
  const int listener = make_listener(80);
  const auto [client, server] = make_pair(listener, 80);
  EXPECT_EQ(send(client, "x"), 1);
  EXPECT_EQ(driver_.add(server, 1, Ready::readable, Trigger::level), 0);
  EXPECT_EQ(driver_.add(server, 1, Ready::readable, Trigger::level), -EEXIST);
  EXPECT_EQ(wait(0), (Seen{{1, Ready::readable}}));
  EXPECT_EQ(driver_.modify(server, 2, Ready::writable, Trigger::level), 0);
  EXPECT_EQ(wait(0), (Seen{{2, Ready::writable}}));
  EXPECT_EQ(driver_.modify(server, 3, read_write, Trigger::level), 0);
  EXPECT_EQ(wait(0), (Seen{{3, read_write}}));
  EXPECT_EQ(wait(0), (Seen{{3, read_write}})) << "a level is reported at every wait";
  EXPECT_EQ(driver_.modify(client, 1, Ready::readable, Trigger::level), -ENOENT);
  EXPECT_EQ(driver_.remove(client, 1), -ENOENT);
  EXPECT_EQ(driver_.remove(server, 3), 0);
  EXPECT_EQ(driver_.remove(server, 3), -ENOENT);
  EXPECT_EQ(wait(0), Seen{});
}

TEST_F(SimKernelTest, AnEdgeIsReportedOnce) {
  const int listener = make_listener(80);
  const auto [client, server] = make_pair(listener, 80);
  EXPECT_EQ(driver_.add(server, 1, Ready::readable, Trigger::edge), 0);
  EXPECT_EQ(wait(0), Seen{});
  EXPECT_EQ(send(client, "a"), 1);
  EXPECT_EQ(send(client, "b"), 1);
  EXPECT_EQ(wait(0), (Seen{{1, Ready::readable}}));
  EXPECT_EQ(wait(0), Seen{});
  EXPECT_EQ(send(client, "c"), 1);
  EXPECT_EQ(wait(0), (Seen{{1, Ready::readable}})) << "new bytes, though the old are unread";
  EXPECT_EQ(wait(0), Seen{});
  EXPECT_EQ(driver_.modify(server, 2, Ready::readable, Trigger::edge), 0);
  EXPECT_EQ(wait(0), (Seen{{2, Ready::readable}})) << "a change asks again";
  EXPECT_EQ(send(client, "d"), 1);
  EXPECT_EQ(receive(server), "abcd");
  EXPECT_EQ(wait(0), Seen{}) << "taken before the wait";
  EXPECT_EQ(driver_.modify(server, 2, Ready::writable, Trigger::edge), 0);
  EXPECT_EQ(wait(0), (Seen{{2, Ready::writable}}));
  EXPECT_EQ(send(client, "e"), 1);
  EXPECT_EQ(wait(0), Seen{}) << "bytes are no news to somebody who asks for room";
}

TEST_F(SimKernelTest, AOneShotIsReportedOnceUntilItIsChanged) {
  const int listener = make_listener(80);
  const auto [client, server] = make_pair(listener, 80);
  EXPECT_EQ(driver_.add(server, 1, Ready::readable, Trigger::one_shot), 0);
  EXPECT_EQ(send(client, "a"), 1);
  EXPECT_EQ(wait(0), (Seen{{1, Ready::readable}}));
  EXPECT_EQ(send(client, "b"), 1);
  EXPECT_EQ(calls_.close(client), 0);
  EXPECT_EQ(wait(0), Seen{});
  EXPECT_EQ(driver_.modify(server, 1, Ready::readable, Trigger::one_shot), 0);
  EXPECT_EQ(wait(0), (Seen{{1, Ready::readable | Ready::read_closed}}));
  EXPECT_EQ(wait(0), Seen{});
}

TEST_F(SimKernelTest, ACloseForgetsTheInterestAndItsNumberStartsAnew) {
  const int listener = make_listener(80);
  const auto [client, server] = make_pair(listener, 80);
  EXPECT_EQ(driver_.add(server, 1, Ready::readable, Trigger::level), 0);
  EXPECT_EQ(send(client, "x"), 1);
  EXPECT_EQ(calls_.close(server), 0);
  EXPECT_EQ(driver_.remove(server, 1), -EBADF);
  EXPECT_EQ(make_socket(), server);
  EXPECT_EQ(wait(0), Seen{}) << "nothing of the old one reaches the new owner of the number";
  EXPECT_EQ(driver_.modify(server, 1, Ready::readable, Trigger::level), -ENOENT);
  EXPECT_EQ(driver_.add(server, 2, Ready::readable, Trigger::level), 0);
  EXPECT_EQ(wait(0), (Seen{{2, Ready::hangup}}));
}

TEST_F(SimKernelTest, RebuildForgetsInterestsOnly) {
  const int listener = make_listener(80);
  const auto [client, server] = make_pair(listener, 80);
  EXPECT_EQ(driver_.add(server, 1, read_write, Trigger::level), 0);
  EXPECT_EQ(driver_.rebuild(), 0);
  EXPECT_EQ(wait(0), Seen{});
  EXPECT_EQ(driver_.remove(server, 1), -ENOENT);
  EXPECT_EQ(send(client, "x"), 1);
  EXPECT_EQ(driver_.add(server, 2, read_write, Trigger::level), 0);
  EXPECT_EQ(wait(0), (Seen{{2, read_write}}));
  EXPECT_EQ(receive(server), "x");
}

TEST_F(SimKernelTest, WhatFoundNoRoomComesFirst) {
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 0; key < 10; ++key) {
    EXPECT_EQ(driver_.add(make_socket(), key, Ready::readable, Trigger::level), 0);
  }
  for (int round = 0; round < 3; ++round) {
    for (const auto& [key, ready] : wait(0, 4)) keys.push_back(key);
  }
  ASSERT_EQ(keys.size(), 12U);
  std::vector<std::uint64_t> first_ten(keys.begin(), keys.begin() + 10);
  std::ranges::sort(first_ten);
  EXPECT_EQ(first_ten, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

std::vector<std::uint64_t> order_of(std::uint64_t seed) {
  const Sim sim = make_sim(seed);
  for (std::uint64_t key = 0; key < 8; ++key) {
    const int fd = sim.calls->socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    sim.driver->add(fd, key, Ready::readable, Trigger::level);
  }
  std::vector<std::uint64_t> keys;
  for (int round = 0; round < 3; ++round) {
    std::array<DriverEvent, 8> events{};
    EXPECT_EQ(sim.driver->wait(0, events), 8);
    for (const DriverEvent& event : events) keys.push_back(std::uint64_t{event.key});
  }
  return keys;
}

TEST(SimOrder, TheSeedDecides) {
  std::vector<std::vector<std::uint64_t>> orders;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    orders.push_back(order_of(seed));
    EXPECT_EQ(orders.back(), order_of(seed)) << seed;
  }
  EXPECT_FALSE(std::equal(orders[0].begin(), orders[0].begin() + 8, orders[0].begin() + 8))
      << "each wait is shuffled anew";
  std::ranges::sort(orders);
  EXPECT_EQ(std::ranges::unique(orders).begin() - orders.begin(), 50) << "of 8!^3 orders";
}

TEST_F(SimKernelTest, EventDescriptorsAreReal) {
  const int event = calls_.event_create();
  ASSERT_GE(event, 0);
  ASSERT_LT(event, sim_descriptor_base);
  EXPECT_GE(calls_.descriptor_flags(event), 0);
  EXPECT_EQ(driver_.add(event, 3, Ready::readable, Trigger::level), 0);
  EXPECT_EQ(driver_.add(event, 3, Ready::readable, Trigger::level), -EEXIST);
  EXPECT_EQ(wait(0), Seen{});
  EXPECT_EQ(calls_.event_write(event), 8);
  EXPECT_EQ(wait(-1), (Seen{{3, Ready::readable}}));
  EXPECT_EQ(wait(second_ns), (Seen{{3, Ready::readable}}));
  EXPECT_EQ(calls_.clock_now(), second_ns);
  EXPECT_EQ(calls_.event_read(event), 8);
  EXPECT_EQ(wait(second_ns), Seen{});
  EXPECT_EQ(calls_.clock_now(), 2 * second_ns);
  EXPECT_EQ(driver_.modify(event, 4, Ready::readable, Trigger::one_shot), 0);
  EXPECT_EQ(calls_.event_write(event), 8);
  EXPECT_EQ(wait(0), (Seen{{4, Ready::readable}}));
  EXPECT_EQ(wait(0), Seen{});
  EXPECT_EQ(calls_.close(event), 0);
  EXPECT_EQ(calls_.close(event), -EBADF);
  EXPECT_EQ(driver_.remove(event, 4), -EBADF);
}

TEST_F(SimKernelTest, AnEventIsNotStarvedByBusySockets) {
  const int event = calls_.event_create();
  EXPECT_EQ(driver_.add(event, 100, Ready::readable, Trigger::level), 0);
  for (std::uint64_t key = 0; key < 5; ++key) {
    EXPECT_EQ(driver_.add(make_socket(), key, Ready::readable, Trigger::level), 0);
  }
  EXPECT_EQ(calls_.event_write(event), 8);
  int waits = 0;
  for (bool seen = false; !seen && waits < 100; ++waits) {
    for (const auto& [key, ready] : wait(0, 1)) seen = seen || key == 100;
  }
  EXPECT_LE(waits, 6);
  EXPECT_EQ(calls_.close(event), 0);
}

TEST_F(SimKernelTest, AnotherThreadEndsAWaitWithoutLimit) {
  const int event = calls_.event_create();
  EXPECT_EQ(driver_.add(event, 3, Ready::readable, Trigger::level), 0);
  std::thread other([&] { calls_.event_write(event); });
  EXPECT_EQ(wait(-1), (Seen{{3, Ready::readable}}));
  other.join();
  EXPECT_EQ(calls_.clock_now(), second_ns);
  EXPECT_EQ(calls_.close(event), 0);
}

TEST_F(SimKernelTest, NothingRaisesSigpipe) {
  struct sigaction before{};
  struct sigaction ignore{};
  ignore.sa_handler = SIG_DFL;
  ASSERT_EQ(calls_.signal_action(SIGPIPE, &ignore, &before), 0);
  const int listener = make_listener(80);
  const auto [client, server] = make_pair(listener, 80);
  EXPECT_EQ(calls_.close(client), 0);
  EXPECT_EQ(send(server, "accepted"), 8);
  EXPECT_EQ(send(server, "refused"), -EPIPE);
  EXPECT_EQ(send(make_socket(), "refused"), -EPIPE);
  EXPECT_EQ(calls_.signal_action(SIGPIPE, &before, nullptr), 0);
}

TEST_F(SimKernelTest, EitherHalfMayDieFirst) {
  Sim other = make_sim(9);
  const int fd = other.calls->socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  EXPECT_EQ(other.driver->add(fd, 1, Ready::readable, Trigger::level), 0);
  other.driver.reset();
  EXPECT_EQ(other.calls->close(fd), 0);
  Sim third = make_sim(9);
  EXPECT_EQ(third.calls->socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), fd);
  EXPECT_EQ(third.driver->add(fd, 1, Ready::readable, Trigger::level), 0);
  third.calls.reset();
  EXPECT_EQ(third.driver->remove(fd, 1), 0);
}

TEST_F(SimKernelTest, ManyConnectionsCarryTheirOwnBytes) {
  const int listener = make_listener(80);
  std::vector<int> clients;
  std::vector<int> servers;
  for (int count = 0; count < 9000; ++count) {
    clients.push_back(make_socket());
    ASSERT_EQ(connect_to(clients.back(), 80), -EINPROGRESS);
    if (count % 1000 != 999) continue;
    wait(0);
    for (int fd = 0; (fd = calls_.accept(listener)) >= 0;) servers.push_back(fd);
  }
  ASSERT_EQ(servers.size(), 9000U);
  for (const int client : clients) ASSERT_EQ(send(client, std::to_string(port_of(client))), 5);
  for (const int server : servers) {
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    ASSERT_EQ(calls_.peer_name(server, reinterpret_cast<sockaddr*>(&peer), &size), 0);
    ASSERT_EQ(receive(server), std::to_string(ntohs(peer.sin_port)));
    ASSERT_EQ(calls_.close(server), 0);
  }
  for (const int client : clients) {
    ASSERT_EQ(receive(client), "");
    ASSERT_EQ(calls_.close(client), 0);
  }
}

}  // namespace
}  // namespace evix::detail
