#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <vector>

#include "support/fault_calls.hpp"
#include "support/offered.hpp"

// A single accept() that found no descriptor free told its callback of that, went on waiting, and
// called it a second time with the connection.
namespace evix::test {
namespace {

using namespace std::chrono_literals;
using detail::CallId;

class AcceptToldTwice : public testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(listener.listen("127.0.0.1:0", ListenOptions{.retry_delay = 1ms}));
    client.connect(*listener.local_address(),
                   [](const Result<void>& connected) { EXPECT_TRUE(connected); });
    listener.accept([this](Result<TcpStream> result) {
      ++calls;
      if (result) {
        accepted = std::move(*result);
      } else {
        code = result.error().code();
      }
    });
  }
  /** Turns until `times` attempts have failed. */
  void run_until_failed(std::uint64_t times) {
    while (faults.injected(CallId::accept) < times) ASSERT_EQ(loop.run_once(5s), 0);
  }
  detail::FaultCalls faults;
  Loop loop{LoopOptions{.backend = GetParam(), .system_calls = &faults}};
  TcpListener listener{loop};
  TcpStream client{loop};
  TcpStream accepted;
  int calls = 0;
  std::error_code code;
};
INSTANTIATE_TEST_SUITE_P(Backends, AcceptToldTwice,
                         testing::ValuesIn(offered({BackendKind::epoll, BackendKind::poll,
                                                    BackendKind::io_uring})));

TEST_P(AcceptToldTwice, WaitsForDescriptors) {
  faults.fail(CallId::accept, 1, EMFILE, 3);
  run_until_failed(3);
  EXPECT_EQ(calls, 0);
  while (calls == 0) ASSERT_EQ(loop.run_once(5s), 0);
  EXPECT_EQ(loop.run_for(20ms), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(code);
  EXPECT_TRUE(accepted.connected());
  EXPECT_FALSE(listener.active());
}

TEST_P(AcceptToldTwice, ClosedWhileItWaits) {
  faults.refuse(CallId::accept, ENFILE);
  run_until_failed(2);
  EXPECT_EQ(calls, 0);
  listener.close();
  client.close();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(code, std::errc::operation_canceled);
}

TEST_P(AcceptToldTwice, StoppedWhileItWaits) {
  faults.refuse(CallId::accept, EMFILE);
  run_until_failed(2);
  listener.accept_stop();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 0) << "accept_stop() ends it without a call";
}

}  // namespace
}  // namespace evix::test
