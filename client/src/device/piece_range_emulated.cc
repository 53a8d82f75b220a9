#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <utility>

#include "client/src/device/piece_range.h"
#include "hoist/shared/mapping.h"

namespace hoist {
namespace {

class EmulatedRange final : public PieceRange {
 public:
  explicit EmulatedRange(Mapping range) : range_(std::move(range)) {}

  const void* address() const override { return range_.data(); }

  // Maps the slab's pages a second time (mremap(2) with an old size of 0), and
  // replaces the previous mapping in one call.
  Status Place(uint64_t offset, const SlabHandle& slab) override {
    void* const at = range_.data() + offset;
    void* const mapped = mremap(const_cast<std::byte*>(slab.memory), 0,
                                slab.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at);
    if (mapped == at) return Status();
    return ErrnoStatus(errno, "map a piece of " + std::to_string(slab.bytes) +
                                  " bytes (see vm.max_map_count)");
  }
  Status Lay(uint64_t offset, const SlabHandle& slab) override {
    return Place(offset, slab);
  }
  Status Open() override { return Status(); }
  Status LayOwn(uint64_t offset, const SlabHandle& own) override {
    own_ = {offset, own.bytes};
    return Place(offset, own);  // With the access of the mapping.
  }
  void DropOwn() override {
    (void)range_.Unplace(own_.first, std::exchange(own_.second, 0));
  }
  Status Clear() override { return range_.Unplace(0, range_.size()); }

 private:
  Mapping range_;
  std::pair<uint64_t, uint64_t> own_;  // Offset and bytes.
};

}  // namespace

Result<OwnSlab> CreateEmulatedSlab(uint64_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, "get memory for copies");
  auto made = std::make_unique<SlabHandle>();
  made->bytes = bytes;
  made->memory = static_cast<const std::byte*>(at);
  return OwnSlab(made.release(), [at](const SlabHandle* slab) {
    munmap(at, slab->bytes);
    delete slab;
  });
}

Result<std::unique_ptr<PieceRange>> CreateEmulatedRange(uint64_t bytes) {
  Result<Mapping> range = Mapping::Reserve(bytes);
  if (!range.ok()) return range.status();
  return std::unique_ptr<PieceRange>(
      std::make_unique<EmulatedRange>(std::move(range).value()));
}

}  // namespace hoist
