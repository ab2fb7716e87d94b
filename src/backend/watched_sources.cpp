#include "backend/watched_sources.hpp"

#include <evix/error.hpp>

#include <cerrno>
#include <new>
#include <utility>

#include "backend/source_ops.hpp"
#include "base/mutation.hpp"

namespace evix::detail {

int WatchedSources::add(WatchOp& op) noexcept {
  int error = 0;
  WatchedSource* source = make(op, error);
  if (source == nullptr) return error;
  op.pending = mutated("T019") ? op.interest : Ready::none;
  push_watch(*source, op);
  return 0;
}

// A number that is watched already is offered to the poller anew: it takes it when the number was
// closed behind our back and now stands for something else. The source from before then gets
// Ready::invalid, and nothing of the new descriptor.
WatchedSource* WatchedSources::make(const WatchOp& op, int& error) noexcept {
  WatchedSource* source = nullptr;
  try {
    source = sources_.make();
    source->kind = SourceKind::watched;
    source->handle = op.handle;
    const auto [place, inserted] = by_handle_.try_emplace(op.handle, source);
    error = poller_.add_now(op.handle, op.interest, Trigger::level, token_of(*source),
                            source->interest);
    if (error == 0) {
      source->registered = op.interest;
      place->second = source;
      return source;
    }
    if (inserted) by_handle_.erase(place);
  } catch (const std::bad_alloc&) {
    error = -ENOMEM;
  }
  if (source != nullptr) sources_.free(source);
  if (error != -static_cast<int>(Errc::already_registered)) return nullptr;
  const auto found = by_handle_.find(op.handle);
  return found != by_handle_.end() ? found->second : nullptr;
}

int WatchedSources::sync(WatchedSource& source) noexcept {
  const Ready interest = interest_of(source);
  if (interest == source.registered || source.interest.generation == 0) return 0;
  const int error = poller_.modify(source.interest, interest, Trigger::level);
  if (error == 0) source.registered = interest;
  return error;
}

WatchedSource* WatchedSources::remove(WatchOp& op) noexcept {
  auto& source = static_cast<WatchedSource&>(*op.source);
  unlink_watch(op);
  if (source.in == nullptr) return &source;
  (void)sync(source);
  return nullptr;
}

void WatchedSources::unregister(WatchedSource& source) noexcept {
  if (source.interest.generation != 0) (void)poller_.remove(source.interest);
  source.interest = {};
  const auto found = by_handle_.find(source.handle);
  if (found != by_handle_.end() && found->second == &source) by_handle_.erase(found);
}

void WatchedSources::drop(WatchedSource& source) noexcept {
  unregister(source);
  if (!source.resting) sources_.free(&source);
}

void WatchedSources::rest(WatchedSource& source) noexcept {
  if (source.resting) return;
  source.resting = true;
  source.next_resting = std::exchange(resting_, &source);
}

void WatchedSources::end_rest() noexcept {
  while (resting_ != nullptr) {
    WatchedSource& source = *std::exchange(resting_, resting_->next_resting);
    source.resting = false;
    if (source.in == nullptr) drop(source);
  }
}

}  // namespace evix::detail
