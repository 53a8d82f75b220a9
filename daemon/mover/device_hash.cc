#include "daemon/mover/device_hash.h"

#include <algorithm>
#include <utility>

#include "daemon/base/status.h"
#include "hoist/shared/packet_socket.h"
#include "spdlog/spdlog.h"

namespace hoistd {

ReadMemory::~ReadMemory() {
  const absl::MutexLock lock(&mu_);
  if (!memory_.has_value()) return;
  const absl::Status status = device_.UnregisterHost(memory_->span());
  if (!status.ok()) {
    SPDLOG_WARN("memory for checks stays registered: {}", status.ToString());
  }
}

absl::StatusOr<std::span<std::byte>> ReadMemory::Get() {
  const absl::MutexLock lock(&mu_);
  if (memory_.has_value()) return memory_->span();
  constexpr uint64_t kBytes = kReaders * kChunkBytes;
  HOIST_ASSIGN_OR_RETURN(const hoist::UniqueFd fd,
                         ToAbsl(hoist::CreateMemfd("hoist-check", kBytes)));
  HOIST_ASSIGN_OR_RETURN(
      hoist::Mapping memory,
      ToAbsl(hoist::Mapping::OfFd(fd.get(), kBytes,
                                  hoist::Mapping::Access::kReadWrite)));
  HOIST_RETURN_IF_ERROR(device_.RegisterHost(memory.span()));
  memory_ = std::move(memory);
  return memory_->span();
}

DeviceHash::DeviceHash(const Parts& parts, std::shared_ptr<const Group> group,
                       uint64_t device_offset, Report report)
    : parts_(parts),
      group_(std::move(group)),
      device_offset_(device_offset),
      plan_(PlanContent(*group_)),
      digests_(plan_.pieces.size()),
      report_(std::move(report)) {}

void DeviceHash::Start() {
  parts_.executor->Post([self = shared_from_this()] { self->Begin(); });
}

void DeviceHash::Begin() {
  const absl::StatusOr<std::span<std::byte>> memory = parts_.memory->Get();
  for (size_t i = 0; i < readers_.size(); ++i) {
    if (!memory.ok()) {
      Leave(memory.status());
      continue;
    }
    readers_[i].chunk =
        memory->subspan(i * ReadMemory::kChunkBytes, ReadMemory::kChunkBytes);
    Next(readers_[i]);
  }
}

// False: none is left, or the hash has failed.
bool DeviceHash::TakePiece(Reader& reader) {
  {
    const absl::MutexLock lock(&mu_);
    if (!status_.ok()) return false;
  }
  reader.piece = next_.fetch_add(1);
  if (reader.piece >= plan_.pieces.size()) return false;
  reader.at = plan_.pieces[reader.piece].offset;
  reader.left = plan_.pieces[reader.piece].bytes;
  reader.hash.emplace();
  return true;
}

void DeviceHash::Next(Reader& reader) {
  while (reader.left == 0) {
    if (reader.hash.has_value()) {
      digests_[reader.piece] = reader.hash->Finish();
      reader.hash.reset();
    }
    if (!TakePiece(reader)) return Leave(absl::OkStatus());
  }
  const uint64_t bytes = std::min<uint64_t>(reader.left, reader.chunk.size());
  DeviceRead read;
  read.from_offset = device_offset_ + reader.at;
  read.key = parts_.key;
  read.to = reader.chunk.first(bytes);
  read.done = [self = shared_from_this(), &reader,
               bytes](absl::Status status) mutable {
    // Not on the link's thread.
    Executor& executor = *self->parts_.executor;
    executor.Post(
        [self = std::move(self), &reader, bytes, status = std::move(status)] {
          self->Arrived(reader, bytes, status);
        });
  };
  parts_.link->Read(std::move(read));
}

void DeviceHash::Arrived(Reader& reader, uint64_t bytes,
                         const absl::Status& status) {
  if (!status.ok()) return Leave(status);
  reader.hash->Bytes(reader.chunk.first(bytes));
  reader.at += bytes;
  reader.left -= bytes;
  Next(reader);
}

void DeviceHash::Leave(const absl::Status& status) {
  absl::Status all;
  {
    const absl::MutexLock lock(&mu_);
    status_.Update(status);
    if (--left_ > 0) return;
    all = status_;
  }
  if (!all.ok()) return report_(all);
  report_(GroupContent(*group_, plan_, digests_));
}

}  // namespace hoistd
