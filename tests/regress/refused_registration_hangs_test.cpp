#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "support/fault_calls.hpp"

// The kernel had no memory to register a stream's descriptor (ENOMEM, ENOSPC of epoll_ctl(2)). The
// receive was tried once, found bytes, and was taken for one that waits: it was in no set, so what
// came later was never seen. Found by tests/soak.
namespace evix::test {
namespace {

using detail::CallId;
using namespace std::chrono_literals;

class RefusedRegistrationHangs : public testing::Test {
 protected:
  bool until(auto condition) {
    const TimePoint end = loop_.now() + 5s;
    while (!condition() && loop_.now() < end) EXPECT_EQ(loop_.run_once(5ms), 0);
    return condition();
  }

  /** The client receives; the change that this needs in the set is refused `times` times. */
  void connect_and_refuse(std::uint64_t times) {
    ASSERT_TRUE(listener_.listen("127.0.0.1:0", [this](Result<TcpStream> stream) {
      ASSERT_TRUE(stream);
      server_ = std::move(stream).value();
    }));
    bool connected = false;
    client_.connect(*listener_.local_address(), [&](const Result<void>& result) {
      ASSERT_TRUE(result) << result.error().message();
      connected = true;
    });
    ASSERT_TRUE(until([&] { return connected && server_.connected(); }));
    ASSERT_TRUE(server_.send_copy("first"));
    client_.receive_start([this](const Result<Buffer>& bytes) {
      if (bytes) {
        received_ += bytes->text();
      } else {
        error_ = bytes.error().code();
      }
    });
    faults_.fail(CallId::epoll_control, 1, ENOMEM, times);
  }

  detail::FaultCalls faults_;
  Loop loop_{LoopOptions{.backend = BackendKind::epoll, .system_calls = &faults_}};
  TcpListener listener_{loop_};
  TcpStream server_;
  TcpStream client_{loop_};
  std::string received_;
  std::error_code error_;
};

TEST_F(RefusedRegistrationHangs, WhatComesLaterIsReceived) {
  connect_and_refuse(1);
  ASSERT_TRUE(until([&] { return received_ == "first"; }));
  ASSERT_EQ(faults_.injected(CallId::epoll_control), 1U);
  ASSERT_TRUE(server_.send_copy("second"));
  EXPECT_TRUE(until([&] { return received_ == "firstsecond"; })) << received_;
  EXPECT_EQ(error_, std::error_code());
  // Registered again, it costs what any other costs: one call for each part.
  faults_.reset_counts();
  ASSERT_TRUE(server_.send_copy("third"));
  ASSERT_TRUE(until([&] { return received_ == "firstsecondthird"; }));
  EXPECT_EQ(faults_.count(CallId::receive), 1U);
}

TEST_F(RefusedRegistrationHangs, ForGoodIsToldAfterWhatWasThere) {
  connect_and_refuse(UINT64_MAX);
  ASSERT_TRUE(until([&] { return error_ != std::error_code(); }));
  EXPECT_EQ(received_, "first");
  EXPECT_EQ(error_, std::errc::not_enough_memory);
}

}  // namespace
}  // namespace evix::test
