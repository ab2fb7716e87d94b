#include <cerrno>

#include "backend/tcp_support.hpp"

// The kernel had no memory to register a stream's descriptor (ENOMEM, ENOSPC of epoll_ctl(2)). The
// receive was tried once, found bytes, and was taken for one that waits: it was in no set, so what
// came later was never seen. Found by tests/soak.
namespace evix::test {
namespace {

using detail::CallId;

class RefusedRegistrationHangs : public TcpConformance {
 protected:
  /** The client receives; the change that this needs in the set is refused `times` times. */
  void receive_and_refuse(std::uint64_t times) {
    ASSERT_TRUE(pair_.server.send_copy("first"));
    pair_.client.receive_start(inbox_.callback());
    faults_.fail(CallId::epoll_control, 1, ENOMEM, times);
  }

  FaultyLoop faulty_{GetParam()};
  detail::FaultCalls& faults_ = *faulty_.calls;
  Loop& own_ = *faulty_.loop;
  Pair pair_ = make_pair(own_);
  Inbox inbox_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RefusedRegistrationHangs);
INSTANTIATE_TEST_SUITE_P(Backends, RefusedRegistrationHangs,
                         testing::ValuesIn(offered({BackendKind::epoll})), backend_name);

TEST_P(RefusedRegistrationHangs, WhatComesLaterIsReceived) {
  receive_and_refuse(1);
  ASSERT_TRUE(until(own_, [&] { return inbox_.text == "first"; }));
  ASSERT_EQ(faults_.injected(CallId::epoll_control), 1U);
  ASSERT_TRUE(pair_.server.send_copy("second"));
  EXPECT_TRUE(until(own_, [&] { return inbox_.text == "firstsecond"; })) << inbox_.text;
  // Registered again, it costs what any other costs: one call for each part.
  faults_.reset_counts();
  ASSERT_TRUE(pair_.server.send_copy("third"));
  ASSERT_TRUE(until(own_, [&] { return inbox_.text == "firstsecondthird"; }));
  EXPECT_EQ(faults_.count(CallId::receive), 1U);
  EXPECT_FALSE(inbox_.over());
}

TEST_P(RefusedRegistrationHangs, ForGoodIsToldAfterWhatWasThere) {
  receive_and_refuse(UINT64_MAX);
  ASSERT_TRUE(until(own_, [&] { return inbox_.over(); }));
  EXPECT_EQ(inbox_.text, "first");
  EXPECT_EQ(inbox_.errors, 1);
  EXPECT_EQ(inbox_.code, std::errc::not_enough_memory);
}

}  // namespace
}  // namespace evix::test
