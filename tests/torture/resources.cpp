#include <fcntl.h>
#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "support/allocations.hpp"
#include "torture/session.hpp"
#include "torture/symbols.hpp"

namespace evix::test {
namespace {

constexpr std::size_t frames_kept = 14;

struct Block {
  std::array<void*, frames_kept> frames{};
  std::size_t count = 0;
  std::uint64_t number = 0;
};

struct Resources {
  std::mutex mutex;
  std::set<int> descriptors;
  std::set<void*> mappings;
  std::unordered_map<void*, Block> blocks;
  std::uint64_t next_number = 0;
};

Resources& resources() {
  static auto& made = *new Resources;
  return made;
}

thread_local bool inside = false;  // what the watch itself allocates is not watched

class Inside {
 public:
  Inside() noexcept { inside = true; }
  ~Inside() { inside = before_; }

 private:
  bool before_ = inside;
};

/** Notes each block that the library's own code asked for. */
class Watch final : public AllocationWatch {
 public:
  bool refuses(std::size_t) noexcept override {
    Session* const session = Session::current();
    asked_ = false;
    if (inside || session == nullptr || !session->active()) return false;
    const Inside guard;
    void* room[frames_kept + 4];
    frames_ = frames_here(room);
    // The watch's own frame, the hook's and operator new's.
    frames_ = frames_.subspan(std::min<std::size_t>(3, frames_.size()));
    asked_ = owner_of(frames_) == Owner::library;
    if (!asked_) return false;
    count_ = std::min(frames_.size(), frames_kept);
    std::copy_n(frames_.begin(), count_, kept_.begin());
    return session->on_main_thread() && session->allocation();
  }

  void made(void* memory) noexcept override {
    if (inside || !asked_ || memory == nullptr) return;
    const Inside guard;
    asked_ = false;
    const std::lock_guard lock(resources().mutex);
    resources().blocks[memory] = {kept_, count_, resources().next_number++};
  }

  void freed(void* memory) noexcept override {
    if (inside || Session::current() == nullptr) return;
    const Inside guard;
    const std::lock_guard lock(resources().mutex);
    resources().blocks.erase(memory);
  }

 private:
  static thread_local bool asked_;
  static thread_local std::span<void* const> frames_;
  static thread_local std::array<void*, frames_kept> kept_;
  static thread_local std::size_t count_;
};

constinit thread_local bool Watch::asked_ = false;
constinit thread_local std::span<void* const> Watch::frames_;
constinit thread_local std::array<void*, frames_kept> Watch::kept_{};
constinit thread_local std::size_t Watch::count_ = 0;

}  // namespace

void watch_resources() {
  static auto& watch = *new Watch;
  (void)resources();
  watch_allocations(&watch);
  // A child of the test's own is not judged, and the lock may be another thread's.
  pthread_atfork(nullptr, nullptr, [] { inside = true; });
}

void descriptor_made(int fd) {
  if (fd < 0 || inside) return;
  const Inside guard;
  const std::lock_guard lock(resources().mutex);
  resources().descriptors.insert(fd);
}

void descriptor_closed(int fd) {
  if (inside) return;
  const Inside guard;
  const std::lock_guard lock(resources().mutex);
  resources().descriptors.erase(fd);
}

void mapping_made(void* memory) {
  if (inside) return;
  const Inside guard;
  const std::lock_guard lock(resources().mutex);
  resources().mappings.insert(memory);
}

void mapping_gone(void* memory) {
  if (inside) return;
  const Inside guard;
  const std::lock_guard lock(resources().mutex);
  resources().mappings.erase(memory);
}

std::uint64_t blocks_left() {
  const std::lock_guard lock(resources().mutex);
  return resources().blocks.size();
}

std::uint64_t mappings_left() {
  const std::lock_guard lock(resources().mutex);
  return resources().mappings.size();
}

int descriptor_left() {
  const std::lock_guard lock(resources().mutex);
  for (const int fd : resources().descriptors) {
    // One that was handed to the test may have been closed there.
    if (fcntl(fd, F_GETFD) >= 0) return fd;
  }
  return -1;
}

std::string describe_blocks() {
  const Inside guard;
  Block latest;
  {
    const std::lock_guard lock(resources().mutex);
    for (const auto& [memory, block] : resources().blocks) {
      if (latest.count == 0 || block.number > latest.number) latest = block;
    }
  }
  return describe(std::span(latest.frames).first(latest.count));
}

}  // namespace evix::test
