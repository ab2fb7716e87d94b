#pragma once

namespace evix::detail {

// "major.minor.patch", as the build declares it.
const char* version_text() noexcept;

}  // namespace evix::detail
