// Nothing to wait for: a loop ends at once.
#include <cstdio>
#include <evix/evix.hpp>

int main() {
  evix::Loop loop;
  std::puts("hello, world");
  std::printf("the empty loop ended at once: %d\n", loop.run());
}
