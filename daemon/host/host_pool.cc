#include "daemon/host/host_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/host/numa.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {
namespace {

constexpr uint64_t kStep = uint64_t{2} << 20;
constexpr uint64_t kTouchStep = uint64_t{64} << 20;
constexpr uint64_t kMaxPiece = uint64_t{1} << 30;
// The driver's locks are not fair: who asks again at once gets them again.
constexpr absl::Duration kYield = absl::Milliseconds(1);

// Brings the pages in, for writing, without changing what is in them: they may
// hold what an earlier daemon left.
void TouchPages(std::span<std::byte> memory) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return;
#endif
  // Before Linux 5.14: an atomic add of nothing is a write fault.
  for (size_t i = 0; i < memory.size(); i += 4096) {
    __atomic_fetch_add(reinterpret_cast<unsigned char*>(&memory[i]), 0,
                       __ATOMIC_RELAXED);
  }
}

std::vector<Device*> CudaAlone(std::vector<Device*> devices) {
  std::erase_if(devices, [](const Device* device) {
    return device->info().kind != DeviceKind::kCuda;
  });
  return devices;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostPool>> HostPool::Create(
    const HostPoolOptions& options, std::vector<Device*> devices) {
  HostPoolOptions o = options;
  o.piece_bytes = std::min(o.piece_bytes, kMaxPiece);
  o.first_piece_bytes = std::min(o.first_piece_bytes, kMaxPiece);
  o.touch_threads = std::max(o.touch_threads, 1);
  for (const uint64_t size : {o.bytes, o.piece_bytes, o.first_piece_bytes}) {
    if (size == 0 || size % kStep != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the host pool's sizes must be multiples of 2 MiB and "
                       "not 0; one is ",
                       size));
    }
  }
  HOIST_ASSIGN_OR_RETURN(hoist::UniqueFd fd,
                         ToAbsl(hoist::CreateMemfd("hoist-host", o.bytes)));
  hoist::UniqueFd read_only(open(
      absl::StrCat("/proc/self/fd/", fd.get()).c_str(), O_RDONLY | O_CLOEXEC));
  // As for an emulated slab: other uids cannot open it anew for writing.
  if (!read_only.valid() || fchmod(fd.get(), S_IRUSR) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return ErrnoToStatus(errno, "set the host pool's rights");
  }
  HOIST_ASSIGN_OR_RETURN(
      hoist::Mapping memory,
      ToAbsl(hoist::Mapping::OfFd(fd.get(), o.bytes,
                                  hoist::Mapping::Access::kReadWrite)));
  // Advice alone: it fails where the kernel has no huge pages.
  madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
  const absl::Status spread = SpreadOverNodes(memory.span());
  auto pool = absl::WrapUnique(new HostPool(o, CudaAlone(std::move(devices)),
                                            std::move(fd), std::move(read_only),
                                            std::move(memory)));
  if (!spread.ok()) pool->AddNote(std::string(spread.message()));
  return pool;
}

HostPool::HostPool(const HostPoolOptions& options, std::vector<Device*> devices,
                   hoist::UniqueFd fd, hoist::UniqueFd read_only_fd,
                   hoist::Mapping memory)
    : options_(options),
      devices_(std::move(devices)),
      fd_(std::move(fd)),
      read_only_fd_(std::move(read_only_fd)),
      memory_(std::move(memory)) {
  const absl::MutexLock lock(&mu_);
  if (devices_.empty()) {
    ready_bytes_ = options_.bytes;
  } else {
    CutPieces();
  }
}

HostPool::~HostPool() {
  {
    const absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
  for (const Registration& one : registered_) {
    // The memory goes away next, and the driver's hold on it with the process.
    one.device->UnregisterHost(one.memory).IgnoreError();
  }
}

void HostPool::CutPieces() {
  uint64_t size = options_.first_piece_bytes;
  for (uint64_t at = 0; at < options_.bytes; size = options_.piece_bytes) {
    const uint64_t bytes = std::min(size, options_.bytes - at);
    pieces_.push_back({at, bytes, bytes});
    at += bytes;
  }
}

void HostPool::Start(OnGrown on_grown) {
  HOIST_CHECK(threads_.empty());
  on_grown_ = std::move(on_grown);
  if (devices_.empty()) {
    on_grown_(options_.bytes);
    return;
  }
  for (int i = 0; i < options_.touch_threads; ++i) {
    threads_.emplace_back([this] { Touch(); });
  }
  threads_.emplace_back([this] { Register(); });
}

uint64_t HostPool::ready_bytes() const {
  const absl::MutexLock lock(&mu_);
  return ready_bytes_;
}

std::vector<std::string> HostPool::notes() const {
  const absl::MutexLock lock(&mu_);
  return notes_;
}

// Runs ahead of registration, so that the two overlap.
void HostPool::Touch() {
  size_t piece = 0;
  while (true) {
    std::span<std::byte> memory;
    {
      const absl::MutexLock lock(&mu_);
      if (stopping_ || next_touch_ == options_.bytes) return;
      while (next_touch_ >= pieces_[piece].offset + pieces_[piece].bytes) {
        ++piece;
      }
      const uint64_t end = pieces_[piece].offset + pieces_[piece].bytes;
      const uint64_t bytes = std::min(kTouchStep, end - next_touch_);
      memory = memory_.span().subspan(next_touch_, bytes);
      next_touch_ += bytes;
    }
    TouchPages(memory);
    const absl::MutexLock lock(&mu_);
    pieces_[piece].untouched -= memory.size();
    if (pieces_[piece].untouched == 0) changed_.SignalAll();
  }
}

void HostPool::Register() {
  uint64_t ready = 0;
  for (size_t i = 0; ready < options_.bytes; ++i) {
    if (!WaitUntilTouched(i)) return;
    uint64_t bytes = 0;
    {
      const absl::MutexLock lock(&mu_);
      bytes = pieces_[i].bytes;
    }
    RegisterPiece(memory_.span().subspan(ready, bytes));
    ready += bytes;
    {
      const absl::MutexLock lock(&mu_);
      ready_bytes_ = ready;
    }
    on_grown_(ready);
    if (!Yield()) return;
  }
}

bool HostPool::WaitUntilTouched(size_t piece) {
  const absl::MutexLock lock(&mu_);
  while (pieces_[piece].untouched > 0 && !stopping_) changed_.Wait(&mu_);
  return !stopping_;
}

bool HostPool::Yield() {
  const absl::MutexLock lock(&mu_);
  if (!stopping_) changed_.WaitWithTimeout(&mu_, kYield);
  return !stopping_;
}

void HostPool::RegisterPiece(std::span<std::byte> piece) {
  for (Device* device : devices_) {
    const absl::Status status = device->RegisterHost(piece);
    if (status.ok()) {
      registered_.push_back({device, piece});
      continue;
    }
    // The memory works all the same; its copies are slower.
    AddNote(absl::StrCat(
        "host pool: bytes ", piece.data() - memory_.data(), " + ", piece.size(),
        " are not pinned for device ", device->info().index.number(),
        " (copies run at a third of the rate): ", std::string(status.message()),
        "; raise LimitMEMLOCK (ulimit -l) or lower host.pool"));
  }
}

void HostPool::AddNote(std::string note) {
  const absl::MutexLock lock(&mu_);
  notes_.push_back(std::move(note));
}

}  // namespace hoistd
