#pragma once

#include <evix/evix.hpp>

#include <sys/eventfd.h>
#include <unistd.h>
#include <csignal>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/conformance.hpp"

/** @file
 * Handles of every kind behind one face, for tests that go through all kinds or pairs of them.
 */
namespace evix::test {

/** A descriptor of the kernel that is closed at the end. */
class OwnDescriptor {
 public:
  explicit OwnDescriptor(int number = -1) noexcept : number_(number) {}
  OwnDescriptor(OwnDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  OwnDescriptor& operator=(OwnDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~OwnDescriptor() { reset(); }
  int get() const noexcept { return number_; }
  void reset() noexcept {
    if (number_ >= 0) close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

/** A descriptor that is readable (and writable) until somebody reads it. */
inline OwnDescriptor readable_descriptor() {
  return OwnDescriptor(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
}

/** Two streams of one loop that are connected to each other. */
struct TcpPair {
  TcpStream client;
  TcpStream server;

  [[nodiscard]] testing::AssertionResult open(Loop& loop) {
    TcpListener listener(loop);
    const auto accepted = [this](Result<TcpStream> stream) {
      if (stream) server = std::move(stream).value();
    };
    if (auto listened = listener.listen("127.0.0.1:0", accepted); !listened) {
      return testing::AssertionFailure() << listened.error().message();
    }
    client = TcpStream(loop);
    client.connect(listener.local_address().value(), [](Result<void>) {});
    for (int turn = 0; turn < 100; ++turn) {
      if (server && client.connected()) return testing::AssertionSuccess();
      loop.run_once(100ms);
    }
    return testing::AssertionFailure() << "not connected after 100 turns";
  }
};

enum class Kind { immediate, timer, repeating, watcher, signal, listener, stream, waker };

inline std::string_view to_string(Kind kind) {
  constexpr std::string_view names[] = {"immediate", "timer",    "repeating timer", "watcher",
                                        "signal",    "listener", "stream",          "waker"};
  return names[static_cast<std::size_t>(kind)];
}

/** One handle that the next turn calls back. */
class Stimulus {
 public:
  virtual ~Stimulus() = default;
  /** What takes turns of the loop; before anything is started. */
  virtual void prepare() {}
  /** Starts it, ready at once: the next turn calls. It calls until stop() unless it is one-shot. */
  virtual void start(std::function<void()> call) = 0;
  virtual void stop() = 0;
  virtual void destroy() = 0;
};

std::unique_ptr<Stimulus> make_stimulus(Loop& loop, Kind kind);

/** Every kind that has a handle and that the backend can do. */
inline std::vector<Kind> handle_kinds(BackendKind backend) {
  std::vector<Kind> kinds{Kind::timer,    Kind::repeating, Kind::signal,
                          Kind::listener, Kind::stream,    Kind::waker};
  if (backend != BackendKind::sim) kinds.push_back(Kind::watcher);
  return kinds;
}

}  // namespace evix::test
