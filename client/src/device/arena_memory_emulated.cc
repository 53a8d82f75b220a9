#include <utility>

#include "client/src/device/arena_memory.h"
#include "client/src/device/mapped_slabs.h"

namespace hoist {
namespace {

class EmulatedArenaMemory final : public ArenaMemory {
 public:
  explicit EmulatedArenaMemory(Mapping memory) : memory_(std::move(memory)) {}

  std::byte* base() const override { return memory_.data(); }
  uint64_t pinned_bytes() const override { return memory_.size(); }
  Status CheckStream(cuda::Stream) override { return Status(); }
  Result<ArenaRanges::Mark> MarkOn(cuda::Stream) override {
    return ArenaRanges::Mark();
  }
  Status WaitFor(const std::vector<ArenaRanges::Use>&, cuda::Stream) override {
    return Status();
  }
  Status Synchronize(const std::vector<ArenaRanges::Use>&) override {
    return Status();
  }

 private:
  const Mapping memory_;
};

}  // namespace

Result<std::unique_ptr<ArenaMemory>> CreateEmulatedArenaMemory(
    std::vector<SlabImport> slabs) {
  Result<Mapping> memory = MapSlabs(slabs);
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<ArenaMemory>(
      std::make_unique<EmulatedArenaMemory>(std::move(memory).value()));
}

}  // namespace hoist
