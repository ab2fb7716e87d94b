#include "advice.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <string_view>

#include "system.hpp"

namespace evix::cli {

namespace {

bool is(const Error& error, std::errc code) { return error == code; }

std::string advice_on_descriptors() {
  const ResourceLimit limit = descriptor_limit();
  return fmt::format(
      "each connection needs a descriptor, and this process may have {}: raise the limit with "
      "'ulimit -n 65536' (as root, or in limits.conf) and start again",
      limit.soft ? std::to_string(*limit.soft) : "any number of them");
}

std::string advice_on_listening(const Error& error) {
  if (is(error, std::errc::address_in_use)) {
    return "another program listens there: choose another port, or port 0 for any free one";
  }
  if (is(error, std::errc::permission_denied)) {
    return fmt::format("ports below {} need privileges: choose a higher port, or 0 for a free one",
                       unprivileged_port_min());
  }
  if (is(error, std::errc::address_not_available)) {
    return "this machine has no such address: 127.0.0.1 is itself, 0.0.0.0 all its addresses";
  }
  return {};
}

std::string advice_on_connecting(const Error& error) {
  if (is(error, std::errc::connection_refused)) {
    return fmt::format("nothing listens there: start 'evix echo --listen {}'",
                       error.subject().to_string());
  }
  if (is(error, std::errc::address_not_available)) {
    return "no local port is left for this address: use fewer connections, or widen "
           "net.ipv4.ip_local_port_range";
  }
  if (is(error, std::errc::network_unreachable) || is(error, std::errc::host_unreachable)) {
    return "there is no way to that host: check the address and the network";
  }
  if (is(error, std::errc::timed_out)) {
    return "no answer: check the address, and that no packet filter drops the packets";
  }
  return {};
}

}  // namespace

std::string advice(const Error& error) {
  if (is(error, std::errc::too_many_files_open)) return advice_on_descriptors();
  if (is(error, std::errc::too_many_files_open_in_system)) {
    return "the whole system is out of descriptors: raise fs.file-max";
  }
  if (error == Errc::backend_unknown || error == Errc::backend_unavailable) {
    return "'evix doctor' tells which backends work here, and why the others do not; without "
           "--backend the environment variable EVIX_BACKEND decides";
  }
  if (error == Errc::invalid_address) {
    return "write ADDRESS:PORT with numbers, such as 127.0.0.1:3000 or [::1]:3000";
  }
  const bool connecting = std::string_view(error.operation()) == "connect";
  return connecting ? advice_on_connecting(error) : advice_on_listening(error);
}

int complain_with_advice(const Error& error) {
  const std::string hint = advice(error);
  fmt::print(stderr, "evix: {}\n", error.message());
  if (!hint.empty()) fmt::print(stderr, "      {}\n", hint);
  return exit_failed;
}

std::expected<Loop, int> make_network_loop(const LoopOptions& options) {
  Result<Loop> loop = Loop::create(options);
  if (!loop) return std::unexpected(complain_with_advice(loop.error()));
  if (loop->backend() == BackendKind::sim) {
    fmt::print(stderr,
               "evix: the backend sim has sockets in its own memory only and reaches no network\n"
               "      choose automatic, io_uring, epoll or poll\n");
    return std::unexpected(exit_failed);
  }
  return std::move(*loop);
}

}  // namespace evix::cli
