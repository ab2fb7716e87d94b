#include <cstdio>
#include <exception>

#include "commands.hpp"

namespace {

using namespace evix::cli;

struct Runner {
  int operator()(const DoctorOptions& options) const { return run_doctor(options); }
  int operator()(const EchoOptions& options) const { return run_echo(options); }
  int operator()(const LoadOptions& options) const { return run_load(options); }
};

}  // namespace

int main(int argument_count, char** arguments) {
  try {
    const auto command = parse_command(argument_count, arguments);
    if (!command) return command.error();
    const int code = std::visit(Runner{}, *command);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    std::fprintf(stderr, "evix: not everything could be written to the standard output\n");
    return code == exit_ok ? exit_failed : code;
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "evix: %s\n", exception.what());
    return exit_failed;
  }
}
