// An echo server, and a client that checks a megabyte. evix finishes partial writes; the server
// reads on only when its copy has been sent, so a slow client cannot fill its memory.
#include <cstdio>
#include <cstring>
#include <evix/evix.hpp>
#include <memory>
#include <vector>

constexpr std::size_t size = 1024 * 1024;

// One connection. It owns itself and goes with its stream's last callback.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(evix::TcpStream peer) : peer_(std::move(peer)) {}

  void receive() {
    peer_.receive([self = shared_from_this()](evix::Result<evix::Buffer> chunk) {
      if (!chunk) {
        evix::complain(chunk.error());
      } else if (chunk->empty()) {
        self->peer_.close_gracefully({}, [self] {});  // keeps the stream until it is closed
      } else {
        self->send(std::move(*chunk));
      }
    });
  }

 private:
  void send(evix::Buffer chunk) {
    peer_.send(std::move(chunk), [self = shared_from_this()](evix::Result<void> sent) {
      if (!sent) {
        evix::complain(sent.error());
      } else {
        self->receive();
      }
    });
  }

  evix::TcpStream peer_;
};

int main() {
  evix::Loop loop;
  evix::TcpListener listener(loop);
  auto listening = listener.listen("127.0.0.1:0", [&](evix::Result<evix::TcpStream> peer) {
    listener.close();  // one connection is enough here
    if (peer) std::make_shared<Connection>(std::move(*peer))->receive();
  });
  if (!listening) return evix::complain(listening.error());
  std::puts("listening");

  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  std::size_t received = 0;
  bool right = true;
  evix::TcpStream client(loop);
  const auto on_reply = [&](evix::Result<evix::Buffer> chunk) {
    if (!chunk) evix::complain(chunk.error());
    if (!chunk || chunk->empty()) {
      const bool all = right && received == size;
      std::printf("received %zu bytes, %s\n", received, all ? "all as sent" : "not as sent");
      client.close();
      return;
    }
    right = right && chunk->size() <= size - received &&
            std::memcmp(&bytes[received], chunk->data(), chunk->size()) == 0;
    received += chunk->size();
  };
  client.connect(*listener.local_address(), [&](evix::Result<void> connected) {
    if (!connected) return;
    std::puts("connected");
    client.receive_start(on_reply);
    client.send(bytes, [&](evix::Result<void> sent) {
      if (sent) std::printf("sent %zu bytes\n", size);
      client.shutdown_send([](evix::Result<void>) {});
    });
  });
  loop.run();
  std::puts("ended");
}
