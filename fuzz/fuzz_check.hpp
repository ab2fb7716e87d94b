#pragma once

#include <cstdio>
#include <cstdlib>

// What must hold for every input; libFuzzer keeps the one for which it does not.
inline void fuzz_check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}
