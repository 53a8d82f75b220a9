#include "daemon/io/io_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace hoistd {

// One request. Guarded by the queue's lock once it is pushed.
struct IoJob {
  enum class Stage { kCutting, kSyncDue, kAllCut };

  bool write = false;
  IoFile file;
  IoEngine::Done done;
  ReadCutter cutter;
  std::optional<ReadPiece> next_read;  // One ahead, to know the last one.
  uint64_t offset = 0;                 // Of the uncut rest of a write.
  std::span<const std::byte> from;     // The uncut rest of a write.
  bool sync = false;
  Stage stage = Stage::kCutting;
  uint64_t in_flight = 0;
  absl::Status status;
};

namespace {

constexpr uint64_t kMaxOffset = std::numeric_limits<int64_t>::max();

absl::Status CheckRange(uint64_t offset, uint64_t bytes) {
  if (offset <= kMaxOffset && bytes <= kMaxOffset - offset) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no file has ", bytes, " bytes at offset ", offset));
}

absl::Status CheckRead(const ReadRequest& request) {
  uint64_t bytes = 0;
  for (const Scatter& scatter : request.into) {
    if (scatter.bytes > kMaxOffset - bytes) {
      return CheckRange(request.offset, kMaxOffset + 1);
    }
    bytes += scatter.bytes;
  }
  return CheckRange(request.offset, bytes);
}

absl::Status CheckWrite(const WriteRequest& request) {
  const auto address = reinterpret_cast<uintptr_t>(request.from.data());
  if ((address | request.from.size() | request.offset) % kDirectAlignment) {
    return absl::InvalidArgumentError(
        "a write needs address, size and file offset to be multiples of 4096");
  }
  return CheckRange(request.offset, request.from.size());
}

// The next piece of `job`. The last one sets kAllCut.
Piece Cut(IoJob& job, uint64_t piece_bytes) {
  Piece piece;
  piece.direct = job.file.direct_fd >= 0;
  piece.fd = piece.direct ? job.file.direct_fd : job.file.fd;
  if (job.stage == IoJob::Stage::kSyncDue) {
    piece.kind = Piece::Kind::kSync;
    job.stage = IoJob::Stage::kAllCut;
  } else if (!job.status.ok()) {
    job.stage = IoJob::Stage::kAllCut;
  } else if (job.write) {
    const uint64_t bytes = std::min<uint64_t>(piece_bytes, job.from.size());
    if (bytes > 0) piece.kind = Piece::Kind::kWrite;
    piece.offset = job.offset;
    piece.from = job.from.first(bytes);
    job.offset += bytes;
    job.from = job.from.subspan(bytes);
    if (job.from.empty()) job.stage = IoJob::Stage::kAllCut;
  } else {
    if (job.next_read) {
      piece.kind = Piece::Kind::kRead;
      piece.read = *std::move(job.next_read);
      job.next_read = job.cutter.Next();
    }
    if (!job.next_read) job.stage = IoJob::Stage::kAllCut;
  }
  ++job.in_flight;
  return piece;
}

}  // namespace

IoQueue::~IoQueue() { HOIST_CHECK(jobs_.empty()); }

void IoQueue::Push(ReadRequest request, IoEngine::Done done) {
  auto job = std::make_shared<IoJob>();
  job->file = request.file;
  job->done = std::move(done);
  job->status = CheckRead(request);
  if (job->status.ok()) {
    job->cutter = ReadCutter(std::move(request), piece_bytes_);
    job->next_read = job->cutter.Next();
  }
  PushJob(std::move(job));
}

void IoQueue::Push(WriteRequest request, IoEngine::Done done) {
  auto job = std::make_shared<IoJob>();
  job->write = true;
  job->file = request.file;
  job->done = std::move(done);
  job->status = CheckWrite(request);
  job->offset = request.offset;
  job->from = request.from;
  job->sync = request.sync;
  PushJob(std::move(job));
}

void IoQueue::PushJob(std::shared_ptr<IoJob> job) {
  absl::MutexLock lock(&mu_);
  HOIST_CHECK(!closed_);
  jobs_.push_back(std::move(job));
}

std::optional<Piece> IoQueue::TakeLocked() {
  if (jobs_.empty()) return std::nullopt;
  const std::shared_ptr<IoJob> job = jobs_.front();
  Piece piece = Cut(*job, piece_bytes_);
  piece.job = job;
  if (job->stage == IoJob::Stage::kAllCut) jobs_.pop_front();
  return piece;
}

std::optional<Piece> IoQueue::TryTake() {
  absl::MutexLock lock(&mu_);
  return TakeLocked();
}

std::optional<Piece> IoQueue::Take() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &IoQueue::SomethingToDo));
  return TakeLocked();
}

void IoQueue::Finish(Piece piece, const absl::Status& status) {
  IoJob& job = *piece.job;
  {
    absl::MutexLock lock(&mu_);
    --job.in_flight;
    if (!status.ok() && job.status.ok()) {
      job.status = status;
      if (job.stage == IoJob::Stage::kCutting) {
        job.stage = IoJob::Stage::kAllCut;
        jobs_.erase(std::find(jobs_.begin(), jobs_.end(), piece.job));
      }
    }
    if (job.stage != IoJob::Stage::kAllCut || job.in_flight > 0) return;
    if (job.sync && job.status.ok()) {
      job.sync = false;
      job.stage = IoJob::Stage::kSyncDue;
      jobs_.push_front(piece.job);
      return;
    }
  }
  job.done(job.status);
}

void IoQueue::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
}

bool IoQueue::Drained() const {
  absl::MutexLock lock(&mu_);
  return closed_ && jobs_.empty();
}

}  // namespace hoistd
