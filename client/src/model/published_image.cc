#include "client/src/model/published_image.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "client/src/device/cuda_context.h"
#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/image_layout.h"
#include "hoist/shared/packet_socket.h"

namespace hoist {
namespace {

// Linux writes at most 2 GiB minus one page per call.
constexpr size_t kMaxWrite = size_t{1} << 30;

// Written rather than mapped: a memfd with a writable mapping cannot be sealed,
// and writing faults no page into this process.
Status WriteAt(int fd, const void* data, uint64_t bytes, uint64_t offset) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = pwrite(fd, from, std::min<uint64_t>(bytes, kMaxWrite),
                             static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ErrnoStatus(n < 0 ? errno : EIO, "write the image");
    from += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return Status();
}

// Copied piece by piece, so that a worker needs no second copy of its weights.
constexpr size_t kPiece = size_t{8} << 20;

Status CopyAt(int fd, const ReadBytes& read, const void* data, uint64_t bytes,
              uint64_t offset) {
  std::vector<std::byte> piece(std::min<uint64_t>(bytes, kPiece));
  for (uint64_t at = 0; at < bytes; at += kPiece) {
    const auto to =
        std::span(piece).first(std::min<uint64_t>(bytes - at, kPiece));
    const auto* from = static_cast<const std::byte*>(data) + at;
    if (Status s = read(from, to); !s.ok()) return s;
    if (Status s = WriteAt(fd, to.data(), to.size(), offset + at); !s.ok()) {
      return s;
    }
  }
  return Status();
}

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
                                  const ReadBytes& read) {
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
  Result<UniqueFd> memfd = CreateMemfd("hoist-publish", layout->image_bytes);
  if (!memfd.ok()) return memfd.status();
  image.memfd = std::move(memfd).value();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int fd = image.memfd.get();
    Status s = read ? CopyAt(fd, read, bytes[i], sizes[i], layout->offsets[i])
                    : WriteAt(fd, bytes[i], sizes[i], layout->offsets[i]);
    if (!s.ok()) return s;
  }
  if (Status s = SealMemfd(image.memfd.get()); !s.ok()) return s;
  return image;
}

}  // namespace hoist
