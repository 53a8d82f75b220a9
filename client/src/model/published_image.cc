#include "client/src/model/published_image.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "client/src/base/allocated_memfd.h"
#include "client/src/base/start_thread.h"
#include "client/src/device/cuda_context.h"
#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/image_layout.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/packet_socket.h"

namespace hoist {
namespace {

// Mapped at once by a thread: enough that the calls do not matter, and little
// of this process's memory.
constexpr uint64_t kPiece = uint64_t{8} << 20;

// Bytes of a storage, and their place in the image.
struct Piece {
  const std::byte* from;
  uint64_t offset;
  uint64_t bytes;
};

// Fills an image, a piece at a time. The pieces are mapped, as a file's writers
// wait for each other. No child of a fork may inherit a mapping: an image that
// is mapped cannot be sealed.
class Filling {
 public:
  Filling(int memfd, const ReadBytes& read) : memfd_(memfd), read_(read) {}

  // Before Run: a storage, and its place in the image.
  void Add(const std::byte* from, uint64_t offset, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += kPiece) {
      pieces_.push_back({from + at, offset + at, std::min(kPiece, bytes - at)});
    }
  }

  Status Run(uint64_t threads) HOIST_EXCLUDES(mu_) {
    threads = std::min<uint64_t>(threads, pieces_.size());
    if (threads > 0) WithHelpers(threads - 1, [this] { FillAll(); });
    const MutexLock lock(mu_);
    return first_error_;
  }

 private:
  // Those that no thread has taken, until there are none, or one failed.
  void FillAll() HOIST_EXCLUDES(mu_) {
    for (size_t at = next_++; at < pieces_.size(); at = next_++) {
      Status filled = Fill(pieces_[at]);
      if (filled.ok()) continue;
      next_ = pieces_.size();
      const MutexLock lock(mu_);
      if (first_error_.ok()) first_error_ = std::move(filled);
    }
  }

  Status Fill(const Piece& piece) const {
    const uint64_t before = piece.offset % kImageAlignment;
    Result<Mapping> mapped =
        Mapping::OfFd(memfd_, before + piece.bytes, Mapping::Access::kReadWrite,
                      piece.offset - before);
    if (!mapped.ok()) return mapped.status();
    if (madvise(mapped->data(), mapped->size(), MADV_DONTFORK) != 0) {
      return ErrnoStatus(errno, "keep the image from forks");
    }
    const std::span<std::byte> to = mapped->span().subspan(before);
    if (read_) return read_(piece.from, to);
    std::memcpy(to.data(), piece.from, to.size());
    return Status();
  }

  const int memfd_;
  const ReadBytes& read_;
  std::vector<Piece> pieces_;
  std::atomic<size_t> next_ = 0;
  Mutex mu_;
  Status first_error_ HOIST_GUARDED_BY(mu_);
};

Status Invalid(const TensorEntry& tensor, const std::string& why) {
  return Status(Code::kInvalidArgument,
                "tensor \"" + tensor.name + "\" " + why);
}

}  // namespace

Result<ReadBytes> ReadFrom(const DeviceFacts& device) {
  if (device.kind == DeviceKind::kEmulated) return ReadBytes();
  Result<std::unique_ptr<CudaContext>> opened = CudaContext::Open(device.uuid);
  if (!opened.ok()) return opened.status();
  // Copies of the function share it.
  std::shared_ptr<CudaContext> cuda = std::move(opened).value();
  return ReadBytes([cuda](const void* from, std::span<std::byte> to) {
    const cuda::Driver& driver = cuda->driver();
    const cuda::ScopedContext current(driver, cuda->context());
    if (current.error() != cuda::kSuccess) {
      return driver.Check(current.error(), "enter the GPU's context");
    }
    return driver.Check(
        driver.copy_out(to.data(), reinterpret_cast<cuda::Address>(from),
                        to.size()),
        "read weights from the GPU");
  });
}

Result<uint64_t> CheckedSpan(const SourceTensor& tensor) {
  const TensorEntry& entry = tensor.entry;
  const std::optional<uint64_t> span =
      SpanBytes(entry.dtype, entry.shape, entry.strides);
  if (!span.has_value()) {
    return Invalid(entry, "has a negative or too large shape or stride");
  }
  if (*span > 0 && tensor.data == nullptr) {
    return Invalid(entry, "has no data");
  }
  return *span;
}

Result<PublishedImage> BuildImage(std::string group_name,
                                  std::span<const SourceTensor> tensors,
                                  const ReadBytes& read, uint64_t threads) {
  PublishedImage image;
  image.group.name = std::move(group_name);
  std::vector<uint64_t> sizes;     // Of storages.
  std::vector<const void*> bytes;  // Theirs.
  std::vector<size_t> storage_of;  // By tensor.
  std::map<std::pair<const void*, uint64_t>, size_t> seen;
  std::set<std::string_view> names;
  for (const SourceTensor& tensor : tensors) {
    const TensorEntry& entry = tensor.entry;
    if (!names.insert(entry.name).second) {
      return Invalid(entry, "is there twice in group \"" + image.group.name +
                                "\"; names are unique in a group");
    }
    Result<uint64_t> span = CheckedSpan(tensor);
    if (!span.ok()) return span.status();
    const auto [it, fresh] =
        seen.try_emplace({tensor.data, *span}, sizes.size());
    // Empty tensors have no bytes to share.
    if (fresh || *span == 0) {
      storage_of.push_back(sizes.size());
      sizes.push_back(*span);
      bytes.push_back(tensor.data);
    } else {
      storage_of.push_back(it->second);
    }
  }
  const std::optional<ImageLayout> layout = LayOutImage(sizes);
  if (!layout.has_value()) {
    return Status(Code::kInvalidArgument,
                  "group \"" + image.group.name + "\" is too large");
  }
  image.group.image_bytes = layout->image_bytes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorEntry entry = tensors[i].entry;
    entry.offset_bytes = layout->offsets[storage_of[i]];
    entry.size_bytes = sizes[storage_of[i]];
    image.group.tensors.push_back(std::move(entry));
  }
  Result<UniqueFd> memfd =
      AllocatedMemfd("hoist-publish", layout->image_bytes, image.group.name);
  if (!memfd.ok()) return memfd.status();
  image.memfd = std::move(memfd).value();
  Filling filling(image.memfd.get(), read);
  for (size_t i = 0; i < sizes.size(); ++i) {
    filling.Add(static_cast<const std::byte*>(bytes[i]), layout->offsets[i],
                sizes[i]);
  }
  if (Status s = filling.Run(threads); !s.ok()) return s;
  if (Status s = SealMemfd(image.memfd.get()); !s.ok()) return s;
  return image;
}

}  // namespace hoist
