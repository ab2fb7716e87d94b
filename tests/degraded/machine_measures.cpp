#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "degraded/measures.hpp"

namespace evix::degraded {
namespace {

constexpr std::int64_t nanoseconds_per_second = 1'000'000'000;

std::int64_t nanoseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * nanoseconds_per_second + now.tv_nsec;
}

void write_file(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  made(file >= 0, path);
  const ssize_t written = write(file, text.data(), text.size());
  const int error = errno;
  close(file);
  errno = error;
  made(written == static_cast<ssize_t>(text.size()), path);
}

[[noreturn]] void end_as(int status) {
  if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
  signal(WTERMSIG(status), SIG_DFL);
  raise(WTERMSIG(status));
  _exit(1);
}

/** Goes on in a child; this process waits for its end, cleans up, and ends as it does. */
void go_on_in_child(const std::string& folder = {}) {
  const pid_t child = fork();
  made(child >= 0, "fork");
  if (child == 0) return;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!folder.empty()) rmdir(folder.c_str());
  end_as(status);
}

void unshare_or_skip(int flags, const char* what) {
  made(unshare(flags) == 0, std::string("a namespace of ") + what);
}

// ---- Time ------------------------------------------------------------------------------------

/** Seconds, or "start": as if the machine had been started five seconds ago. */
std::string shift_time(const std::string& argument) {
  std::int64_t offset_s = 0;
  if (argument == "start") {
    offset_s = 5 - nanoseconds(CLOCK_MONOTONIC) / nanoseconds_per_second;
    if (offset_s > -60) throw Unmakeable("the machine was started a minute ago");
  } else {
    offset_s = std::stoll(argument);
  }
  unshare_or_skip(CLONE_NEWTIME, "time");
  write_file("/proc/self/timens_offsets", "monotonic " + std::to_string(offset_s) + " 0\n");
  const std::int64_t before_ns = nanoseconds(CLOCK_MONOTONIC);
  go_on_in_child();
  const std::int64_t shift_s =
      (nanoseconds(CLOCK_MONOTONIC) - before_ns) / nanoseconds_per_second - offset_s;
  bites(shift_s >= 0 && shift_s < 5, "the clock is not shifted");
  return "clock shifted by " + std::to_string(offset_s) + " s";
}

// ---- Network ---------------------------------------------------------------------------------

void raise_loopback() {
  const int handle = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  made(handle >= 0, "socket");
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const int result = ioctl(handle, SIOCSIFFLAGS, &request);
  close(handle);
  made(result == 0, "the loopback interface");
}

std::string leave_network(const std::string& argument) {
  unshare_or_skip(CLONE_NEWNET, "the network");
  if (argument == "up") raise_loopback();
  const int handle = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(9);
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int result = connect(handle, reinterpret_cast<sockaddr*>(&peer), sizeof peer);
  const int error = errno;
  close(handle);
  bites((result == 0) == (argument == "up"), "the loopback interface is otherwise");
  return argument == "up" ? "own network" : "127.0.0.1 says " + errno_name(error);
}

/** "net/core/somaxconn:1", of a network of our own; commas stand for spaces. */
std::string set_network(const std::string& argument) {
  const std::size_t colon = argument.find(':');
  const std::string path = "/proc/sys/" + argument.substr(0, colon);
  std::string wanted = argument.substr(colon + 1);
  for (char& each : wanted) each = each == ',' ? ' ' : each;
  write_file(path, wanted);
  char text[100] = {};
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  std::string found(text, size > 0 ? static_cast<std::size_t>(size) : 0);
  for (char& each : found) each = each == '\t' ? ' ' : each;
  bites(found == wanted + "\n", path + " is " + found);
  return argument;
}

// ---- Files -----------------------------------------------------------------------------------

std::string make_root_read_only(const std::string&) {
  unshare_or_skip(CLONE_NEWNS, "mounts");
  made(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "private mounts");
  made(mount("/", "/", nullptr, MS_BIND | MS_REC, nullptr) == 0, "a bind mount");
  made(chdir("/") == 0 && chroot("/") == 0, "chroot");
  made(mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0, "read-only");
  const int file = open("/evix_read_only", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file >= 0) {
    close(file);
    unlink("/evix_read_only");
  }
  bites(file < 0 && errno == EROFS, "a file can be made in /");
  return "a new file in / says EROFS";
}

std::string change_root(const std::string& argument) {
  made(chroot(argument.c_str()) == 0 && chdir("/") == 0, "chroot");
  bites(access("/proc/self", F_OK) != 0 && access("/dev/null", F_OK) != 0 &&
            access("/tmp", F_OK) != 0 && access("/sys", F_OK) != 0,
        "the root has /proc, /dev, /tmp or /sys");
  return "no /proc, /dev, /sys, /tmp";
}

// ---- Other namespaces ------------------------------------------------------------------------

std::string be_first_process(const std::string&) {
  unshare_or_skip(CLONE_NEWPID, "processes");
  go_on_in_child();
  bites(getpid() == 1, "another number");
  return "getpid() says 1";
}

std::string be_unknown_user(const std::string&) {
  unshare_or_skip(CLONE_NEWUSER, "users");
  bites(getuid() == 65534, "getuid() knows the user");
  return "getuid() says 65534";
}

// ---- Half a processor ------------------------------------------------------------------------

constexpr std::int64_t proof_ns = 300'000'000;
constexpr long pause_ns = 3'000'000;

/** Parts of a thousand that this process gets when it asks for all the time. */
std::int64_t share_of_processor() {
  const std::int64_t begin_ns = nanoseconds(CLOCK_MONOTONIC);
  const std::int64_t used_ns = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
  std::int64_t now_ns = begin_ns;
  while (now_ns < begin_ns + proof_ns) now_ns = nanoseconds(CLOCK_MONOTONIC);
  return (nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - used_ns) * 1000 / (now_ns - begin_ns);
}

/** Stops the child half of the time, and lets it go on; each is an interruption of its waits. */
[[noreturn]] void stop_half_of_the_time(pid_t child) {
  const timespec pause{0, pause_ns};
  int status = 0;
  for (;;) {
    nanosleep(&pause, nullptr);
    kill(child, SIGSTOP);
    nanosleep(&pause, nullptr);
    kill(child, SIGCONT);
    if (waitpid(child, &status, WNOHANG) == child) end_as(status);
  }
}

/** In the cgroup of version 1 or 2, whichever has the processor's share. */
std::string make_group() {
  const std::string name = "evix_degraded." + std::to_string(getpid());
  std::string folder = "/sys/fs/cgroup/cpu/" + name;
  if (mkdir(folder.c_str(), 0755) == 0) return folder;
  folder = "/sys/fs/cgroup/" + name;
  made(mkdir(folder.c_str(), 0755) == 0, "a cgroup");
  return folder;
}

std::string join_group(const std::string& folder) {
  if (access((folder + "/cpu.max").c_str(), W_OK) == 0) {
    write_file(folder + "/cpu.max", "10000 20000");
  } else {
    write_file(folder + "/cpu.cfs_period_us", "20000");
    write_file(folder + "/cpu.cfs_quota_us", "10000");
  }
  write_file(folder + "/cgroup.procs", std::to_string(getpid()));
  return "of a cgroup";
}

std::string halve_processor(const std::string& argument) {
  std::string how;
  if (argument == "stopper") {
    const pid_t child = fork();
    made(child >= 0, "fork");
    if (child != 0) stop_half_of_the_time(child);
    how = "by SIGSTOP";
  } else {
    const std::string folder = make_group();
    go_on_in_child(folder);
    how = join_group(folder);
  }
  const std::int64_t share = share_of_processor();
  bites(share < 700, "the share is " + std::to_string(share) + " of 1000");
  return std::to_string(share / 10) + " % of a processor " + how;
}

constexpr std::array measures{
    Measure{"time", shift_time},
    Measure{"network", leave_network},
    Measure{"set", set_network},
    Measure{"read_only_root", make_root_read_only},
    Measure{"root", change_root},
    Measure{"first_process", be_first_process},
    Measure{"unknown_user", be_unknown_user},
    Measure{"half_processor", halve_processor},
};

}  // namespace

std::span<const Measure> machine_measures() { return measures; }

}  // namespace evix::degraded
