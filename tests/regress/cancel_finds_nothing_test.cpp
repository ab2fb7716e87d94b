#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <string>

#include "backend/tcp_support.hpp"
#include "support/fault_calls.hpp"
#include "support/offered.hpp"

// The kernel was giving a send to a worker thread while it was asked to cancel it: it found nothing
// (ENOENT), the send waited in the worker for a peer that did not read, and close() for the send,
// for ever. One of thirty runs of RandomSequence on a busy machine.
namespace evix::test {
namespace {

class CancelFindsNothing : public TcpConformance {};
INSTANTIATE_TEST_SUITE_P(Backends, CancelFindsNothing,
                         testing::ValuesIn(offered({BackendKind::io_uring})), backend_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CancelFindsNothing);

TEST_P(CancelFindsNothing, CloseAsksAgain) {
  FaultyLoop faulty(GetParam());
  Loop& own = *faulty.loop;
  Pair pair = make_pair(own);
  stuff(pair.client);
  const std::string rest = pattern(100'000);
  Outcome sent;
  Outcome closed;
  pair.client.send(bytes_of(rest), sent.callback());
  settle(own);
  ASSERT_FALSE(sent.done());
  faulty.calls->lose_cancels_of_ring(2);
  pair.client.close(closed.closed_callback());
  EXPECT_EQ(faulty.calls->cancels_to_lose(), 0U) << "nothing was to be cancelled";
  ASSERT_TRUE(until(own, [&] { return closed.done(); }));
  EXPECT_EQ(sent.calls, 1);
  EXPECT_EQ(sent.code, std::errc::operation_canceled);
  EXPECT_EQ(own.counters().send_queue_bytes, 0U);
}

}  // namespace
}  // namespace evix::test
