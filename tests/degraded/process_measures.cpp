#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cctype>

#include "degraded/measures.hpp"

namespace evix::degraded {
namespace {

// Nobody's, so that RLIMIT_NPROC counts this process alone.
constexpr uid_t ordinary_user = 54321;
constexpr std::size_t kibibyte = 1024;

rlim_t number(const std::string& text) { return static_cast<rlim_t>(std::stoull(text)); }

std::string limit(__rlimit_resource resource, rlim_t value, const char* name) {
  const rlimit both{value, value};
  made(setrlimit(resource, &both) == 0, name);
  return std::string(name) + " " + std::to_string(value) + ": ";
}

std::string become_ordinary(const std::string&) {
  if (geteuid() == 0) {
    made(setgroups(0, nullptr) == 0, "setgroups");
    made(setresgid(ordinary_user, ordinary_user, ordinary_user) == 0, "setresgid");
    made(setresuid(ordinary_user, ordinary_user, ordinary_user) == 0, "setresuid");
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> capabilities{};
  made(syscall(SYS_capget, &header, capabilities.data()) == 0, "capget");
  bites(capabilities[0].effective == 0 && capabilities[1].effective == 0, "capabilities are left");
  return "user " + std::to_string(geteuid()) + " without capabilities";
}

std::string limit_locked_memory(const std::string& argument) {
  const std::size_t size = number(argument) * kibibyte;
  const std::string name = limit(RLIMIT_MEMLOCK, size, "RLIMIT_MEMLOCK");
  const std::size_t more = size + 4 * kibibyte;
  void* memory = mmap(nullptr, more, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  made(memory != MAP_FAILED, "mmap");
  const int result = mlock(memory, more);
  const int error = errno;
  munmap(memory, more);
  bites(result != 0, "mlock() locks more");
  return name + "mlock() of more says " + errno_name(error);
}

std::string limit_descriptors(const std::string& argument) {
  const std::string name = limit(RLIMIT_NOFILE, number(argument), "RLIMIT_NOFILE");
  int last = -1;
  int opened = -1;
  while ((opened = open("/", O_RDONLY | O_CLOEXEC)) >= 0) last = opened;
  const int error = errno;
  bites(error == EMFILE && last < static_cast<int>(number(argument)), "open() has no limit");
  for (int fd = 3; fd <= last; ++fd) close(fd);
  return name + "open() says EMFILE";
}

std::string limit_threads(const std::string& argument) {
  const std::string name = limit(RLIMIT_NPROC, number(argument), "RLIMIT_NPROC");
  pthread_t thread{};
  const int error =
      pthread_create(&thread, nullptr, [](void*) -> void* { return nullptr; }, nullptr);
  bites(error != 0, "pthread_create() makes a thread");
  return name + "pthread_create() says " + errno_name(error);
}

[[gnu::noinline]] void touch_stack(std::size_t size) {
  volatile char bytes[64 * kibibyte];
  bytes[0] = 1;
  bytes[sizeof bytes - 1] = 1;
  if (size > sizeof bytes) touch_stack(size - sizeof bytes);
  bytes[1] = 1;
}

std::string limit_stack(const std::string& argument) {
  const std::string name = limit(RLIMIT_STACK, number(argument) * kibibyte, "RLIMIT_STACK");
  const pid_t child = fork();
  if (child == 0) {
    touch_stack(kibibyte * kibibyte);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  bites(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "1 MiB of stack is there");
  return name + "SIGSEGV at 1 MiB";
}

std::string limit_address_space(const std::string& argument) {
  const std::string name = limit(RLIMIT_AS, number(argument) * kibibyte, "RLIMIT_AS (KiB)");
  void* memory =
      mmap(nullptr, number(argument) * kibibyte, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bites(memory == MAP_FAILED, "mmap() maps as much again");
  return name + "mmap() says " + errno_name(errno);
}

std::string limit_pending_signals(const std::string& argument) {
  const std::string name = limit(RLIMIT_SIGPENDING, number(argument), "RLIMIT_SIGPENDING");
  sigset_t one;
  sigset_t before;
  sigemptyset(&one);
  sigaddset(&one, SIGRTMIN);
  sigprocmask(SIG_BLOCK, &one, &before);
  const int result = sigqueue(getpid(), SIGRTMIN, {});
  const int error = errno;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  bites(result != 0, "sigqueue() queues a signal");
  return name + "sigqueue() says " + errno_name(error);
}

std::string close_standard(const std::string&) {
  for (int fd = 0; fd <= 2; ++fd) close(fd);
  bites(fcntl(0, F_GETFD) < 0 && fcntl(1, F_GETFD) < 0 && fcntl(2, F_GETFD) < 0, "one is open");
  return "descriptors 0, 1, 2 are EBADF";
}

std::string block_signals(const std::string&) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  raise(SIGTERM);  // would end this process
  sigset_t pending;
  sigpending(&pending);
  bites(sigismember(&pending, SIGTERM) == 1, "SIGTERM is not pending");
  timespec none{};
  bites(sigtimedwait(&pending, nullptr, &none) == SIGTERM, "another signal is pending");
  return "SIGTERM stays pending";
}

std::string dispose_sigpipe(const std::string& argument) {
  struct sigaction action{};
  action.sa_handler = argument == "ignored" ? SIG_IGN : SIG_DFL;
  made(sigaction(SIGPIPE, &action, nullptr) == 0, "sigaction");
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGPIPE);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  bites(WIFSIGNALED(status) == (argument == "default"), "SIGPIPE does the contrary");
  return argument == "ignored" ? "SIGPIPE does nothing" : "SIGPIPE ends a process";
}

std::string set_no_new_privileges(const std::string&) {
  made(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS");
  bites(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1, "PR_GET_NO_NEW_PRIVS says 0");
  return "PR_GET_NO_NEW_PRIVS says 1";
}

std::string set_umask(const std::string& argument) {
  const auto mask = static_cast<mode_t>(std::stoul(argument, nullptr, 8));
  umask(mask);
  char folder[] = "/tmp/evix_umask.XXXXXX";
  made(mkdtemp(folder) != nullptr, "mkdtemp");
  struct stat found{};
  made(stat(folder, &found) == 0 && rmdir(folder) == 0, "stat");
  bites((found.st_mode & mask & 0777U) == 0, "a new folder has the masked bits");
  return "a new folder has mode 0";
}

std::string be_nice(const std::string& argument) {
  const int wanted = std::stoi(argument);
  made(setpriority(PRIO_PROCESS, 0, wanted) == 0, "setpriority");
  bites(getpriority(PRIO_PROCESS, 0) == wanted, "getpriority() says another number");
  return "getpriority() says " + argument;
}

std::string take_one_processor(const std::string&) {
  cpu_set_t set;
  made(sched_getaffinity(0, sizeof set, &set) == 0, "sched_getaffinity");
  const int before = CPU_COUNT(&set);
  if (before == 1) throw Unmakeable("this machine has one processor for us");
  int first = 0;
  while (!CPU_ISSET(first, &set)) ++first;
  CPU_ZERO(&set);
  CPU_SET(first, &set);
  made(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
  made(sched_getaffinity(0, sizeof set, &set) == 0, "sched_getaffinity");
  bites(CPU_COUNT(&set) == 1, "more than one processor is left");
  return "1 processor of " + std::to_string(before);
}

std::string lose_directory(const std::string&) {
  char folder[] = "/tmp/evix_directory.XXXXXX";
  made(mkdtemp(folder) != nullptr, "mkdtemp");
  made(chdir(folder) == 0 && rmdir(folder) == 0, "rmdir");
  char path[4096];
  bites(getcwd(path, sizeof path) == nullptr && errno == ENOENT, "getcwd() has a name for it");
  return "getcwd() says ENOENT";
}

std::string empty_environment(const std::string&) {
  clearenv();
  bites(environ == nullptr || *environ == nullptr, "a variable is left");
  return "no variable is set";
}

/** Whose small letters are others than in English. */
std::string use_locale(const std::string& argument) {
  setenv("LC_ALL", argument.c_str(), 1);
  if (setlocale(LC_ALL, "") == nullptr) throw Unmakeable("there is no locale " + argument);
  const int lower = std::tolower('I');
  bites(lower != 'i', "tolower('I') is 'i'");
  return "tolower('I') is " + std::to_string(lower);
}

constexpr std::array measures{
    Measure{"ordinary_user", become_ordinary},
    Measure{"memlock", limit_locked_memory},
    Measure{"nofile", limit_descriptors},
    Measure{"nproc", limit_threads},
    Measure{"stack", limit_stack},
    Measure{"address_space", limit_address_space},
    Measure{"sigpending", limit_pending_signals},
    Measure{"standard_closed", close_standard},
    Measure{"signals_blocked", block_signals},
    Measure{"sigpipe", dispose_sigpipe},
    Measure{"no_new_privileges", set_no_new_privileges},
    Measure{"umask", set_umask},
    Measure{"nice", be_nice},
    Measure{"one_processor", take_one_processor},
    Measure{"no_directory", lose_directory},
    Measure{"no_environment", empty_environment},
    Measure{"locale", use_locale},
};

}  // namespace

std::span<const Measure> process_measures() { return measures; }

}  // namespace evix::degraded
