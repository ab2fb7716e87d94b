#include "backend/stimulus.hpp"

namespace evix::test {
namespace {

class ImmediateStimulus final : public Stimulus {
 public:
  explicit ImmediateStimulus(Loop& loop) : loop_(loop) {}
  void start(std::function<void()> call) override {
    call_ = std::make_shared<std::function<void()>>(std::move(call));
    loop_.post([weak = std::weak_ptr(call_)] {
      if (const auto held = weak.lock()) (*held)();
    });
  }
  void stop() override { call_.reset(); }
  void destroy() override { stop(); }

 private:
  Loop& loop_;
  std::shared_ptr<std::function<void()>> call_;
};

class TimerStimulus final : public Stimulus {
 public:
  TimerStimulus(Loop& loop, bool repeating) : timer_(loop), repeating_(repeating) {}
  void start(std::function<void()> call) override {
    if (repeating_) {
      timer_.after_then_every(0ns, 1ms, std::move(call));
    } else {
      timer_.after(0ns, std::move(call));
    }
  }
  void stop() override { timer_.stop(); }
  void destroy() override { timer_ = Timer(); }

 private:
  Timer timer_;
  bool repeating_;
};

class WatcherStimulus final : public Stimulus {
 public:
  explicit WatcherStimulus(Loop& loop) : watcher_(loop) {}
  void start(std::function<void()> call) override {
    const auto started = watcher_.start(descriptor_.get(), Ready::readable,
                                        [call = std::move(call)](Ready) { call(); });
    ASSERT_TRUE(started) << started.error().message();
  }
  void stop() override { watcher_.stop(); }
  void destroy() override { watcher_ = Watcher(); }

 private:
  OwnDescriptor descriptor_ = readable_descriptor();
  Watcher watcher_;
};

class SignalStimulus final : public Stimulus {
 public:
  explicit SignalStimulus(Loop& loop) : watcher_(loop) {}
  void start(std::function<void()> call) override {
    const auto started = watcher_.start(SIGUSR1, [call = std::move(call)](int) { call(); });
    ASSERT_TRUE(started) << started.error().message();
    raise(SIGUSR1);
  }
  void stop() override { watcher_.stop(); }
  void destroy() override { watcher_ = SignalWatcher(); }

 private:
  SignalWatcher watcher_;
};

class ListenerStimulus final : public Stimulus {
 public:
  explicit ListenerStimulus(Loop& loop) : loop_(loop), listener_(loop), client_(loop) {}
  void prepare() override {
    ASSERT_TRUE(listener_.listen("127.0.0.1:0"));
    client_.connect(listener_.local_address().value(), [](Result<void>) {});
    for (int turn = 0; turn < 100 && !client_.connected(); ++turn) loop_.run_once(100ms);
    ASSERT_TRUE(client_.connected());
  }
  void start(std::function<void()> call) override {
    listener_.accept_start([call = std::move(call)](Result<TcpStream>) { call(); });
  }
  void stop() override { listener_.accept_stop(); }
  void destroy() override { listener_ = TcpListener(); }

 private:
  Loop& loop_;
  TcpListener listener_;
  TcpStream client_;
};

class StreamStimulus final : public Stimulus {
 public:
  explicit StreamStimulus(Loop& loop) : loop_(loop) {}
  void prepare() override { ASSERT_TRUE(pair_.open(loop_)); }
  void start(std::function<void()> call) override {
    pair_.server.receive_start([call = std::move(call)](Result<Buffer>) { call(); });
    ASSERT_TRUE(pair_.client.send_copy("x"));
  }
  void stop() override { pair_.server.receive_stop(); }
  void destroy() override { pair_.server = TcpStream(); }

 private:
  Loop& loop_;
  TcpPair pair_;
};

class WakerStimulus final : public Stimulus {
 public:
  explicit WakerStimulus(Loop& loop) : loop_(loop) {}
  void start(std::function<void()> call) override {
    waker_ = Waker(loop_, std::move(call));
    ASSERT_TRUE(waker_.sender().wake());
  }
  void stop() override {
    if (waker_) waker_.stop();
  }
  void destroy() override { waker_ = Waker(); }

 private:
  Loop& loop_;
  Waker waker_;
};

}  // namespace

std::unique_ptr<Stimulus> make_stimulus(Loop& loop, Kind kind) {
  switch (kind) {
    case Kind::immediate:
      return std::make_unique<ImmediateStimulus>(loop);
    case Kind::timer:
      return std::make_unique<TimerStimulus>(loop, false);
    case Kind::repeating:
      return std::make_unique<TimerStimulus>(loop, true);
    case Kind::watcher:
      return std::make_unique<WatcherStimulus>(loop);
    case Kind::signal:
      return std::make_unique<SignalStimulus>(loop);
    case Kind::listener:
      return std::make_unique<ListenerStimulus>(loop);
    case Kind::stream:
      return std::make_unique<StreamStimulus>(loop);
    case Kind::waker:
      return std::make_unique<WakerStimulus>(loop);
  }
  return nullptr;
}

}  // namespace evix::test
