#include <cstdio>
#include <evix/evix.hpp>

int main() {
  evix::Loop loop;
  if (loop.run() != 0) return 1;
  std::puts("ran to its natural end");
}
