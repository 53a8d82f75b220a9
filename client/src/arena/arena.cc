#include "client/src/arena/arena.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "client/src/base/fork_guard.h"

namespace hoist {
namespace {

ArenaRanges::Stream KeyOf(cuda::Stream stream) {
  return reinterpret_cast<ArenaRanges::Stream>(stream);
}

Result<std::unique_ptr<ArenaMemory>> MapArena(const DeviceFacts& device,
                                              std::vector<SlabImport> slabs) {
  if (device.kind == DeviceKind::kCuda) {
    return CreateCudaArenaMemory(device.uuid, std::move(slabs));
  }
  return CreateEmulatedArenaMemory(std::move(slabs));
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::Open(std::shared_ptr<Session> session,
                                           const hoist_arena_options& options) {
  const DeviceFacts* device = session->FindDevice(options.device);
  if (device == nullptr) {
    return Status(Code::kInvalidArgument,
                  "hoistd has no device " + std::to_string(options.device) +
                      "; it has " + std::to_string(session->devices().size()));
  }
  Result<ArenaGrant> grant = session->OpenArena(options);
  if (!grant.ok()) return grant.status();
  Result<std::unique_ptr<ArenaMemory>> memory =
      MapArena(*device, std::move(grant->slabs));
  if (!memory.ok()) {
    session->CloseArena(grant->id);
    return memory.status();
  }
  return std::unique_ptr<Arena>(new Arena(
      std::move(session), grant->id, std::move(memory).value(), grant->bytes));
}

Arena::Arena(std::shared_ptr<Session> session, uint64_t id,
             std::unique_ptr<ArenaMemory> memory, uint64_t bytes)
    : session_(std::move(session)),
      id_(id),
      memory_(std::move(memory)),
      ranges_(std::make_unique<ArenaRanges>(bytes)) {}

Arena::~Arena() {
  // If this fails, the context and its copies are unusable.
  (void)memory_->Synchronize(ranges_->Uses());
  ranges_.reset();
  memory_.reset();
  session_->CloseArena(id_);
}

Result<Arena::Block> Arena::Take(uint64_t bytes, cuda::Stream stream) {
  if (Status s = session_->CheckHeld(); !s.ok()) return s;
  if (Status s = memory_->CheckStream(stream); !s.ok()) return s;
  std::optional<ArenaRanges::Taken> taken;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    taken = ranges_->Take(bytes, KeyOf(stream));
    if (!taken.has_value()) return NoRoom(bytes);
    ++takes_;
    if (!taken->after.empty()) ++waits_;
    peak_used_ = std::max(peak_used_, ranges_->used());
  }
  // The block is reserved: no other take can get it.
  if (Status s = memory_->WaitFor(taken->after, stream); !s.ok()) {
    const std::lock_guard<std::mutex> lock(mu_);
    ranges_->Give(taken->offset, std::move(taken->after));
    return s;
  }
  return Block{memory_->base() + taken->offset, taken->bytes};
}

Status Arena::NoRoom(uint64_t bytes) const {
  return Status(Code::kResourceExhausted,
                "no room for " + std::to_string(bytes) +
                    " bytes in the arena: of " +
                    std::to_string(ranges_->bytes()) + ", " +
                    std::to_string(ranges_->used()) +
                    " are taken, and the largest free " + "piece has " +
                    std::to_string(ranges_->largest_free()) +
                    "; give blocks, or open an arena of at least " +
                    std::to_string(ranges_->used() + bytes) + " bytes");
}

Status Arena::Give(const void* address, cuda::Stream stream) {
  const auto offset = static_cast<uint64_t>(
      static_cast<const std::byte*>(address) - memory_->base());
  if (Status s = memory_->CheckStream(stream); !s.ok()) return s;
  // The mark precedes the give, so that no other take gets the block without
  // it.
  Result<ArenaRanges::Mark> mark = memory_->MarkOn(stream);
  if (!mark.ok()) return mark.status();
  const std::lock_guard<std::mutex> lock(mu_);
  if (ranges_->Give(offset, {{KeyOf(stream), std::move(mark).value()}})) {
    return Status();
  }
  return Status(Code::kInvalidArgument,
                "no block of this arena begins there; was it given before?");
}

hoist_arena_stats Arena::stats() const {
  const std::lock_guard<std::mutex> lock(mu_);
  hoist_arena_stats stats = {};
  stats.bytes = ranges_->bytes();
  stats.used_bytes = ranges_->used();
  stats.peak_used_bytes = peak_used_;
  stats.largest_free_bytes = ranges_->largest_free();
  stats.pinned_bytes = memory_->pinned_bytes();
  stats.blocks = ranges_->blocks();
  stats.takes = takes_;
  stats.waits = waits_;
  return stats;
}

}  // namespace hoist
