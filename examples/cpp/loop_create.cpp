// A loop is made, run and destroyed by hand; a program may have as many as it likes.
#include <cstdio>
#include <evix/evix.hpp>
#include <optional>

int main() {
  // BackendKind::automatic: evix chooses. The other kinds choose one, or say why they cannot.
  auto made = evix::Loop::create({.backend = evix::BackendKind::automatic});
  if (!made) return evix::complain(made.error());
  std::optional<evix::Loop> loop(std::move(*made));
  std::puts("a loop was created");

  std::printf("it ran and ended: %d\n", loop->run());

  const evix::Poster poster = loop->poster();
  loop.reset();
  std::puts("it was destroyed");

  // Whoever still posts to it gets an error, not a crash.
  return poster.post([] {}).has_value() ? 1 : 0;
}
