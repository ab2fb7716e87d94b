#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <concepts>
#include <cstdlib>

/** @file
 * Children of a fork for tests, and pipes that talk to them.
 */
namespace evix::test {

/** A pipe, both ends close-on-exec. */
class Pipe {
 public:
  explicit Pipe(int flags = 0) {
    if (::pipe2(ends_.data(), O_CLOEXEC | flags) != 0) std::abort();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_read();
    close_write();
  }

  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  void close_read() { close(ends_[0]); }
  void close_write() { close(ends_[1]); }

  void put(char value = 'x') const {
    if (::write(ends_[1], &value, 1) != 1) std::abort();
  }
  /** Waits for a byte; 0 at the end. */
  char take() const {
    char value = 0;
    while (::read(ends_[0], &value, 1) < 0 && errno == EINTR) {
    }
    return value;
  }

 private:
  static void close(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
  std::array<int, 2> ends_{-1, -1};
};

/** Seconds after which a child that hangs is killed, which fails its test. */
inline constexpr unsigned child_lifetime_s = 20;

/** A child that ends with what `body` returns; 0 is good, other numbers name what went wrong. */
template <std::invocable Body>
pid_t start_child(Body&& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::alarm(child_lifetime_s);
  ::_exit(body());
}

/** What the child ended with; negative: the signal that killed it. */
inline int wait_for_child(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) std::abort();
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

template <std::invocable Body>
int run_child(Body&& body) {
  return wait_for_child(start_child(std::forward<Body>(body)));
}

}  // namespace evix::test
