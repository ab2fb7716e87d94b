#include <memory>

#include "backend/conformance.hpp"
#include "backend/stimulus.hpp"

// close_gracefully() inside the receive callback at the end of the input kept that callback: a
// session that lives by its own callback was never freed.
namespace evix::test {
namespace {

struct Session {
  TcpStream stream;
};

class GracefulCloseKeepsReceiveCallback : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    ASSERT_TRUE(pair.open(loop));
    handles_before = loop.counters().handles;
    session = std::make_shared<Session>(std::move(pair.server));
    watch = session;
  }
  void expect_freed() {
    EXPECT_EQ(loop.run(), 0);
    EXPECT_EQ(ends, 1);
    EXPECT_TRUE(watch.expired());
    EXPECT_EQ(loop.counters().handles, handles_before - 1);
  }
  TcpPair pair;
  std::uint64_t handles_before = 0;
  std::shared_ptr<Session> session;
  std::weak_ptr<Session> watch;
  int ends = 0;
};
EVIX_OVER_BACKENDS(GracefulCloseKeepsReceiveCallback);

TEST_P(GracefulCloseKeepsReceiveCallback, OfReceiveStart) {
  session->stream.receive_start([this, self = session](const Result<Buffer>& bytes) {
    ASSERT_TRUE(bytes);
    if (!bytes->empty()) return;
    ++ends;
    self->stream.close_gracefully();
  });
  session.reset();
  ASSERT_TRUE(pair.client.send_copy("last words"));
  pair.client.close();
  expect_freed();
}

TEST_P(GracefulCloseKeepsReceiveCallback, OfReceiveStartWithAnswerAndCallback) {
  int closes = 0;
  session->stream.receive_start([this, &closes, self = session](const Result<Buffer>& bytes) {
    ASSERT_TRUE(bytes);
    if (!bytes->empty()) return;
    ++ends;
    ASSERT_TRUE(self->stream.send_copy("answer"));
    self->stream.close_gracefully({}, [&closes, self] { ++closes; });
  });
  session.reset();
  pair.client.shutdown_send([](Result<void>) {});
  pair.client.receive_start([this](const Result<Buffer>& bytes) {
    if (!bytes || bytes->empty()) pair.client.close();
  });
  expect_freed();
  EXPECT_EQ(closes, 1);
}

TEST_P(GracefulCloseKeepsReceiveCallback, OfReceive) {
  session->stream.receive([this, self = session](const Result<Buffer>& bytes) {
    ASSERT_TRUE(bytes);
    EXPECT_TRUE(bytes->empty());
    ++ends;
    self->stream.close_gracefully();
  });
  session.reset();
  pair.client.close();
  expect_freed();
}

// The input has not ended: it is drained after the callback.
TEST_P(GracefulCloseKeepsReceiveCallback, OfReceiveStartBeforeTheEnd) {
  session->stream.receive_start([this, self = session](const Result<Buffer>& bytes) {
    ASSERT_TRUE(bytes);
    EXPECT_EQ(bytes->text(), "enough");
    ++ends;
    self->stream.close_gracefully();
  });
  session.reset();
  ASSERT_TRUE(pair.client.send_copy("enough"));
  pair.client.receive_start([this](const Result<Buffer>& bytes) {
    if (!bytes || bytes->empty()) pair.client.close();
  });
  expect_freed();
}

}  // namespace
}  // namespace evix::test
