#include "base/version.hpp"

namespace evix::detail {

const char* version_text() noexcept { return EVIX_VERSION_TEXT; }

}  // namespace evix::detail
