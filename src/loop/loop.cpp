#include <evix/loop.hpp>

#include <system_error>

#include "base/mutation.hpp"
#include "loop/core.hpp"
#include "poll/driver.hpp"
#include "sys/error.hpp"

namespace evix {

using detail::LoopCore;

std::string_view to_string(HandleKind kind) noexcept {
  switch (kind) {
    case HandleKind::timer:
      return "timer";
    case HandleKind::watcher:
      return "watcher";
    case HandleKind::signal:
      return "signal";
    case HandleKind::listener:
      return "listener";
    case HandleKind::stream:
      return "stream";
    case HandleKind::waker:
      return "waker";
    case HandleKind::task:
      return "task";
  }
  return "unknown";
}

// ---- Handle ----------------------------------------------------------------------------------

namespace detail {

void release_handle(HandleRecord* record) noexcept { record->core->release_record(*record); }

namespace {

HandleRecord& usable(HandleRecord* record) noexcept {
  check(record != nullptr, "an empty handle was used");
  record->core->check_usable("a handle was used by a thread that does not run its loop");
  return *record;
}

}  // namespace
}  // namespace detail

bool Handle::active() const noexcept { return detail::usable(record_).active; }

void Handle::set_name(std::string_view name) {
  detail::HandleRecord& record = detail::usable(record_);
  record.core->set_name(record, name);
}

std::string_view Handle::name() const noexcept {
  const detail::HandleRecord& record = detail::usable(record_);
  return record.core->name(record);
}

void Handle::reference() noexcept {
  detail::HandleRecord& record = detail::usable(record_);
  record.core->set_referenced(record, true);
}

void Handle::unreference() noexcept {
  detail::HandleRecord& record = detail::usable(record_);
  record.core->set_referenced(record, false);
}

bool Handle::referenced() const noexcept { return detail::usable(record_).referenced; }

// ---- Poster ----------------------------------------------------------------------------------

Poster::Poster(detail::Mailbox* mailbox) noexcept : mailbox_(mailbox) { mailbox_->acquire(); }

Poster::Poster(const Poster& other) noexcept : mailbox_(other.mailbox_) {
  if (mailbox_ != nullptr) mailbox_->acquire();
}

Poster::Poster(Poster&& other) noexcept : mailbox_(std::exchange(other.mailbox_, nullptr)) {}

Poster& Poster::operator=(Poster other) noexcept {
  std::swap(mailbox_, other.mailbox_);
  return *this;
}

Poster::~Poster() {
  if (mailbox_ != nullptr) mailbox_->release();
}

Result<void> Poster::post(PostCallback task) const {
  detail::check(static_cast<bool>(task), "an empty callback was posted");
  const bool dead = mailbox_ == nullptr || (mailbox_->closed() && !detail::mutated("T115"));
  if (dead) return detail::failure(Errc::closed, "post");
  auto node = std::make_unique<detail::PostNode>(std::move(task));
  if (!mailbox_->push(node.get())) {
    if (detail::mutated("T115")) (void)node.release();
    return detail::failure(Errc::closed, "post");
  }
  (void)node.release();
  return {};
}

void Poster::wake() const noexcept {
  if (mailbox_ != nullptr) mailbox_->wake();
}

// ---- KeepAlive -------------------------------------------------------------------------------

KeepAlive::KeepAlive(LoopCore* core) noexcept : core_(core) {
  core_->acquire();
  core_->add_reference();
}

KeepAlive::~KeepAlive() {
  if (core_ == nullptr) return;
  core_->check_usable("a KeepAlive was destroyed by a thread that does not run its loop");
  core_->drop_reference();
  core_->release();
}

// ---- Loop ------------------------------------------------------------------------------------

namespace {

LoopCore* make_or_throw(const LoopOptions& options) {
  auto made = LoopCore::make(options, nullptr);
  if (!made) {
    // The exception adds what the code says.
    const std::string subject = made.error().subject().to_string();
    const std::string operation = made.error().operation();
    throw std::system_error(made.error().code(),
                            operation + (subject.empty() ? "" : " ") + subject);
  }
  return *made;
}

LoopCore& existing(LoopCore* core) noexcept {
  detail::check(core != nullptr, "a moved-from loop was used");
  return *core;
}

LoopCore& usable(LoopCore* core, const char* what) noexcept {
  existing(core).check_usable(what);
  return *core;
}

}  // namespace

Loop::Loop() : Loop(LoopOptions{}) {}

Loop::Loop(const LoopOptions& options) : Loop(make_or_throw(options)) {}

Loop::Loop(LoopCore* core) noexcept : core_(core) { be_the_loop_of_core(); }

void Loop::be_the_loop_of_core() noexcept {
  if (core_ != nullptr) core_->loop = this;
}

Result<Loop> Loop::create(const LoopOptions& options) {
  return detail::make_loop(options, nullptr);
}

Result<Loop> detail::make_loop(const LoopOptions& options, std::unique_ptr<PollDriver> driver) {
  auto made = LoopCore::make(options, std::move(driver));
  if (!made) return std::unexpected(made.error());
  return Loop(*made);
}

Loop::Loop(Loop&& other) noexcept : Loop(std::exchange(other.core_, nullptr)) {}

Loop& Loop::operator=(Loop&& other) noexcept {
  Loop moved(std::move(other));
  std::swap(core_, moved.core_);
  be_the_loop_of_core();
  return *this;
}

Loop::~Loop() {
  if (core_ == nullptr) return;
  core_->shut_down();
  core_->release();
}

LoopCore& Loop::core() const noexcept { return existing(core_); }

int Loop::run() { return existing(core_).run(LoopCore::RunMode::until_done, LoopCore::no_limit); }

int Loop::run_once(Duration timeout) {
  std::int64_t limit_ns = timeout.count() < 0 ? 0 : timeout.count();
  if (timeout == forever) limit_ns = LoopCore::no_limit;
  return existing(core_).run(LoopCore::RunMode::once, limit_ns);
}

int Loop::run_ready() { return existing(core_).run(LoopCore::RunMode::once, 0); }

int Loop::run_for(Duration duration) {
  const std::int64_t limit_ns = duration.count() < 0 ? 0 : duration.count();
  return existing(core_).run(LoopCore::RunMode::until_done, limit_ns);
}

const Error& Loop::error() const noexcept { return existing(core_).error(); }

void Loop::stop() noexcept { existing(core_).stop(false); }

void Loop::stop_all() noexcept { existing(core_).stop(true); }

void Loop::clear_stop() noexcept { existing(core_).clear_stop(); }

bool Loop::running() const noexcept { return existing(core_).running(); }

bool Loop::alive() const noexcept { return existing(core_).alive(); }

void Loop::post(PostCallback task) { existing(core_).post(std::move(task)); }

void Loop::wake() noexcept { existing(core_).mailbox().wake(); }

Poster Loop::poster() const {
  // Errors of making the wake descriptor come from the wait that needs it.
  return Poster(&existing(core_).mailbox());
}

KeepAlive Loop::keep_alive() noexcept {
  return KeepAlive(&usable(core_, "keep_alive() from a thread that does not run the loop"));
}

TimePoint Loop::now() const noexcept {
  return TimePoint(
      Duration(usable(core_, "now() from a thread that does not run the loop").now_ns()));
}

void Loop::update_now() noexcept {
  usable(core_, "update_now() from a thread that does not run the loop").update_now();
}

BackendKind Loop::backend() const noexcept { return existing(core_).report().chosen; }

const BackendReport& Loop::backend_report() const noexcept { return existing(core_).report(); }

LoopCounters Loop::counters() const noexcept { return existing(core_).counters(); }

std::vector<HandleInfo> Loop::handles() const {
  return usable(core_, "handles() from a thread that does not run the loop").list_handles();
}

Result<void> Loop::after_fork() { return existing(core_).after_fork(); }

Result<void> Loop::rebuild() { return existing(core_).rebuild(); }

void Loop::set_wait_hooks(Callback<void()> before, Callback<void()> after) {
  usable(core_, "set_wait_hooks() from a thread that does not run the loop")
      .set_wait_hooks(std::move(before), std::move(after));
}

void Loop::set_user_data(void* data) noexcept { existing(core_).user_data = data; }

void* Loop::user_data() const noexcept { return existing(core_).user_data; }

}  // namespace evix
