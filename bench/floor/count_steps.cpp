// How many instructions does a program execute in user mode? Counted one by one, with
// PTRACE_SINGLESTEP (ptrace(2)): slow, about a million in some seconds, but it follows any program,
// also one that waits in an io_uring, which valgrind 3.19 cannot run.
//
// usage: floor_count_steps FILE COMMAND [ARGUMENT...]
//
// The command runs with these standard streams; FILE gets the count as one decimal line when it has
// ended. A system call is one instruction; each repetition of a `rep` instruction is one. Of the
// command's threads the first is counted. Exit code: the command's, or 2 when it cannot be counted.
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "count_steps: %s: %s\n", what, std::strerror(errno));
  std::exit(2);
}

[[noreturn]] void become(char** command) {
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0) execvp(command[0], command);
  fail(command[0]);
}

/// The next stop of the child. False when it has ended.
bool wait_for(pid_t child, int& status) {
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail("waitpid");
  }
  return WIFSTOPPED(status);
}

/// Steps until the child has ended, and hands on the signals that it gets.
std::uint64_t count(pid_t child, int& status) {
  std::uint64_t steps = 0;
  long signal = 0;
  while (wait_for(child, status)) {
    const int stopped_by = WSTOPSIG(status);
    signal = stopped_by == SIGTRAP ? 0 : stopped_by;
    if (signal == 0) ++steps;
    if (ptrace(PTRACE_SINGLESTEP, child, nullptr, reinterpret_cast<void*>(signal)) != 0) {
      fail("ptrace");
    }
  }
  return steps;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: floor_count_steps FILE COMMAND [ARGUMENT...]\n", stderr);
    return 2;
  }
  std::FILE* file = std::fopen(argv[1], "we");
  if (file == nullptr) fail(argv[1]);
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) become(argv + 2);
  int status = 0;
  const std::uint64_t steps = count(child, status);
  std::fprintf(file, "%llu\n", static_cast<unsigned long long>(steps));
  if (std::fclose(file) != 0) fail(argv[1]);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}
