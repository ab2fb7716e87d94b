// Two loops, each on a thread of its own; they share nothing.
#include <array>
#include <chrono>
#include <cstdio>
#include <evix/evix.hpp>

struct Worker {
  int ticks = 0;
  evix::Timer timer;
  // Runs first on the new thread.
  evix::LoopThread thread{[this](evix::Loop& loop) {
    timer = evix::Timer(loop);
    timer.every(std::chrono::milliseconds(5), [this] {
      if (++ticks == 3) timer.stop();
    });
  }};
};

int main() {
  std::array<Worker, 2> workers;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    workers[i].thread.join();  // waits until that loop has nothing left to do
    std::printf("loop %zu: %d ticks\n", i + 1, workers[i].ticks);
  }
}
