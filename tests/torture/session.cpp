#include "torture/session.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace evix::test {
namespace {

Session* opened = nullptr;
pid_t process = 0;

}  // namespace

bool has_other_threads() noexcept {
  constexpr nlink_t links_of_one = 3;  // ".", "..", and the folder of each thread
  struct stat status{};
  return stat("/proc/self/task", &status) == 0 && status.st_nlink > links_of_one;
}

Session* Session::current() noexcept { return opened; }

Session::Session(Report& report, const Fault& fault, const Allowance& allowance)
    : report_(report), fault_(fault), allowance_(allowance) {}

void Session::open(Report& report, const Fault& fault, const Allowance& allowance) {
  opened = new Session(report, fault, allowance);
  process = getpid();
}

bool Session::on_main_thread() const noexcept { return gettid() == process; }

void Session::begin() noexcept {
  begin_ns_ = true_time_ns();
  active_ = true;
}

void Session::end() {
  active_ = false;
  report_.took_ns = true_time_ns() - begin_ns_;
  for (std::size_t i = 0; i < call_count; ++i) report_.calls[i] = calls_[i];
  report_.allocations = allocations_;
  report_.blocks_left = blocks_left();
  report_.mappings_left = mappings_left();
  if (const int fd = descriptor_left(); fd >= 0) {
    violation("descriptor " + std::to_string(fd) + " of the library is still open");
  }
  if (fault_.kind != FaultKind::none && report_.blocks_left > allowance_.blocks) {
    violation(std::to_string(report_.blocks_left - allowance_.blocks) +
              " blocks of memory are left, the latest was made in\n" + describe_blocks());
  }
  if (fault_.kind != FaultKind::none && report_.mappings_left > allowance_.mappings) {
    violation("mapped memory is left");
  }
  report_.verdict = Verdict::held;
  _exit(0);
}

void Session::say(Verdict verdict, std::string_view what) noexcept {
  active_ = false;
  if (getpid() != process) _exit(1);  // a child of the test's own
  report_.verdict = verdict;
  const std::size_t size = std::min(what.size(), sizeof report_.what - 1);
  std::memcpy(report_.what, what.data(), size);
  report_.what[size] = '\0';
}

void Session::violation(std::string_view what) {
  say(Verdict::violation, what);
  _exit(3);
}

void Session::leave_waiting(std::string_view what) {
  say(Verdict::left_waiting, what);
  _exit(4);
}

bool Session::call(detail::CallId id) noexcept {
  if (!active()) return false;
  if (!on_main_thread()) report_.other_threads = true;
  const auto place = static_cast<std::size_t>(id);
  const std::uint64_t number = ++calls_[place];
  const bool due = (fault_.kind == FaultKind::error || fault_.kind == FaultKind::shortened) &&
                   fault_.call == id && fault_.nth == number;
  if (due && getpid() == process) report_.injected = true;
  return due;
}

bool Session::allocation() noexcept {
  const std::uint64_t number = ++allocations_;
  const bool due = fault_.kind == FaultKind::allocation && fault_.nth == number;
  if (due) report_.injected = true;
  return due;
}

void Session::loop_used() noexcept {
  if (!active() || loop_used_.exchange(true)) return;
  for (std::size_t i = 0; i < call_count; ++i) report_.set_up_calls[i] = calls_[i];
  report_.set_up_allocations = allocations_;
}

}  // namespace evix::test
