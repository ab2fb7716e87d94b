// A server that accepts connections. Its three clients live in the same loop.
#include <array>
#include <cstdio>
#include <evix/evix.hpp>

int main() {
  evix::Loop loop;
  evix::TcpListener listener(loop);
  std::array<evix::TcpStream, 3> clients;
  std::size_t accepted = 0;

  auto listening = listener.listen("127.0.0.1:0", [&](evix::Result<evix::TcpStream> peer) {
    if (!peer) {
      // For example no more descriptors: told once, and accepting goes on.
      evix::complain(peer.error());
      return;
    }
    std::printf("accepted %zu\n", ++accepted);
    if (accepted == clients.size()) listener.close();
  });  // the connection is closed where its handle dies: at the end of the callback
  if (!listening) return evix::complain(listening.error());
  std::puts("listening");

  for (evix::TcpStream& client : clients) {
    client = evix::TcpStream(loop);
    client.connect(*listener.local_address(), [&client](evix::Result<void> connected) {
      if (!connected) evix::complain(connected.error());
      client.close();
    });
  }
  loop.run();
  std::puts("ended");
}
