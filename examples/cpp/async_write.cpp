// Asynchronous writing with back-pressure: the producer stops when the send queue is full and goes
// on when it has drained, however slowly the reader reads.
#include <array>
#include <cstdio>
#include <evix/evix.hpp>

class Producer {
 public:
  void start(evix::TcpStream peer) {
    peer_ = std::move(peer);
    peer_.set_water_marks({.low_bytes = 4 * chunk.size(), .high_bytes = 16 * chunk.size()},
                          [this](evix::WaterMark mark) { on_water_mark(mark); });
    produce();
  }

 private:
  static constexpr std::array<std::byte, 16 * 1024> chunk{};

  void produce() {
    while (!paused_ && chunks_left_ > 0) {
      if (auto sent = peer_.send_copy(chunk); !sent) {
        evix::complain(sent.error());
        peer_.close();
        return;
      }
      --chunks_left_;
    }
    if (chunks_left_ == 0) peer_.close_gracefully();
  }

  void on_water_mark(evix::WaterMark mark) {
    paused_ = mark == evix::WaterMark::full;
    if (told_++ < 2) std::puts(paused_ ? "queue full: pausing" : "queue drained: going on");
    if (!paused_) produce();
  }

  evix::TcpStream peer_;
  int chunks_left_ = 512;
  int told_ = 0;
  bool paused_ = false;
};

int main() {
  evix::Loop loop;
  Producer producer;
  evix::TcpListener listener(loop);
  auto listening = listener.listen("127.0.0.1:0", [&](evix::Result<evix::TcpStream> peer) {
    listener.close();
    if (peer) producer.start(std::move(*peer));
  });
  if (!listening) return evix::complain(listening.error());

  std::size_t received = 0;
  evix::TcpStream reader(loop);
  const auto on_bytes = [&](evix::Result<evix::Buffer> bytes) {
    if (bytes) received += bytes->size();
    if (bytes && !bytes->empty()) return;
    std::printf("all %zu bytes arrived\n", received);
    reader.close();
  };
  reader.connect(*listener.local_address(), [&](evix::Result<void> connected) {
    if (connected) reader.receive_start(on_bytes);
  });
  return loop.run();
}
