#include "daemon/io/uring_worker.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <future>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

constexpr uint64_t kWakeTag = ~uint64_t{0};
constexpr unsigned kReapAtOnce = 4;

std::string ErrnoText(int error, const char* what) {
  return std::string(hoistd::ErrnoToStatus(error, what).message());
}

}  // namespace

UringWorker::UringWorker(IoQueue& queue, const Options& options)
    : queue_(queue), options_(options), pieces_(options.chunks) {
  free_slots_.resize(options.chunks);
  std::iota(free_slots_.rbegin(), free_slots_.rend(), size_t{0});
}

absl::StatusOr<std::unique_ptr<UringWorker>> UringWorker::Start(
    IoQueue& queue, const Options& options) {
  std::unique_ptr<UringWorker> worker(new UringWorker(queue, options));
  worker->wake_ = hoist::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!worker->wake_.valid()) return ErrnoToStatus(errno, "eventfd");
  // SINGLE_ISSUER: the submitting thread must make the ring.
  std::promise<absl::Status> promise;
  std::future<absl::Status> ready = promise.get_future();
  HOIST_ASSIGN_OR_RETURN(worker->thread_,
                         StartThread([promise = std::move(promise),
                                      self = worker.get()]() mutable {
                           const absl::Status status = self->SetUp();
                           promise.set_value(status);
                           if (status.ok()) self->Run();
                         }));
  HOIST_RETURN_IF_ERROR(ready.get());
  return worker;
}

UringWorker::~UringWorker() {
  if (thread_.joinable()) thread_.join();
}

void UringWorker::Wake() {
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the worker will wake anyway.
  if (write(wake_.get(), &one, sizeof one) != sizeof one) return;
}

absl::Status UringWorker::SetUp() {
  HOIST_ASSIGN_OR_RETURN(
      arena_, AlignedBuffer::Create(options_.chunk_bytes * options_.chunks));
  const unsigned entries = options_.chunks + 1;  // And the wake-up.
  io_uring_params params = {};
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                 IORING_SETUP_CLAMP;
  int error = -io_uring_queue_init_params(entries, &ring_, &params);
  if (error == EINVAL) {
    setup_.fallbacks.push_back(
        "io_uring without DEFER_TASKRUN: the kernel is older than 6.1");
    params = {};
    params.flags = IORING_SETUP_CLAMP;
    error = -io_uring_queue_init_params(entries, &ring_, &params);
  }
  if (error != 0) return ErrnoToStatus(error, "io_uring_setup");
  if (absl::Status used = UseOnce(); !used.ok()) {
    io_uring_queue_exit(&ring_);
    return used;
  }
  const iovec arena = {arena_.data(), arena_.span().size()};
  error = -io_uring_register_buffers(&ring_, &arena, 1);
  setup_.registered_buffers = error == 0;
  if (error != 0) {
    setup_.fallbacks.push_back(absl::StrCat(
        "no registered buffers: ", ErrnoText(error, "io_uring_register"),
        error == ENOMEM ? " (raise RLIMIT_MEMLOCK)" : ""));
  }
  return absl::OkStatus();
}

absl::Status UringWorker::UseOnce() {
  io_uring_prep_nop(NextSqe());
  int result = 0;
  do {
    result = io_uring_submit_and_wait(&ring_, 1);
  } while (result == -EINTR);
  if (result < 0) return ErrnoToStatus(-result, "io_uring_enter");
  io_uring_cqe* cqe = nullptr;
  result = -io_uring_wait_cqe(&ring_, &cqe);
  if (result != 0) return ErrnoToStatus(result, "io_uring_enter");
  io_uring_cqe_seen(&ring_, cqe);
  return absl::OkStatus();
}

void UringWorker::Run() {
  while (true) {
    Fill();
    const bool idle = free_slots_.size() == pieces_.size();
    if (idle && queue_.Drained()) break;
    ArmWake();
    SubmitAndWait();
    Reap();
  }
  io_uring_queue_exit(&ring_);
}

void UringWorker::Fill() {
  while (!free_slots_.empty()) {
    std::optional<Piece> piece = queue_.TryTake();
    if (!piece) return;
    const size_t slot = free_slots_.back();
    const auto chunk = arena_.span().subspan(slot * options_.chunk_bytes,
                                             options_.chunk_bytes);
    pieces_[slot] = PieceIo(*std::move(piece), chunk);
    free_slots_.pop_back();
    Issue(slot);
  }
}

io_uring_sqe* UringWorker::NextSqe() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  // There is always room: the ring has one entry per slot and one for the
  // wake-up, and each is queued at most once.
  HOIST_CHECK(sqe != nullptr);
  return sqe;
}

void UringWorker::Issue(size_t slot) {
  const IoCall call = pieces_[slot].Next();
  if (call.kind == IoCall::Kind::kNone) {
    Complete(slot, 0);
    return;
  }
  io_uring_sqe* sqe = NextSqe();
  const auto read_bytes = static_cast<unsigned>(call.to.size());
  switch (call.kind) {
    case IoCall::Kind::kNone:
      break;
    case IoCall::Kind::kRead:
      if (call.bounced && setup_.registered_buffers) {
        io_uring_prep_read_fixed(sqe, call.fd, call.to.data(), read_bytes,
                                 call.offset, 0);
      } else {
        io_uring_prep_read(sqe, call.fd, call.to.data(), read_bytes,
                           call.offset);
      }
      break;
    case IoCall::Kind::kReadVector:
      io_uring_prep_readv(sqe, call.fd, call.into.data(),
                          static_cast<unsigned>(call.into.size()), call.offset);
      break;
    case IoCall::Kind::kWrite:
      io_uring_prep_write(sqe, call.fd, call.from.data(),
                          static_cast<unsigned>(call.from.size()), call.offset);
      break;
    case IoCall::Kind::kSync:
      io_uring_prep_fsync(sqe, call.fd, IORING_FSYNC_DATASYNC);
      break;
  }
  io_uring_sqe_set_data64(sqe, slot);
}

void UringWorker::ArmWake() {
  if (wake_armed_) return;
  io_uring_sqe* sqe = NextSqe();
  io_uring_prep_poll_add(sqe, wake_.get(), POLLIN);
  io_uring_sqe_set_data64(sqe, kWakeTag);
  wake_armed_ = true;
}

void UringWorker::SubmitAndWait() {
  const int result = io_uring_submit_and_wait(&ring_, 1);
  if (result >= 0 || result == -EINTR) return;
  // The kernel is short of memory for requests: let some complete first. Any
  // other error means a broken ring, with reads into the callers' memory in
  // flight: no safe way to continue.
  HOIST_CHECK(result == -EAGAIN || result == -EBUSY || result == -ENOMEM);
  pollfd ring = {.fd = ring_.ring_fd, .events = POLLIN, .revents = 0};
  poll(&ring, 1, 1);
}

void UringWorker::Reap() {
  for (unsigned i = 0; i < kReapAtOnce; ++i) {
    io_uring_cqe* cqe = nullptr;
    if (io_uring_peek_cqe(&ring_, &cqe) != 0) return;
    const uint64_t tag = cqe->user_data;
    const int result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    if (tag == kWakeTag) {
      uint64_t count = 0;
      // Empties the counter; EAGAIN: it was empty.
      if (read(wake_.get(), &count, sizeof count) < 0) count = 0;
      wake_armed_ = false;
    } else {
      Complete(tag, result);
    }
  }
}

void UringWorker::Complete(size_t slot, int result) {
  const std::optional<absl::Status> status = pieces_[slot].Result(result);
  if (!status) {
    Issue(slot);
    return;
  }
  Piece piece = pieces_[slot].TakePiece();
  free_slots_.push_back(slot);
  queue_.Finish(std::move(piece), *status);
}

}  // namespace hoistd
