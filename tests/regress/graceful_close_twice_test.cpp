#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <vector>

namespace evix::test {
namespace {

// A producer that asks for the graceful close when it has queued its last bytes, and asks again
// when it hears that the queue has drained to its low mark, lost what was still queued: the second
// call closed the stream at once.
TEST(GracefulCloseTwice, KeepsQueuedBytesAndCallsBothCallbacks) {
  Loop loop;
  const std::vector<std::byte> bytes(8 * 1024 * 1024);
  std::size_t received = 0;
  int closes = 0;
  TcpStream sender;
  TcpStream reader(loop);
  TcpListener listener(loop);
  auto listening = listener.listen("127.0.0.1:0", [&](Result<TcpStream> peer) {
    listener.close();
    ASSERT_TRUE(peer);
    sender = std::move(*peer);
    ASSERT_TRUE(sender.send_copy(bytes));
    ASSERT_GT(sender.send_queue_bytes(), 0U);
    sender.close_gracefully({}, [&] { ++closes; });
    sender.close_gracefully({}, [&] { ++closes; });
    sender.close_gracefully();
    EXPECT_FALSE(sender.closed());
  });
  ASSERT_TRUE(listening);
  reader.connect(*listener.local_address(), [&](Result<void> connected) {
    ASSERT_TRUE(connected);
    reader.receive_start([&](Result<Buffer> chunk) {
      ASSERT_TRUE(chunk);
      received += chunk->size();
      if (chunk->empty()) reader.close();
    });
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(received, bytes.size());
  EXPECT_EQ(closes, 2);
}

}  // namespace
}  // namespace evix::test
