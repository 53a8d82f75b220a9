#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/gather.h"
#include "daemon/base/status.h"
#include "daemon/io/aligned_buffer.h"
#include "daemon/store/segment_header.h"
#include "daemon/store/spill_store.h"

namespace hoistd {
namespace {

// The size of one read and its check. Checks overlap with later reads.
constexpr uint64_t kReadBytes = 16 * kBlockBytes;

}  // namespace

// The read of one image. Shared by its concurrent reads and checks.
struct SpillStore::GetJob {
  StoredImage image;
  std::span<std::byte> to;
  bool verifies = false;  // Delivers nothing; `to` is part of `window`.
  AlignedBuffer window;
  Done done;
  SegmentFile file;
  AlignedBuffer header_bytes;
  SegmentHeader header;
};

absl::StatusOr<StoredImage> SpillStore::FindSound(SpillId id) const {
  absl::MutexLock lock(&mu_);
  const auto found = images_.find(id);
  if (found == images_.end()) {
    return absl::NotFoundError(absl::StrCat("no spilled image ", id.number()));
  }
  if (!found->second.quarantined.empty()) {
    return absl::DataLossError(
        absl::StrCat("spilled image ", id.number(),
                     " is in quarantine: ", found->second.quarantined));
  }
  return found->second;
}

void SpillStore::Get(SpillId id, std::span<std::byte> to, Done done) {
  Begin();
  auto image = FindSound(id);
  absl::Status status = image.status();
  if (image.ok() && to.size() != image->meta->group.image_bytes) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "spilled image ", id.number(), " has ", image->meta->group.image_bytes,
        " bytes, and room for ", to.size(), " was given"));
  }
  if (!status.ok()) return Answer(std::move(done), status);
  auto job = std::make_shared<GetJob>();
  job->image = *std::move(image);
  job->to = to;
  job->done = std::move(done);
  desk_.Post([this, job] { StartGet(job); });
}

void SpillStore::Verify(SpillId id, Done done) {
  Begin();
  auto job = std::make_shared<GetJob>();
  job->image.id = id;
  job->verifies = true;
  job->done = std::move(done);
  {
    absl::MutexLock lock(&mu_);
    verifying_.push_back(job);
    if (verifying_.size() > 1) return;  // Waits for its turn.
  }
  desk_.Post([this, job] { StartVerify(job); });
}

void SpillStore::StartVerify(std::shared_ptr<GetJob> job) {
  // Looked up again: it may have been removed while it waited.
  auto image = FindSound(job->image.id);
  if (!image.ok()) return EndGet(job, image.status());
  job->image = *std::move(image);
  auto window = AlignedBuffer::Create(kReadBytes);
  if (!window.ok()) return EndGet(job, window.status());
  job->window = *std::move(window);
  StartGet(job);
}

void SpillStore::StartGet(std::shared_ptr<GetJob> job) {
  const uint64_t header_bytes = job->image.header_bytes;
  auto file = dir_.OpenImage(job->image.id, FileBytes(job->image));
  if (!file.ok()) {
    const bool missing = absl::IsNotFound(file.status());
    return FinishGet(job, missing ? absl::DataLossError("its file is missing")
                                  : file.status());
  }
  job->file = *std::move(file);
  auto buffer = AlignedBuffer::Create(header_bytes);
  if (!buffer.ok()) return FinishGet(job, buffer.status());
  job->header_bytes = *std::move(buffer);
  io_.Read({.file = job->file.io(),
            .offset = 0,
            .into = {{job->header_bytes.data(), header_bytes}}},
           [this, job](const absl::Status& status) {
             if (!status.ok()) return FinishGet(job, status);
             hashers_.Post([this, job] { CheckHeader(job); });
           });
}

void SpillStore::CheckHeader(std::shared_ptr<GetJob> job) {
  auto header =
      DecodeSegmentHeader(job->header_bytes.span(), job->image.header_hash);
  if (!header.ok()) return FinishGet(job, header.status());
  job->header = *std::move(header);
  if (job->verifies) return VerifyFrom(job, 0);
  ReadBlocks(job);
}

void SpillStore::ReadBlocks(std::shared_ptr<GetJob> job) {
  const uint64_t reads = (job->to.size() + kReadBytes - 1) / kReadBytes;
  if (reads == 0) return FinishGet(job, absl::OkStatus());
  auto gather = std::make_shared<Gather>(
      reads,
      [this, job](const absl::Status& status) { FinishGet(job, status); });
  for (uint64_t read = 0; read < reads; ++read) {
    const uint64_t at = read * kReadBytes;
    const auto to =
        job->to.subspan(at, std::min(kReadBytes, job->to.size() - at));
    io_.Read({.file = job->file.io(),
              .offset = job->image.header_bytes + at,
              .into = {{to.data(), to.size()}}},
             [this, job, gather, at, to](const absl::Status& status) {
               if (!status.ok()) return gather->Part(status);
               hashers_.Post([job, gather, at, to] {
                 gather->Part(CheckBlocks(job->header, at / kBlockBytes, to));
               });
             });
  }
}

void SpillStore::VerifyFrom(std::shared_ptr<GetJob> job, uint64_t at) {
  const uint64_t image_bytes = job->header.image_bytes;
  if (at == image_bytes) return FinishGet(job, absl::OkStatus());
  job->to = job->window.span().first(std::min(kReadBytes, image_bytes - at));
  io_.Read({.file = job->file.io(),
            .offset = job->image.header_bytes + at,
            .into = {{job->to.data(), job->to.size()}}},
           [this, job, at](const absl::Status& status) {
             if (!status.ok()) return FinishGet(job, status);
             hashers_.Post([this, job, at] {
               const absl::Status equal =
                   CheckBlocks(job->header, at / kBlockBytes, job->to);
               if (!equal.ok()) return FinishGet(job, equal);
               VerifyFrom(job, at + job->to.size());
             });
           });
}

void SpillStore::FinishGet(std::shared_ptr<GetJob> job,
                           const absl::Status& status) {
  // Always through the desk: the callback must come from a thread of the store,
  // and only the desk may quarantine.
  desk_.Post([this, job, status] {
    job->file = SegmentFile();
    EndGet(job, absl::IsDataLoss(status) ? Quarantine(job->image.id, status)
                                         : status);
  });
}

void SpillStore::EndGet(const std::shared_ptr<GetJob>& job,
                        const absl::Status& status) {
  job->window = AlignedBuffer();
  job->done(status);
  std::shared_ptr<GetJob> next;
  if (job->verifies) {
    absl::MutexLock lock(&mu_);
    verifying_.pop_front();
    if (!verifying_.empty()) next = verifying_.front();
  }
  if (next != nullptr) desk_.Post([this, next] { StartVerify(next); });
  End();
}

absl::Status SpillStore::Quarantine(SpillId id, const absl::Status& why) {
  std::string reason;
  {
    absl::MutexLock lock(&mu_);
    const auto found = images_.find(id);
    if (found == images_.end()) {
      return absl::NotFoundError(
          absl::StrCat("spilled image ", id.number(), " was removed"));
    }
    // Set before the file moves, so that no Get begins now.
    std::string& quarantined = found->second.quarantined;
    if (quarantined.empty()) quarantined = std::string(why.message());
    reason = quarantined;
  }
  absl::Status moved = dir_.Quarantine(id, reason);
  moved.Update(dir_.SyncQuarantine());
  if (moved.ok()) {
    return Annotate(
        why, absl::StrCat(dir_.ImagePath(id), " is damaged; it was moved to ",
                          options_.dir, "/quarantine"));
  }
  // The image is refused in any case. The next start refuses it, too, if the
  // reason was written; else it checks the image again.
  return absl::DataLossError(
      absl::StrCat(dir_.ImagePath(id), " is damaged: ", why.message(),
                   "; quarantine failed: ", moved.message()));
}

}  // namespace hoistd
