// The floor under every echo figure on io_uring: a TCP echo server on the raw ring, by hand.
//
// One io_uring_enter a turn submits, waits and runs what is due; accept and receive are multishot,
// receives pick a buffer from a ring of them. The echo is sent from the buffer that it came in,
// which goes back to the ring when the send has completed: nothing is copied.
#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "echo_server.hpp"

namespace {

constexpr unsigned entry_count = 4'096;
constexpr unsigned completion_count = 16'384;
constexpr unsigned buffer_count = 1'024;
constexpr std::size_t buffer_bytes = 65'536;
constexpr int buffer_group = 0;

/// What a completion is of; with the descriptor it makes the token.
enum Kind : std::uint64_t { accepting, receiving, sending };

constexpr std::uint64_t token(Kind kind, int descriptor) {
  return static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(descriptor) << 8;
}
constexpr Kind kind_of(std::uint64_t data) { return static_cast<Kind>(data & 0xff); }
constexpr int descriptor_of(std::uint64_t data) { return static_cast<int>(data >> 8); }

class EchoServer {
 public:
  explicit EchoServer(const raw::EchoOptions& options);
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;

  void run();
  int listener() const { return listener_; }
  std::uint64_t waits() const { return waits_; }

 private:
  /// Filled in one after the other; the first is on its way.
  struct Outgoing {
    unsigned buffer;
    std::uint32_t done;
    std::uint32_t size;
  };
  struct Connection {
    std::vector<Outgoing> queue;  // empty but for connections that send faster than they read
    bool receive_armed = false;
    bool ended = false;
  };

  io_uring_sqe* entry();
  void arm_accept();
  void arm_receive(int descriptor);
  void arm_send(int descriptor);
  char* bytes_of(unsigned buffer) { return memory_ + buffer * buffer_bytes; }
  void give_back(unsigned buffer);
  void complete(const io_uring_cqe& completion);
  void received(int descriptor, const io_uring_cqe& completion);
  void sent(int descriptor, int result);
  void end(int descriptor);
  Connection& connection(int descriptor) {
    return connections_[static_cast<std::size_t>(descriptor)];
  }

  io_uring ring_{};
  io_uring_buf_ring* buffers_ = nullptr;
  char* memory_ = nullptr;
  int listener_;
  std::int64_t echoes_left_;
  std::uint64_t waits_ = 0;
  std::vector<Connection> connections_;
  std::vector<int> starved_;
};

EchoServer::EchoServer(const raw::EchoOptions& options)
    : listener_(raw::make_listener(options.listen, 0)), echoes_left_(options.echoes) {
  io_uring_params parameters{};
  parameters.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                     IORING_SETUP_SUBMIT_ALL | IORING_SETUP_CQSIZE;
  parameters.cq_entries = completion_count;
  const int made = io_uring_queue_init_params(entry_count, &ring_, &parameters);
  if (made < 0) raw::die("io_uring_setup", -made);
  io_uring_register_ring_fd(&ring_);

  void* memory = mmap(nullptr, buffer_count * (buffer_bytes + sizeof(io_uring_buf)),
                      PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) raw::die("mmap", errno);
  buffers_ = static_cast<io_uring_buf_ring*>(memory);
  memory_ = static_cast<char*>(memory) + buffer_count * sizeof(io_uring_buf);
  io_uring_buf_reg registration{};
  registration.ring_addr = reinterpret_cast<std::uintptr_t>(buffers_);
  registration.ring_entries = buffer_count;
  registration.bgid = buffer_group;
  const int registered = io_uring_register_buf_ring(&ring_, &registration, 0);
  if (registered < 0) raw::die("IORING_REGISTER_PBUF_RING", -registered);
  for (unsigned buffer = 0; buffer < buffer_count; ++buffer) give_back(buffer);
  arm_accept();
}

io_uring_sqe* EchoServer::entry() {
  io_uring_sqe* made = io_uring_get_sqe(&ring_);
  if (made != nullptr) return made;
  io_uring_submit(&ring_);
  return io_uring_get_sqe(&ring_);
}

void EchoServer::arm_accept() {
  io_uring_sqe* made = entry();
  io_uring_prep_multishot_accept(made, listener_, nullptr, nullptr, SOCK_CLOEXEC);
  made->user_data = token(accepting, listener_);
}

void EchoServer::arm_receive(int descriptor) {
  io_uring_sqe* made = entry();
  io_uring_prep_recv(made, descriptor, nullptr, 0, 0);
  made->ioprio |= IORING_RECV_MULTISHOT;
  made->flags |= IOSQE_BUFFER_SELECT;
  made->buf_group = buffer_group;
  made->user_data = token(receiving, descriptor);
  connection(descriptor).receive_armed = true;
}

void EchoServer::arm_send(int descriptor) {
  const Outgoing& first = connection(descriptor).queue.front();
  io_uring_sqe* made = entry();
  io_uring_prep_send(made, descriptor, bytes_of(first.buffer) + first.done, first.size - first.done,
                     MSG_NOSIGNAL);
  made->user_data = token(sending, descriptor);
}

void EchoServer::give_back(unsigned buffer) {
  io_uring_buf_ring_add(buffers_, bytes_of(buffer), buffer_bytes,
                        static_cast<unsigned short>(buffer), buffer_count - 1, 0);
  io_uring_buf_ring_advance(buffers_, 1);
}

void EchoServer::run() {
  while (echoes_left_ > 0) {
    const int entered = io_uring_submit_and_wait(&ring_, 1);
    ++waits_;
    if (entered < 0 && entered != -EINTR) raw::die("io_uring_enter", -entered);
    unsigned head = 0;
    unsigned count = 0;
    io_uring_cqe* completion = nullptr;
    io_uring_for_each_cqe(&ring_, head, completion) {
      complete(*completion);
      ++count;
    }
    io_uring_cq_advance(&ring_, count);
    for (const int descriptor : std::exchange(starved_, {})) {
      const Connection& its = connection(descriptor);
      if (!its.ended && !its.receive_armed) arm_receive(descriptor);
    }
  }
}

void EchoServer::complete(const io_uring_cqe& completion) {
  const int descriptor = descriptor_of(completion.user_data);
  switch (kind_of(completion.user_data)) {
    case receiving:
      return received(descriptor, completion);
    case sending:
      return sent(descriptor, completion.res);
    case accepting:
      if (completion.res >= 0) {
        const auto size = static_cast<std::size_t>(completion.res) + 1;
        if (connections_.size() < size) connections_.resize(size * 2);
        connection(completion.res) = Connection();
        arm_receive(completion.res);
      }
      if ((completion.flags & IORING_CQE_F_MORE) == 0) arm_accept();
      return;
  }
}

void EchoServer::received(int descriptor, const io_uring_cqe& completion) {
  Connection& its = connection(descriptor);
  if ((completion.flags & IORING_CQE_F_MORE) == 0) its.receive_armed = false;
  if (completion.res > 0) {
    its.queue.push_back({completion.flags >> IORING_CQE_BUFFER_SHIFT, 0,
                         static_cast<std::uint32_t>(completion.res)});
    if (its.queue.size() == 1) arm_send(descriptor);
    if (!its.receive_armed) arm_receive(descriptor);
  } else if (completion.res == -ENOBUFS) {
    starved_.push_back(descriptor);
  } else {
    its.ended = true;
    if (its.queue.empty()) end(descriptor);
  }
}

void EchoServer::sent(int descriptor, int result) {
  Connection& its = connection(descriptor);
  Outgoing& first = its.queue.front();
  if (result < 0) {
    for (const Outgoing& each : its.queue) give_back(each.buffer);
    its.queue.clear();
    if (!its.receive_armed) end(descriptor);
    its.ended = true;
    return;
  }
  first.done += static_cast<std::uint32_t>(result);
  if (first.done == first.size) {
    --echoes_left_;
    give_back(first.buffer);
    its.queue.erase(its.queue.begin());
  }
  if (!its.queue.empty()) return arm_send(descriptor);
  if (its.ended) end(descriptor);
}

void EchoServer::end(int descriptor) { close(descriptor); }

}  // namespace

int main(int count, char** values) {
  return raw::serve<EchoServer>(raw::parse_echo_options(
      count, values,
      "  --echoes N  end by itself after N echoes, and print how many waits they took"));
}
