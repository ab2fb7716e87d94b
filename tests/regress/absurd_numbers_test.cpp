#include <evix.h>
#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <string>

// A buffer size near the largest number wrapped around, and what was received was written beyond a
// block of a few bytes; words for the smallest code negated a number that has no negation; the size
// of a structure could cut a pointer in it, and half of that was followed.
namespace evix::test {
namespace {

TEST(AbsurdNumbers, BufferOfTheLargestSize) {
  for (const std::size_t size : {SIZE_MAX, SIZE_MAX - 8, SIZE_MAX - 20}) {
    Loop loop(LoopOptions{.buffer_size = size});
    TcpListener listener(loop);
    TcpStream server;
    std::string received;
    ASSERT_TRUE(listener.listen("127.0.0.1:0", [&](Result<TcpStream> accepted) {
      server = std::move(*accepted);
      server.receive_start([&](Result<Buffer> buffer) {
        // More than one call can move is not asked for, and may be more than there is.
        if (buffer) received += buffer->text();
        server.close();
        listener.close();
      });
    }));
    TcpStream client(loop);
    client.connect(*listener.local_address(), [&](const Result<void>& connected) {
      ASSERT_TRUE(connected.has_value());
      EXPECT_TRUE(client.send_copy(std::string(4096, 'x')).has_value());
    });
    EXPECT_EQ(loop.run_for(std::chrono::seconds(10)), 0);
    EXPECT_TRUE(received.empty() || received == std::string(4096, 'x'));
    EXPECT_TRUE(server.closed());
  }
}

TEST(AbsurdNumbers, SizeThatEndsInsideAPointer) {
  evix_loop_t* loop = evix_loop_create(nullptr);
  ASSERT_NE(loop, nullptr);
  evix_connect_options_t options{};
  options.local_address = "127.0.0.1:0";
  const auto done = [](evix_stream_t*, int, void*) {};
  for (std::size_t size = 0; size <= sizeof options + 8; ++size) {
    options.size = size;
    evix_stream_t* stream = evix_tcp_connect(loop, "127.0.0.1:1", &options, done, nullptr);
    const bool valid = size != 0 && size % sizeof(void*) == 0 && size <= sizeof options;
    EXPECT_EQ(stream != nullptr, valid) << size;
    if (!valid) {
      EXPECT_EQ(evix_last_error_code(), -EINVAL);
    }
  }
  EXPECT_EQ(evix_loop_destroy(loop), 0);
}

TEST(AbsurdNumbers, WordsForAnyCode) {
  for (const int code : {INT_MIN, INT_MIN + 1, -1'000'000, -5099, -5100, -1, 0, INT_MAX}) {
    EXPECT_STRNE(evix_error_text(code), "");
  }
  EXPECT_STREQ(evix_error_text(INT_MIN), evix_error_text(INT_MIN + 1));
}

}  // namespace
}  // namespace evix::test
