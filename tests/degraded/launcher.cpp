#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "degraded/measures.hpp"

/** @file
 * Degrades its own environment, sees that this bites, and becomes the program.
 *
 * usage: degraded_launcher REPORT_DESCRIPTOR [MEASURE[=ARGUMENT] ...] -- PROGRAM [ARGUMENT ...]
 *
 * Writes a line `bites WORDS` for each measure. Exit status: that of the program; 77 when the
 * environment cannot be made (the line `unmakeable WHY`), 125 when it has no effect.
 */
namespace evix::degraded {
namespace {

constexpr int exit_unmakeable = 77;
constexpr int exit_toothless = 125;

int report_descriptor = 2;

void report(const char* key, const std::string& words) {
  const std::string line = std::string(key) + " " + words + "\n";
  if (write(report_descriptor, line.data(), line.size()) < 0) _exit(exit_toothless);
}

void apply(const std::string& text) {
  const std::size_t equal = text.find('=');
  const std::string name = text.substr(0, equal);
  const std::string argument = equal == std::string::npos ? "" : text.substr(equal + 1);
  Apply measure = nullptr;
  for (const auto& group : {refusal_measures(), process_measures(), machine_measures()}) {
    for (const Measure& each : group) {
      if (name == each.name) measure = each.apply;
    }
  }
  if (measure == nullptr) throw std::invalid_argument("no such measure: " + name);
  report("bites", measure(argument));
}

}  // namespace

void bites(bool condition, const std::string& what) {
  if (!condition) throw Toothless(what);
}

void made(bool condition, const std::string& what) {
  if (!condition) throw Unmakeable(what + ": " + errno_name(errno));
}

}  // namespace evix::degraded

int main(int count, char** arguments) {
  using namespace evix::degraded;
  int next = 2;
  try {
    if (count < 4) throw std::invalid_argument("too few arguments");
    report_descriptor = std::atoi(arguments[1]);
    for (; next < count && std::string_view(arguments[next]) != "--"; ++next) {
      apply(arguments[next]);
    }
    if (++next >= count) throw std::invalid_argument("no program");
  } catch (const Unmakeable& error) {
    report("unmakeable", error.what());
    return exit_unmakeable;
  } catch (const std::exception& error) {
    report("toothless", error.what());
    return exit_toothless;
  }
  execv(arguments[next], arguments + next);
  report("toothless", "execv says " + errno_name(errno));
  return exit_toothless;
}
