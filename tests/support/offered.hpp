#pragma once

#include <evix/backend.hpp>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

/** @file
 * Which backends the tests can run on. Every Linux has epoll and poll; io_uring may be refused by
 * an old kernel or by the rules of a container, and then the tests are made without it, and
 * IoUringHere.IsTested (tests/backend/io_uring_test.cpp) is skipped with the reason.
 */
namespace evix::test {

/** Empty: io_uring can be used here; else why not. */
inline const std::string& io_uring_refusal() {
  static const std::string refusal = [] {
    for (const BackendChoice& choice : probe_backends().choices) {
      if (choice.kind == BackendKind::io_uring && !choice.available) return choice.reason;
    }
    return std::string();
  }();
  return refusal;
}

inline bool is_offered(BackendKind kind) {
  return kind != BackendKind::io_uring || io_uring_refusal().empty();
}

/** Of these backends those that can be used here. */
inline std::vector<BackendKind> offered(std::initializer_list<BackendKind> kinds) {
  std::vector<BackendKind> here;
  std::copy_if(kinds.begin(), kinds.end(), std::back_inserter(here), is_offered);
  return here;
}

/** The same of names, for the C API. */
inline std::vector<const char*> offered_names(std::initializer_list<const char*> names) {
  std::vector<const char*> here;
  std::copy_if(names.begin(), names.end(), std::back_inserter(here),
               [](const char* name) { return is_offered(backend_kind(name).value()); });
  return here;
}

}  // namespace evix::test
