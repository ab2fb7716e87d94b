// SIGTERM ends a server without cutting anybody off: it accepts no more, what is under way is
// answered, and the loop ends by itself with the last connection.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <evix/evix.hpp>
#include <list>

namespace {

class Server {
 public:
  explicit Server(evix::Loop& loop) : listener_(loop) {}

  evix::Result<evix::Address> start() {
    auto listening = listener_.listen("127.0.0.1:0", [this](evix::Result<evix::TcpStream> peer) {
      if (peer) serve(std::move(*peer));
    });
    if (!listening) return std::unexpected(listening.error());
    return listener_.local_address();
  }
  void stop() {
    std::printf("no more connections, %zu to finish\n", peers_.size());
    listener_.close();
  }

 private:
  void serve(evix::TcpStream stream) {
    const auto peer = peers_.insert(peers_.end(), std::move(stream));
    peer->receive_start([this, peer](evix::Result<evix::Buffer> bytes) {
      if (bytes && !bytes->empty()) {
        peer->send(std::move(*bytes), [](evix::Result<void>) {});
      } else {  // after what is still queued
        peer->close_gracefully({}, [this, peer] { peers_.erase(peer); });
      }
    });
  }

  evix::TcpListener listener_;
  std::list<evix::TcpStream> peers_;
};

}  // namespace

int main() {
  evix::Loop loop;
  Server server(loop);
  const auto address = server.start();
  if (!address) return evix::complain(address.error());

  evix::SignalWatcher terminate(loop);
  auto watching = terminate.once(SIGTERM, [&](int) { server.stop(); });
  if (!watching) return evix::complain(watching.error());
  terminate.unreference();  // waiting for a signal alone does not keep the loop running

  // A client that is in the middle of something when the signal comes.
  evix::TcpStream client(loop);
  evix::Timer pause(loop);
  bool asked_again = false;
  client.connect(*address, [&](evix::Result<void> connected) {
    if (!connected) return;
    (void)client.send_copy("one");
    client.receive_start([&](evix::Result<evix::Buffer> answer) {
      if (!answer || answer->empty()) return client.close();
      std::printf("answer of %zu bytes\n", answer->size());
      if (asked_again) return client.shutdown_send([](evix::Result<void>) {});
      asked_again = true;
      std::raise(SIGTERM);
      pause.after(std::chrono::milliseconds(20), [&] { (void)client.send_copy("three"); });
    });
  });
  loop.run();
  std::puts("ended");
}
