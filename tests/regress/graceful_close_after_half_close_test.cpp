#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "support/offered.hpp"

// The peer had shut its sending side before a long answer was queued and the stream was closed
// gracefully: the end of the input ended the stream, and most of the answer was thrown away.
namespace evix::test {
namespace {

class GracefulCloseAfterHalfClose : public testing::TestWithParam<BackendKind> {};
INSTANTIATE_TEST_SUITE_P(Backends, GracefulCloseAfterHalfClose,
                         testing::ValuesIn(offered({BackendKind::epoll, BackendKind::poll,
                                                    BackendKind::sim, BackendKind::io_uring})));

TEST_P(GracefulCloseAfterHalfClose, SendsEverything) {
  constexpr std::size_t answer_size = 8 * 1024 * 1024;
  Loop loop{LoopOptions{.backend = GetParam()}};
  const std::string answer(answer_size, 'a');
  TcpListener listener{loop};
  TcpStream client{loop};
  TcpStream server;
  std::size_t received = 0;
  bool ended = false;
  int closes = 0;
  ASSERT_TRUE(listener.listen("127.0.0.1:0", [&](Result<TcpStream> peer) {
    listener.close();
    server = std::move(*peer);
    server.receive_start([&](const Result<Buffer>& bytes) {
      if (!bytes || !bytes->empty()) return;
      ASSERT_TRUE(server.send_copy(answer));
      server.close_gracefully({}, [&] { ++closes; });
    });
  }));
  client.connect(*listener.local_address(), [&](const Result<void>& connected) {
    ASSERT_TRUE(connected);
    client.shutdown_send({});
    client.receive_start([&](const Result<Buffer>& bytes) {
      ASSERT_TRUE(bytes);
      received += bytes->size();
      ended = bytes->empty();
      if (ended) client.close();
    });
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(received, answer_size);
  EXPECT_TRUE(ended);
  EXPECT_EQ(closes, 1);
}

}  // namespace
}  // namespace evix::test
