#include <evix/evix.hpp>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "support/offered.hpp"

// With io_uring, what a callback had sent went to the kernel with the next wait, and exit() in the
// same callback came before that.
namespace evix::test {
namespace {

enum class By { send_copy, try_send, send };

constexpr timeval patience{20, 0};

[[noreturn]] void send_and_exit(BackendKind kind, const Address& peer, By by, bool nested) {
  static constexpr std::string_view words = "last words";
  const auto bytes = std::as_bytes(std::span(words));
  Loop outer(LoopOptions{.backend = kind});
  Loop inner(LoopOptions{.backend = kind});
  TcpStream stream(outer);
  Timer timer(inner);
  stream.connect(peer, [&](const Result<void>& connected) {
    if (!connected) std::_Exit(2);
    if (by == By::send_copy && !stream.send_copy(words)) std::_Exit(3);
    if (by == By::try_send && stream.try_send(bytes).value_or(0) != bytes.size()) std::_Exit(4);
    if (by == By::send) stream.send(bytes, [](const Result<void>&) {});
    if (!nested) std::exit(0);
    timer.after(std::chrono::nanoseconds(1), [] { std::exit(0); });
    inner.run();
  });
  outer.run();
  std::_Exit(5);
}

/** With a time limit sockets say EINTR, also for a ring that this thread has closed a moment ago.
 */
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

std::string read_all(int listener) {
  const int connection = uninterrupted([&] { return ::accept(listener, nullptr, nullptr); });
  EXPECT_GE(connection, 0) << std::strerror(errno);
  std::string text;
  std::array<char, 64> bytes{};
  ssize_t count = 0;
  const auto receive = [&] { return ::recv(connection, bytes.data(), bytes.size(), 0); };
  while ((count = uninterrupted(receive)) > 0) {
    text.append(bytes.data(), static_cast<std::size_t>(count));
  }
  EXPECT_EQ(count, 0) << std::strerror(errno);
  ::close(connection);
  return text;
}

TEST(LastWordsLostAtExit, TheyReachThePeer) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&name), size), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  // Of its accepts, and of what they give: a child that ends early is a failure, not a hang.
  ASSERT_EQ(::setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&name), &size), 0);
  const Address peer = Address::ipv4({127, 0, 0, 1}, ntohs(name.sin_port));
  for (const BackendKind kind :
       offered({BackendKind::epoll, BackendKind::poll, BackendKind::io_uring})) {
    for (const By by : {By::send_copy, By::try_send, By::send}) {
      for (const bool nested : {false, true}) {
        std::fflush(nullptr);
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) send_and_exit(kind, peer, by, nested);
        EXPECT_EQ(read_all(listener), "last words")
            << to_string(kind) << static_cast<int>(by) << nested;
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
      }
    }
  }
  ::close(listener);
}

}  // namespace
}  // namespace evix::test
