#include "client/src/model/published_image.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

// MADV_POPULATE_*, from Linux 5.14 on.
constexpr int kPopulateRead = 22, kPopulateWrite = 23;

Status Invalid(const TensorEntry& tensor, const std::string& why) {
  return Status(Code::kInvalidArgument,
                "tensor \"" + tensor.name + "\" " + why);
}

// Bytes of a storage, and their place in the image.
struct Piece {
  const TensorEntry* tensor;  // One of the storage.
  const std::byte* from;
  uint64_t offset;
  uint64_t bytes;
  bool on_host;  // The CPU can read it.
};

// Fills an image, a piece at a time. One thread writes: the kernel makes and
// fills the memory at once, and refuses bytes that cannot be read. Writers of a
// file wait for each other, so several threads map their pieces. No child of a
// fork may inherit a mapping: an image that is mapped cannot be sealed.
class Filling {
 public:
  Filling(int memfd, const ReadBytes& read) : memfd_(memfd), read_(read) {}

  // Before Run: a storage, and its place in the image.
  void Add(const SourceTensor& tensor, uint64_t offset, uint64_t bytes) {
    const auto* const from = static_cast<const std::byte*>(tensor.data);
    const bool on_host = !read_ || tensor.on_host;
    for (uint64_t at = 0; at < bytes; at += kPiece) {
      pieces_.push_back({&tensor.entry, from + at, offset + at,
                         std::min(kPiece, bytes - at), on_host});
    }
  }

  Status Run(uint64_t threads) HOIST_EXCLUDES(mu_) {
    threads = std::min<uint64_t>(threads, pieces_.size());
    alone_ = threads == 1;
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
    if (piece.on_host && (alone_ || !IsReadable(piece))) return Write(piece);
    const uint64_t before = piece.offset % kImageAlignment;
    Result<Mapping> mapped =
        Mapping::OfFd(memfd_, before + piece.bytes, Mapping::Access::kReadWrite,
                      piece.offset - before);
    if (!mapped.ok()) return mapped.status();
    if (madvise(mapped->data(), mapped->size(), MADV_DONTFORK) != 0) {
      return ErrnoStatus(errno, "keep the image from forks");
    }
    if (Status s = Populate(mapped->span()); !s.ok()) return s;
    const std::span<std::byte> to = mapped->span().subspan(before);
    if (!piece.on_host) return read_(piece.from, to);
    std::memcpy(to.data(), piece.from, to.size());
    return Status();
  }

  // Makes the piece's memory, so that a limit is an error and no SIGBUS; in all
  // threads at once, unlike fallocate. Before Linux 5.14 the copy makes it.
  static Status Populate(std::span<std::byte> mapped) {
    if (madvise(mapped.data(), mapped.size(), kPopulateWrite) == 0 ||
        errno == EINVAL) {
      return Status();
    }
    if (errno != ENOMEM && errno != EFAULT) {
      return ErrnoStatus(errno, "make an image's memory");
    }
    return NoMemory(mapped.size());
  }

  static Status NoMemory(uint64_t bytes) {
    return Status(Code::kResourceExhausted,
                  "this process has no memory for another " +
                      std::to_string(bytes) +
                      " bytes of an image; drop host images, or raise its "
                      "limit");
  }

  // Also false: only the kernel's copy can tell, as of a driver's memory, or
  // before Linux 5.14.
  static bool IsReadable(const Piece& piece) {
    const uint64_t before =
        reinterpret_cast<uintptr_t>(piece.from) % kImageAlignment;
    return madvise(const_cast<std::byte*>(piece.from - before),
                   before + piece.bytes, kPopulateRead) == 0;
  }

  Status Write(const Piece& piece) const {
    for (uint64_t done = 0; done < piece.bytes;) {
      const ssize_t n = pwrite(memfd_, piece.from + done, piece.bytes - done,
                               static_cast<off_t>(piece.offset + done));
      if (n > 0) {
        done += static_cast<uint64_t>(n);
      } else if (n == 0 || errno == ENOMEM || errno == ENOSPC) {
        return NoMemory(piece.bytes - done);
      } else if (errno == EFAULT) {
        return Invalid(*piece.tensor,
                       "has bytes that this process cannot read: they are not "
                       "mapped, or their file has become shorter");
      } else if (errno != EINTR) {
        return ErrnoStatus(errno, "write an image");
      }
    }
    return Status();
  }

  const int memfd_;
  const ReadBytes& read_;
  std::vector<Piece> pieces_;
  bool alone_ = false;  // One thread fills all.
  std::atomic<size_t> next_ = 0;
  Mutex mu_;
  Status first_error_ HOIST_GUARDED_BY(mu_);
};

// Less is copied as fast without.
constexpr uint64_t kWorthPinning = uint64_t{1} << 20;

// Copies from a GPU, on a stream of its own: torch's work goes on meanwhile.
//
// Threads:  thread-safe.
class GpuReader {
 public:
  static Result<std::shared_ptr<GpuReader>> Open(const DeviceFacts& device) {
    auto cuda = CudaContext::Open(device.uuid);
    if (!cuda.ok()) return cuda.status();
    std::shared_ptr<GpuReader> reader(new GpuReader(std::move(cuda).value()));
    Status s = reader->Run([&](const cuda::Driver& driver) {
      return driver.stream_create(&reader->stream_, cuda::kStreamNonBlocking);
    });
    if (!s.ok()) return s;
    return reader;
  }
  GpuReader(const GpuReader&) = delete;
  GpuReader& operator=(const GpuReader&) = delete;
  ~GpuReader() {
    if (stream_ == nullptr || cuda_->forked()) return;
    (void)Run([&](const cuda::Driver& driver) {
      return driver.stream_destroy(stream_);
    });
  }

  Status Read(const void* from, std::span<std::byte> to) const {
    return Run([&](const cuda::Driver& driver) {
      const uint64_t before =
          reinterpret_cast<uintptr_t>(to.data()) % kImageAlignment;
      std::byte* const pages = to.data() - before;
      // The driver copies what is not pinned through its own memory.
      const bool pinned =
          to.size() >= kWorthPinning &&
          driver.host_register(
              pages, *AlignUp(before + to.size(), kImageAlignment),
              cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap) ==
              cuda::kSuccess;
      cuda::Error error = driver.copy_out_async(
          to.data(), reinterpret_cast<cuda::Address>(from), to.size(), stream_);
      if (error == cuda::kSuccess) error = driver.stream_sync(stream_);
      if (pinned) (void)driver.host_unregister(pages);
      return error;
    });
  }

 private:
  explicit GpuReader(std::unique_ptr<CudaContext> cuda)
      : cuda_(std::move(cuda)) {}

  template <typename Work>
  Status Run(const Work& work) const {
    const cuda::Driver& driver = cuda_->driver();
    const cuda::ScopedContext current(driver, cuda_->context());
    if (current.error() != cuda::kSuccess) {
      return driver.Check(current.error(), "enter the GPU's context");
    }
    return driver.Check(work(driver), "read weights from the GPU");
  }

  const std::unique_ptr<CudaContext> cuda_;
  cuda::Stream stream_ = nullptr;
};

}  // namespace

Result<ReadBytes> ReadFrom(const DeviceFacts& device) {
  if (device.kind == DeviceKind::kEmulated) return ReadBytes();
  auto opened = GpuReader::Open(device);
  if (!opened.ok()) return opened.status();
  // Copies of the function share it.
  return ReadBytes([gpu = *opened](const void* from, std::span<std::byte> to) {
    return gpu->Read(from, to);
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
  std::vector<uint64_t> sizes;                // Of storages.
  std::vector<const SourceTensor*> storages;  // A tensor of each.
  std::vector<size_t> storage_of;             // By tensor.
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
      storages.push_back(&tensor);
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
  Filling filling(image.memfd.get(), read);
  for (size_t i = 0; i < sizes.size(); ++i) {
    filling.Add(*storages[i], layout->offsets[i], sizes[i]);
  }
  if (Status s = filling.Run(threads); !s.ok()) return s;
  if (Status s = SealMemfd(image.memfd.get()); !s.ok()) return s;
  return image;
}

}  // namespace hoist
