// Nobody listens: the client is told the true error, not a broken pipe at its first write.
#include <cstdio>
#include <evix/evix.hpp>

int main() {
  evix::Loop loop;
  // A port that was free a moment ago.
  evix::TcpListener listener(loop);
  if (auto listening = listener.listen("127.0.0.1:0"); !listening) {
    return evix::complain(listening.error());
  }
  const evix::Address address = *listener.local_address();
  listener.close();

  evix::TcpStream client(loop);
  client.connect(address, [](evix::Result<void> connected) {
    if (connected) return;
    // message() has the address too: "connect 127.0.0.1:40000: connection refused".
    if (connected.error() == std::errc::connection_refused) {
      std::puts("connection refused");
    } else {
      evix::complain(connected.error());
    }
  });
  std::puts("connecting");
  loop.run();
  std::puts("ended");
}
