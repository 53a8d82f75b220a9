#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/gather.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "daemon/io/aligned_buffer.h"
#include "daemon/store/description.h"
#include "daemon/store/segment_header.h"
#include "daemon/store/spill_store.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

// The size of one checksum task, so large that its dispatch costs nothing.
constexpr uint64_t kPutHashBytes = 32 * kBlockBytes;

}  // namespace

// The write of one image. Shared by its concurrent steps: the write and the
// checksum tasks.
struct SpillStore::PutJob {
  SpillId id;
  std::shared_ptr<const SpillMeta> meta;
  std::span<const std::byte> image;
  PutDone done;
  uint64_t header_size = 0;
  uint64_t file_bytes = 0;
  bool part = false;  // There is an N.part.
  SegmentFile file;
  SegmentHeader header;
  AlignedBuffer header_bytes;
  Fingerprint header_hash = {};
};

absl::Status SpillStore::CheckPut(const SpillMeta& meta,
                                  std::span<const std::byte> image) const {
  if (image.size() != meta.group.image_bytes ||
      image.size() % hoist::kImageAlignment != 0 ||
      image.size() > hoist::kMaxImageBytes ||
      reinterpret_cast<uintptr_t>(image.data()) % hoist::kImageAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an image of ", image.size(), " bytes for a group of ",
        meta.group.image_bytes, "; both must be equal and 4 KiB aligned"));
  }
  if (!meta.group.runs.empty()) {
    return absl::InvalidArgumentError(
        "the group is read from files: it needs no spilling");
  }
  if (DescriptionBytes(meta) > kMaxDescriptionBytes) {
    return absl::InvalidArgumentError("the group has too many tensors");
  }
  return absl::OkStatus();
}

absl::StatusOr<SpillId> SpillStore::Reserve(uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  const uint64_t capacity = options_.capacity_bytes;
  const uint64_t free = capacity - std::min(used_bytes_, capacity);
  if (bytes > free) {
    return absl::ResourceExhaustedError(
        absl::StrCat("spilling needs ", bytes, " bytes in ", options_.dir, "; ",
                     free, " of its capacity of ", capacity, " are free"));
  }
  used_bytes_ += bytes;
  return SpillId(++last_id_);
}

void SpillStore::Put(std::shared_ptr<const SpillMeta> meta,
                     std::span<const std::byte> image, PutDone done) {
  Begin();
  auto job = std::make_shared<PutJob>();
  absl::Status status = CheckPut(*meta, image);
  if (status.ok()) {
    job->header_size =
        SegmentHeaderBytes(image.size(), DescriptionBytes(*meta));
    job->file_bytes = job->header_size + image.size();
    auto id = Reserve(job->file_bytes);
    status = id.status();
    if (id.ok()) job->id = *id;
  }
  if (!status.ok()) {
    Answer([done = std::move(done)](absl::Status why) mutable { done(why); },
           status);
    return;
  }
  job->meta = std::move(meta);
  job->image = image;
  job->done = std::move(done);
  desk_.Post([this, job] { StartPut(job); });
}

void SpillStore::StartPut(std::shared_ptr<PutJob> job) {
  auto file = dir_.CreatePart(job->id, job->file_bytes);
  if (!file.ok()) return FinishPut(job, file.status());
  job->part = true;
  job->file = *std::move(file);
  job->header = {.image_bytes = job->image.size(),
                 .group_fingerprint = FingerprintOf(job->meta->group_content)};
  job->header.blocks.resize(BlockCount(job->image.size()));

  const uint64_t tasks =
      (job->image.size() + kPutHashBytes - 1) / kPutHashBytes;
  auto gather = std::make_shared<Gather>(
      tasks + 1, [this, job](const absl::Status& status) {
        if (status.ok()) {
          hashers_.Post([this, job] { WriteHeader(job); });
        } else {
          desk_.Post([this, job, status] { FinishPut(job, status); });
        }
      });
  io_.Write(
      {.file = job->file.io(), .offset = job->header_size, .from = job->image},
      [gather](const absl::Status& status) { gather->Part(status); });
  for (uint64_t task = 0; task < tasks; ++task) {
    hashers_.Post([job, gather, task] {
      const uint64_t begin = task * kPutHashBytes;
      const uint64_t end = std::min(begin + kPutHashBytes, job->image.size());
      for (uint64_t at = begin; at < end; at += kBlockBytes) {
        job->header.blocks[at / kBlockBytes] =
            Xxh3(job->image.subspan(at, std::min(kBlockBytes, end - at)));
      }
      gather->Part(absl::OkStatus());
    });
  }
}

void SpillStore::WriteHeader(std::shared_ptr<PutJob> job) {
  auto buffer = AlignedBuffer::Create(job->header_size);
  if (!buffer.ok()) {
    desk_.Post([this, job, why = buffer.status()] { FinishPut(job, why); });
    return;
  }
  job->header_bytes = *std::move(buffer);
  job->header.description = EncodeDescription(job->id, *job->meta);
  job->header_hash = EncodeSegmentHeader(job->header, job->header_bytes.span());
  // The sync applies to the whole file, so it covers the image, too.
  io_.Write({.file = job->file.io(),
             .offset = 0,
             .from = job->header_bytes.span(),
             .sync = true},
            [this, job](const absl::Status& status) {
              desk_.Post([this, job, status] {
                if (status.ok()) return Publish(job);
                FinishPut(job, status);
              });
            });
}

void SpillStore::Publish(std::shared_ptr<PutJob> job) {
  absl::Status status = dir_.Publish(job->id);
  if (!status.ok()) {
    // The file may have either name. If it cannot be removed, it is intact, and
    // harmless at the next start.
    dir_.Remove(job->id).IgnoreError();
    return FinishPut(job, status);
  }
  job->part = false;
  {
    absl::MutexLock lock(&mu_);
    images_.emplace(job->id, StoredImage{.id = job->id,
                                         .meta = job->meta,
                                         .header_bytes = job->header_size,
                                         .header_hash = job->header_hash});
  }
  FinishPut(job, absl::OkStatus());
}

void SpillStore::FinishPut(const std::shared_ptr<PutJob>& job,
                           absl::Status status) {
  job->file = SegmentFile();
  if (!status.ok()) {
    if (job->part) dir_.DropPart(job->id);
    if (absl::IsResourceExhausted(status) && job->part) {
      status =
          Annotate(status, absl::StrCat("spill ", job->file_bytes, " bytes to ",
                                        options_.dir, dir_.FreeText()));
    }
    absl::MutexLock lock(&mu_);
    used_bytes_ -= job->file_bytes;
  }
  if (status.ok()) {
    job->done(job->id);
  } else {
    job->done(status);
  }
  End();
}

}  // namespace hoistd
