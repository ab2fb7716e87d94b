#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/conformance.hpp"
#include "backend/stimulus.hpp"

// A handle counted the work that was queued for it in 16 bits. With 65,536 sends due, its record
// was freed when the handle died, or when the count next came through zero, while the rest of the
// work still pointed to it.
namespace evix::test {
namespace {

constexpr int sends = 70'000;

class ManyQueuedWorks : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    ASSERT_TRUE(pair.open(loop));
    handles_before = loop.counters().handles;
  }
  /** What is due when a callback runs counts its calls; all of them hold the token. */
  TcpStream::DoneCallback counting() {
    return [this, held = token](Result<void>) { ++calls; };
  }
  static std::span<const std::byte> byte() {
    static const std::byte value{'x'};
    return {&value, 1};
  }
  TcpPair pair;
  std::uint64_t handles_before = 0;
  int calls = 0;
  std::shared_ptr<int> token = std::make_shared<int>(0);
};
EVIX_OVER_BACKENDS(ManyQueuedWorks);

TEST_P(ManyQueuedWorks, EachRunsOnce) {
  loop.post([this] {
    pair.client.shutdown_send([](Result<void>) {});
    // After the half-close each is refused, which is a callback that is due.
    for (int number = 0; number < sends; ++number) pair.client.send(byte(), counting());
  });
  ASSERT_TRUE(run_until([&] { return calls == sends; }));
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, sends);
  EXPECT_EQ(token.use_count(), 1);
  EXPECT_EQ(loop.counters().handles, handles_before);
}

TEST_P(ManyQueuedWorks, DieWithTheHandle) {
  loop.post([this] {
    pair.client.shutdown_send([](Result<void>) {});
    for (int number = 0; number < sends; ++number) pair.client.send(byte(), counting());
    pair.client = TcpStream();
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(token.use_count(), 1);
  EXPECT_EQ(loop.counters().handles, handles_before - 1);
}

// All that the records were freed for is given out again: nothing was freed twice.
TEST_P(ManyQueuedWorks, LeaveTheirPlaceWhole) {
  loop.post([this] {
    pair.client.shutdown_send([](Result<void>) {});
    for (int number = 0; number < 65'535; ++number) pair.client.send(byte(), counting());
    pair.client = TcpStream();
    pair.client = TcpStream(loop);  // takes the place that is free too early
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(loop.counters().handles, handles_before);
  std::vector<TcpStream> streams;
  for (int number = 0; number < 10; ++number) streams.emplace_back(loop);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    EXPECT_NE(streams[i].record(), pair.client.record());
    for (std::size_t k = 0; k < i; ++k) EXPECT_NE(streams[i].record(), streams[k].record());
  }
}

TEST_P(ManyQueuedWorks, FirstCallbackDestroysTheStream) {
  std::optional<TcpStream> stream(std::move(pair.client));
  const std::string much(8 * 1024 * 1024, 'm');
  WaterMarks marks;
  marks.hard_bytes_max = 64 * 1024 * 1024;
  stream->set_water_marks(marks);
  std::error_code code;
  const auto destroy = [&, held = token](const Result<void>& result) {
    ++calls;
    code = result ? std::error_code() : result.error().code();
    stream.reset();
  };
  loop.post([&] {
    stream->send(std::as_bytes(std::span(much)), destroy);  // no kernel takes that much at once
    for (int number = 0; number < sends; ++number) stream->send(byte(), destroy);
    pair.server.abort();
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(code == std::errc::connection_reset || code == std::errc::broken_pipe)
      << code.message();
  EXPECT_FALSE(stream);
  EXPECT_EQ(token.use_count(), 2) << "this test's and the one in `destroy`";
  EXPECT_EQ(loop.counters().handles, handles_before - 1);
}

}  // namespace
}  // namespace evix::test
