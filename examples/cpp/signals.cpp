// A signal is an event of the loop: the callback may do anything, unlike a signal handler.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <evix/evix.hpp>

int main() {
  evix::Loop loop;
  evix::SignalWatcher watcher(loop);
  auto watching = watcher.start(SIGTERM, [&](int signal) {
    std::printf("caught %s inside the loop\n", signal == SIGTERM ? "SIGTERM" : "another signal");
    watcher.stop();  // with its last watcher the signal has its earlier disposition back
  });
  if (!watching) return evix::complain(watching.error());
  std::puts("waiting for a signal");

  evix::Timer sender(loop);
  sender.after(std::chrono::milliseconds(10), [] { std::raise(SIGTERM); });
  loop.run();
  std::puts("ended");
}
