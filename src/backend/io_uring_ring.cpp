#include "backend/io_uring_ring.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

namespace evix::detail {
namespace {

// Entries for one call; more are handed over in several. 16 KiB, and of completions 32 KiB.
constexpr unsigned entry_count_first = 256;
// Below that a ring is of no use; the kernel has no memory for one then, or the user no right to
// lock as much (RLIMIT_MEMLOCK).
constexpr unsigned entry_count_least = 8;
constexpr unsigned completions_per_entry = 8;

constexpr std::int64_t nanoseconds_per_second = 1'000'000'000;
// 31 years: the kernel adds it to its clock, and the sum must not overflow.
constexpr std::int64_t wait_max_ns = 1'000'000'000 * nanoseconds_per_second;

constexpr unsigned deferred = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;

/** How the kernel runs the work of a completion, best first. */
struct TaskMode {
  unsigned flags;
  const char* lacking;  // what it lacks compared with the one before it
};
constexpr std::array task_modes{
    TaskMode{deferred | IORING_SETUP_TASKRUN_FLAG, ""},
    TaskMode{deferred, "IORING_SETUP_TASKRUN_FLAG is refused: each look at the ring is a call"},
    TaskMode{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
             "IORING_SETUP_DEFER_TASKRUN is refused: completions are not collected for the wait"},
    TaskMode{IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
             "IORING_SETUP_SINGLE_ISSUER is refused: the kernel locks the ring"},
    TaskMode{0, "IORING_SETUP_COOP_TASKRUN is refused: completions interrupt the thread"},
};

constexpr unsigned features_needed = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP |
                                     IORING_FEAT_SUBMIT_STABLE | IORING_FEAT_FAST_POLL |
                                     IORING_FEAT_EXT_ARG;

struct Opcode {
  unsigned number;
  const char* name;
};
constexpr std::array opcodes_needed{
    Opcode{IORING_OP_NOP, "IORING_OP_NOP"},
    Opcode{IORING_OP_POLL_ADD, "IORING_OP_POLL_ADD"},
    Opcode{IORING_OP_ACCEPT, "IORING_OP_ACCEPT"},
    Opcode{IORING_OP_ASYNC_CANCEL, "IORING_OP_ASYNC_CANCEL"},
    Opcode{IORING_OP_SEND, "IORING_OP_SEND"},
    Opcode{IORING_OP_RECV, "IORING_OP_RECV"},
};

template <class T>
T* at(void* memory, unsigned offset) noexcept {
  return reinterpret_cast<T*>(static_cast<std::byte*>(memory) + offset);
}

}  // namespace

// ---- Set-up ----------------------------------------------------------------------------------

int Ring::refuse(int error, std::string why) {
  why_ = std::move(why);
  close();
  return error;
}

int Ring::open() {
  fallbacks_.clear();
  io_uring_params parameters{};
  if (const int error = set_up(parameters); error < 0) return refuse(error, "");
  if (const int error = check_features(parameters); error < 0) return error;
  if (const int error = map(parameters); error < 0) return refuse(error, "");
  if (const int error = check_opcodes(); error < 0) return error;
  if (const int error = check_enter(); error < 0) return refuse(error, "");
  disabled_ = (parameters.flags & IORING_SETUP_R_DISABLED) != 0;
  flags_tell_ = (parameters.flags & IORING_SETUP_TASKRUN_FLAG) != 0;
  const bool silent = (parameters.features & IORING_FEAT_CQE_SKIP) != 0 &&
                      (parameters.flags & IORING_SETUP_DEFER_TASKRUN) != 0;
  silent_send_flags_ = silent ? IOSQE_CQE_SKIP_SUCCESS : 0;
  return 0;
}

// EINVAL says that a flag is not known, and not which: each is left out in turn.
int Ring::set_up(io_uring_params& parameters) {
  struct Extra {
    unsigned flag;
    const char* lacking;
  };
  constexpr std::array extras{
      Extra{IORING_SETUP_R_DISABLED,
            "IORING_SETUP_R_DISABLED is refused: a thread that did not"
            " make the loop makes its ring anew"},
      Extra{IORING_SETUP_SUBMIT_ALL, "IORING_SETUP_SUBMIT_ALL is refused: a bad entry ends a call"},
  };
  int error = 0;
  for (std::size_t mode = 0; mode < task_modes.size(); ++mode) {
    for (unsigned without = 0; without < 1U << extras.size(); ++without) {
      unsigned flags = task_modes[mode].flags;
      for (std::size_t i = 0; i < extras.size(); ++i) {
        if ((without >> i & 1U) == 0) flags |= extras[i].flag;
      }
      error = set_up_smaller(parameters, flags);
      if (error == -EINVAL) continue;
      if (error < 0) return error;
      for (std::size_t i = 1; i <= mode; ++i) {
        // A later mode has the flag back that an earlier one was tried without.
        if (i != 1 || mode == 1) fallbacks_.emplace_back(task_modes[i].lacking);
      }
      for (std::size_t i = 0; i < extras.size(); ++i) {
        if ((without >> i & 1U) != 0) fallbacks_.emplace_back(extras[i].lacking);
      }
      return 0;
    }
  }
  return error;
}

int Ring::set_up_smaller(io_uring_params& parameters, unsigned flags) {
  int error = -ENOMEM;
  for (unsigned count = entry_count_first; error == -ENOMEM && count >= entry_count_least;
       count /= mutated("T140") ? entry_count_first : 4) {
    parameters = {};
    parameters.flags = flags | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    if (mutated("T146")) parameters.flags |= IORING_SETUP_SQPOLL;
    parameters.cq_entries = count * completions_per_entry;
    error = fd_ = calls_.ring_setup(count, &parameters);
    if (error >= 0 && count < entry_count_first) {
      fallbacks_.emplace_back("the kernel refuses the memory of a ring of " +
                              std::to_string(entry_count_first) + " entries: it has " +
                              std::to_string(count));
    }
  }
  if (fd_ < 0) fd_ = -1;
  return error < 0 ? error : 0;
}

int Ring::check_features(const io_uring_params& parameters) {
  if ((parameters.features & features_needed) == features_needed) return 0;
  return refuse(-EOPNOTSUPP, "this kernel's io_uring is older than Linux 5.11");
}

int Ring::check_opcodes() {
  constexpr unsigned count = 64;
  struct Probe {
    alignas(io_uring_probe) std::byte head[sizeof(io_uring_probe)];
    io_uring_probe_op operations[count];
  } probe{};
  if (const int error = calls_.ring_register(fd_, IORING_REGISTER_PROBE, &probe, count);
      error < 0) {
    return refuse(error, "");
  }
  for (const Opcode& opcode : opcodes_needed) {
    // Those that the kernel does not know it leaves at zero.
    if ((probe.operations[opcode.number].flags & IO_URING_OP_SUPPORTED) != 0) continue;
    return refuse(-EOPNOTSUPP, std::string("the kernel refuses ") + opcode.name);
  }
  return 0;
}

// Hands over nothing and waits for nothing. A ring that is not yet enabled says EBADFD, and what
// passes is met again by each wait, which goes on; any other error is a refusal (sandboxes).
int Ring::check_enter() noexcept {
  io_uring_getevents_arg argument{};
  const int error = calls_.ring_enter(fd_, 0, 0, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
                                      &argument, sizeof argument);
  const bool passes = error == -EINTR || error == -EAGAIN || error == -EBUSY;
  return passes || error == -EBADFD || mutated("T139") ? 0 : error;
}

int Ring::map_one(Memory& memory, std::size_t size, std::uint64_t offset) noexcept {
  if (const int error = calls_.memory_map(fd_, size, offset, &memory.address); error < 0) {
    return error;
  }
  memory.size = size;
  // Where it is refused a child has the queues too, and does not touch them.
  (void)calls_.memory_keep_from_children(memory.address, size);
  return 0;
}

int Ring::map(const io_uring_params& p) {
  const std::size_t submission = p.sq_off.array + p.sq_entries * sizeof(unsigned);
  const std::size_t completion = p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe);
  if (const int error = map_one(queues_, std::max(submission, completion), IORING_OFF_SQ_RING);
      error < 0) {
    return error;
  }
  if (const int error =
          map_one(entry_memory_, p.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
      error < 0) {
    return error;
  }
  entries_ = static_cast<io_uring_sqe*>(entry_memory_.address);
  entry_count_ = p.sq_entries;
  entry_mask_ = p.sq_entries - 1;
  kernel_tail_ = at<unsigned>(queues_.address, p.sq_off.tail);
  kernel_flags_ = at<unsigned>(queues_.address, p.sq_off.flags);
  tail_ = submitted_ = 0;
  auto* const order = at<unsigned>(queues_.address, p.sq_off.array);
  for (unsigned i = 0; i < p.sq_entries; ++i) order[i] = i;

  completions_ = at<io_uring_cqe>(queues_.address, p.cq_off.cqes);
  completion_mask_ = p.cq_entries - 1;
  completion_tail_ = at<unsigned>(queues_.address, p.cq_off.tail);
  kernel_completion_head_ = at<unsigned>(queues_.address, p.cq_off.head);
  completion_head_ = 0;
  return 0;
}

int Ring::enable() noexcept {
  if (!disabled_) return 0;
  const int error = calls_.ring_register(fd_, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  if (error < 0) return error;
  disabled_ = false;
  return 0;
}

// ---- End -------------------------------------------------------------------------------------

void Ring::forget() noexcept {
  queues_ = entry_memory_ = {};
  entries_ = nullptr;
  tail_ = submitted_ = entry_count_ = completion_head_ = 0;
  kernel_tail_ = kernel_flags_ = completion_tail_ = &nothing_;
  disabled_ = false;
  fd_ = registered_ = -1;
}

void Ring::close() noexcept {
  unregister_self();
  for (const Memory& memory : {queues_, entry_memory_}) {
    if (memory.address != nullptr) (void)calls_.memory_unmap(memory.address, memory.size);
  }
  if (fd_ >= 0) (void)calls_.close(fd_);
  forget();
}

void Ring::abandon() noexcept {
  if (fd_ >= 0) (void)calls_.close(fd_);
  forget();
}

// ---- Entering --------------------------------------------------------------------------------

int Ring::enter(unsigned completion_count, std::int64_t timeout_ns) noexcept {
  __atomic_store_n(kernel_tail_, tail_, __ATOMIC_RELEASE);
  const std::int64_t limited_ns = std::min(timeout_ns, wait_max_ns);
  __kernel_timespec timeout{limited_ns / nanoseconds_per_second,
                            limited_ns % nanoseconds_per_second};
  io_uring_getevents_arg argument{};
  argument.sigmask_sz = _NSIG / 8;
  argument.ts = reinterpret_cast<std::uintptr_t>(&timeout);
  const bool limited = completion_count != 0 && timeout_ns >= 0;
  unsigned flags = IORING_ENTER_GETEVENTS;
  if (limited) flags |= IORING_ENTER_EXT_ARG;
  if (registered_ >= 0) flags |= IORING_ENTER_REGISTERED_RING;
  const int taken = calls_.ring_enter(registered_ >= 0 ? registered_ : fd_, unsubmitted(),
                                      completion_count, flags, limited ? &argument : nullptr,
                                      limited ? sizeof argument : _NSIG / 8);
  if (taken < 0) return taken;
  submitted_ += static_cast<unsigned>(taken);
  return 0;
}

void Ring::register_self() noexcept {
  if (registered_ >= 0) return;
  io_uring_rsrc_update update{};
  update.offset = UINT32_MAX;  // any free place
  update.data = static_cast<__u64>(fd_);
  if (calls_.ring_register(fd_, IORING_REGISTER_RING_FDS, &update, 1) == 1) {
    registered_ = static_cast<int>(update.offset);
  }
}

void Ring::unregister_self() noexcept {
  if (registered_ < 0) return;
  io_uring_rsrc_update update{};
  update.offset = static_cast<unsigned>(registered_);
  (void)calls_.ring_register(fd_, IORING_UNREGISTER_RING_FDS, &update, 1);
  registered_ = -1;
}

int Ring::register_buffers(void* memory) noexcept {
  io_uring_buf_reg registration{};
  registration.ring_addr = reinterpret_cast<std::uintptr_t>(memory);
  registration.ring_entries = ring_buffer_count;
  registration.bgid = ring_buffer_group;
  return calls_.ring_register(fd_, IORING_REGISTER_PBUF_RING, &registration, 1);
}

}  // namespace evix::detail
