#include "torture/symbols.hpp"

#include <cxxabi.h>
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <vector>

namespace evix::test {
namespace {

struct Symbol {
  std::uintptr_t begin;
  std::uintptr_t size;
  const char* name;
};

// For ever: signal handlers look here.
std::vector<Symbol>& symbols() {
  static auto& table = *new std::vector<Symbol>;
  return table;
}

std::uintptr_t load_address() {
  std::uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        *static_cast<std::uintptr_t*>(result) = info->dlpi_addr;
        return 1;  // the first is the program
      },
      &address);
  return address;
}

const char* name_of(void* address) {
  const auto place = reinterpret_cast<std::uintptr_t>(address) - 1;  // a return address
  const auto after = std::upper_bound(
      symbols().begin(), symbols().end(), place,
      [](std::uintptr_t value, const Symbol& symbol) { return value < symbol.begin; });
  if (after == symbols().begin()) return nullptr;
  const Symbol& found = *std::prev(after);
  return place - found.begin < found.size ? found.name : nullptr;
}

Owner owner_of(std::string_view name) {
  // _ZN, _ZNK, and Z for each function that a lambda or a local class is in.
  if (!name.starts_with("_Z")) return Owner::other;
  name.remove_prefix(2);
  while (name.starts_with('Z')) name.remove_prefix(1);
  if (!name.starts_with('N')) return Owner::other;
  name.remove_prefix(1);
  while (!name.empty() && (name[0] == 'K' || name[0] == 'V' || name[0] == 'R' || name[0] == 'O')) {
    name.remove_prefix(1);
  }
  if (!name.starts_with("4evix")) return Owner::other;
  const auto is_of = [name](auto... parts) {
    return ((name.find(parts) != std::string_view::npos) || ...);
  };
  if (name.starts_with("4evix4test") || is_of("FaultCalls", "RingFaults")) return Owner::test;
  // The simulated kernel stands for the real one, whose memory is not ours either.
  if (is_of("9SimKernel", "8SimCalls", "9SimSocket", "9SimDriver", "8SimBytes", "8SimPorts")) {
    return Owner::simulator;
  }
  return Owner::library;
}

}  // namespace

void load_symbols() {
  const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  struct stat status{};
  void* const mapped =
      fstat(fd, &status) == 0
          ? mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd, 0)
          : MAP_FAILED;
  if (mapped == MAP_FAILED) {
    std::perror("/proc/self/exe");
    std::exit(2);
  }
  close(fd);
  const char* const bytes = static_cast<const char*>(mapped);  // for ever
  const auto& header = *reinterpret_cast<const ElfW(Ehdr)*>(bytes);
  const auto* const sections = reinterpret_cast<const ElfW(Shdr)*>(bytes + header.e_shoff);
  const std::uintptr_t base = load_address();
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* const names = bytes + sections[sections[i].sh_link].sh_offset;
    const auto* const first = reinterpret_cast<const ElfW(Sym)*>(bytes + sections[i].sh_offset);
    const auto* const end = first + sections[i].sh_size / sizeof *first;
    for (const auto* each = first; each != end; ++each) {
      if (ELF64_ST_TYPE(each->st_info) != STT_FUNC || each->st_size == 0) continue;
      symbols().push_back({base + each->st_value, each->st_size, names + each->st_name});
    }
  }
  std::sort(symbols().begin(), symbols().end(),
            [](const Symbol& a, const Symbol& b) { return a.begin < b.begin; });
  void* room[2];
  (void)frames_here(room);  // the first call loads the unwinder, which allocates
}

Owner owner_of(std::span<void* const> frames) {
  for (void* const frame : frames) {
    const char* const name = name_of(frame);
    const Owner owner = name == nullptr ? Owner::other : owner_of(std::string_view(name));
    if (owner != Owner::other) return owner;
  }
  return Owner::other;
}

Owner outermost_owner_of(std::span<void* const> frames) {
  for (std::size_t i = frames.size(); i-- > 0;) {
    const Owner owner = owner_of(frames.subspan(i, 1));
    if (owner != Owner::other) return owner;
  }
  return Owner::other;
}

std::string describe(std::span<void* const> frames) {
  std::string text;
  for (void* const frame : frames) {
    const char* const name = name_of(frame);
    if (name == nullptr) continue;
    int status = 0;
    char* const readable = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    std::string line(readable != nullptr ? readable : name);
    std::free(readable);
    if (line.starts_with("testing::")) break;
    if (line.size() > 120) line = line.substr(0, 117) + "...";
    text += "    " + line + "\n";
  }
  return text;
}

std::span<void* const> frames_here(std::span<void*> room) {
  const int count = backtrace(room.data(), static_cast<int>(room.size()));
  return room.first(static_cast<std::size_t>(count)).subspan(count > 0 ? 1 : 0);
}

}  // namespace evix::test
