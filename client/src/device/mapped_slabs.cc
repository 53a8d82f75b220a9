#include "client/src/device/mapped_slabs.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

namespace hoist {
namespace {

// An access past the end of the file raises SIGBUS.
Status CheckSlab(const SlabImport& slab) {
  const std::string name = "slab " + std::to_string(slab.id);
  struct stat info;
  if (slab.backing != SlabBacking::kMemfd || !slab.fd.valid() ||
      fstat(slab.fd.get(), &info) != 0) {
    return Status(Code::kInvalidArgument, name + " is no memfd");
  }
  if (static_cast<uint64_t>(info.st_size) >= slab.bytes) return Status();
  return Status(Code::kInvalidArgument,
                name + " holds " + std::to_string(info.st_size) +
                    " bytes, not " + std::to_string(slab.bytes));
}

}  // namespace

Result<Mapping> MapSlabs(const std::vector<SlabImport>& slabs) {
  uint64_t bytes = 0;
  for (const SlabImport& slab : slabs) {
    if (Status s = CheckSlab(slab); !s.ok()) return s;
    bytes += slab.bytes;
  }
  Result<Mapping> memory = Mapping::Reserve(bytes);
  if (!memory.ok()) return memory;
  uint64_t at = 0;
  for (const SlabImport& slab : slabs) {
    // The mapping keeps the memory; the descriptor goes with `slabs`.
    if (Status s = memory->PlaceFd(at, slab.fd.get(), slab.bytes,
                                   Mapping::Access::kReadWrite);
        !s.ok()) {
      return s;
    }
    at += slab.bytes;
  }
  if (madvise(memory->data(), memory->size(), MADV_DONTFORK) != 0) {
    return ErrnoStatus(errno, "keep an arena from forks");
  }
  // Best effort: this fails on kernels without huge pages.
  madvise(memory->data(), memory->size(), MADV_HUGEPAGE);
  return memory;
}

}  // namespace hoist
