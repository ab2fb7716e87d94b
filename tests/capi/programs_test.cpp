#include <gtest/gtest.h>
#include <sys/single_threaded.h>

#include "capi/c_programs.h"
#include "evix.h"

TEST(CPrograms, OriginalProgramRunsUnchanged) {
  char log[64];
  EXPECT_EQ(original_program(log), 0) << "line of original_program.c; log: " << log;
}

TEST(CPrograms, EveryNameInC99) { EXPECT_EQ(names_program(), 0) << "line of names_program.c"; }

TEST(CPrograms, FiveFunctionBackend) {
  backend_counts counts;
  EXPECT_EQ(backend_program(&counts), 0) << "line of backend_program.c";
  EXPECT_EQ(counts.init, 1);
  EXPECT_EQ(counts.destroy, 1);
  EXPECT_EQ(counts.io_add, 2);
  EXPECT_EQ(counts.io_del, 2);
  // evix's own descriptor is added only where another thread could need it.
  EXPECT_EQ(counts.foreign_adds, __libc_single_threaded ? 0 : 1);
}

TEST(CPrograms, VersionOfHeaderAndLibraryAgree) {
  char text[32];
  std::snprintf(text, sizeof text, "%d.%d.%d", EVIX_VERSION_MAJOR, EVIX_VERSION_MINOR,
                EVIX_VERSION_PATCH);
  EXPECT_STREQ(evix_version_text(), text);
  EXPECT_EQ(evix_version(), EVIX_VERSION);
}
