#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <new>
#include <vector>

#include "support/allocations.hpp"
#include "support/descriptors.hpp"
#include "support/offered.hpp"

// Closing, cancelling and changing an interest allocated in functions that cannot throw: without
// memory the process ended. Each allocation of a life with everything in it fails once here: a
// start that throws has done nothing, and what was started ends exactly once.
namespace evix::test {
namespace {

using namespace std::chrono_literals;

class Life {
 public:
  explicit Life(BackendKind kind) : loop_(LoopOptions{.backend = kind}) {}

  void run() {
    if (!listener_.listen("127.0.0.1:0", [this](Result<TcpStream> stream) {
          if (stream) serve(std::move(*stream));
        })) {
      return;
    }
    const auto address = listener_.local_address();
    attempt([&] {
      sender_.connect(*address, {.timeout = 5s}, [this](const Result<void>& done) {
        ++ended_;
        if (done) send_much();
      });
    });
    attempt([&] {
      reader_.connect(*address, {}, [this](const Result<void>& done) {
        ++ended_;
        if (done) read_twice();
      });
    });
    attempt([&] { cancelled_.connect(*address, {}, [this](const Result<void>&) { ++ended_; }); });
    attempt([&] { cancelled_.close([this] { ++ended_; }); });
    if (single_.listen("127.0.0.1:0")) {
      attempt([&] { single_.accept([this](const Result<TcpStream>&) { ++ended_; }); });
      attempt([&] { single_.accept([this](const Result<TcpStream>&) { ++ended_; }); });
    }
    attempt([&] { loop_.post([this] { ++ended_; }); });
    EXPECT_EQ(loop_.run_for(20ms), 0);
    close_all();
    EXPECT_EQ(loop_.run_for(1s), 0);
    EXPECT_EQ(ended_, accepted_);
    EXPECT_EQ(loop_.counters().handles_active, 0U);
  }

 private:
  template <class Start>
  void attempt(Start start) {
    try {
      start();
      ++accepted_;
    } catch (const std::bad_alloc&) {
    }
  }
  template <class Start>
  static void unless_out_of_memory(Start start) {
    try {
      start();
    } catch (const std::bad_alloc&) {
    }
  }

  void serve(TcpStream accepted) {
    if (served_count_ == served_.size()) return;
    TcpStream& stream = served_[served_count_++];
    stream = std::move(accepted);
    unless_out_of_memory([&] { stream.set_receive_timeout(5s); });
    unless_out_of_memory([&] {
      stream.receive_start([this, &stream](Result<Buffer> buffer) {
        if (buffer && !buffer->empty()) {
          attempt(
              [&] { stream.send(std::move(*buffer), [this](const Result<void>&) { ++ended_; }); });
        } else {
          attempt([&] { stream.close_gracefully({}, [this] { ++ended_; }); });
        }
      });
    });
  }

  void send_much() {
    unless_out_of_memory([&] {
      sender_.set_water_marks({.low_bytes = 1024, .high_bytes = 4096}, [](WaterMark) {});
    });
    unless_out_of_memory([&] { sender_.set_send_timeout(5s); });
    for (int i = 0; i < 3; ++i) {
      attempt([&] {
        sender_.send(std::as_bytes(std::span(bytes_)), [this](const Result<void>&) { ++ended_; });
      });
    }
    (void)sender_.send_copy(std::as_bytes(std::span(bytes_)));
    attempt([&] { sender_.shutdown_send([this](const Result<void>&) { ++ended_; }); });
    unless_out_of_memory([&] {
      sender_.receive_start([this](const Result<Buffer>& buffer) {
        // Another callback takes the place of the one that is running.
        if (buffer && !buffer->empty() && !replaced_) {
          replaced_ = true;
          unless_out_of_memory([&] { sender_.receive_start([](const Result<Buffer>&) {}); });
        }
      });
    });
  }

  void read_twice() {
    (void)reader_.send_copy("ping");
    attempt([&] {
      reader_.receive_into(
          std::as_writable_bytes(std::span(read_)), [this](const Result<std::size_t>&) {
            ++ended_;
            attempt([&] {
              reader_.receive_into(std::as_writable_bytes(std::span(read_)),
                                   [this](const Result<std::size_t>&) { ++ended_; });
            });
          });
    });
  }

  void close_all() {
    listener_.close();
    single_.close();
    sender_.close();
    for (TcpStream& stream : served_) {
      if (stream) stream.close();
    }
    attempt([&] { reader_.close([this] { ++ended_; }); });
    reader_.close();
  }

  std::vector<char> bytes_ = std::vector<char>(400'000, 'x');
  std::array<char, 16> read_{};
  int accepted_ = 0;
  int ended_ = 0;
  bool replaced_ = false;
  Loop loop_;
  TcpListener listener_{loop_};
  TcpListener single_{loop_};
  TcpStream sender_{loop_};
  TcpStream reader_{loop_};
  TcpStream cancelled_{loop_};
  std::array<TcpStream, 3> served_;
  std::size_t served_count_ = 0;
};

// Not the simulator: its memory stands for the kernel's.
class OutOfMemory : public testing::TestWithParam<BackendKind> {};
INSTANTIATE_TEST_SUITE_P(Backends, OutOfMemory,
                         testing::ValuesIn(offered({BackendKind::epoll, BackendKind::poll,
                                                    BackendKind::io_uring})));

TEST_P(OutOfMemory, EachAllocationFailsOnce) {
  EVIX_NEEDS_ALLOCATIONS();
  int nth = 1;
  for (bool happened = true; happened && !HasFailure(); ++nth) {
    SCOPED_TRACE("allocation " + std::to_string(nth));
    const std::size_t descriptors = open_descriptors();
    const FailAllocation fault(nth);
    try {
      Life life(GetParam());
      life.run();
    } catch (const std::bad_alloc&) {
      // Of the loop's or a handle's constructor.
    } catch (const std::system_error& error) {
      EXPECT_EQ(error.code(), std::errc::not_enough_memory);
    }
    happened = fault.happened();
    EXPECT_EQ(open_descriptors(), descriptors);
  }
  EXPECT_GT(nth, 40) << "allocations were looked at";
}

}  // namespace
}  // namespace evix::test
