// A loop hands slow work to another thread, goes on, and is told when it is done.
#include <cstdio>
#include <evix/evix.hpp>

// It may block: it runs on the worker's thread.
static bool write_file() {
  std::FILE* file = std::tmpfile();
  if (file == nullptr) return false;
  const bool written = std::fputs("text\n", file) >= 0 && std::fflush(file) == 0;
  return std::fclose(file) == 0 && written;
}

int main() {
  evix::Loop loop;
  evix::LoopThread worker;
  // Work on another thread does not keep this loop running by itself.
  evix::KeepAlive pending = loop.keep_alive();

  const auto on_written = [&](bool written) {
    std::puts(written ? "File written!" : "the file was not written");
    pending = {};  // nothing is pending any more: the loop ends
  };
  loop.post([&] {
    std::puts("Hello");
    auto posted = worker.post([&, poster = loop.poster()](evix::Loop&) {
      const bool written = write_file();
      (void)poster.post([&on_written, written] { on_written(written); });
    });
    if (!posted) evix::complain(posted.error());
    std::puts("Write requested");
  });
  loop.run();
  return worker.join();
}
