#include "daemon/host/host_pool.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/base/check.h"
#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "daemon/host/numa.h"
#include "daemon/host/pool_memory.h"

namespace hoistd {
namespace {

constexpr uint64_t kPoolStep = uint64_t{2} << 20;
constexpr uint64_t kTouchStep = uint64_t{8} << 20;
constexpr uint64_t kMaxPiece = uint64_t{1} << 30;
// The driver's locks are not fair: an immediate retry gets them again.
constexpr absl::Duration kYield = absl::Milliseconds(1);
// Poll interval of waits for copies to end.
constexpr absl::Duration kLookAgain = absl::Milliseconds(10);
// Below this demand, bring-up does not yield.
constexpr double kNoDemand = 0.01;
// At least this part of the threads touches pages, even under full demand.
constexpr double kLeastThreads = 0.25;

// Faults the pages in for writing, but keeps their bytes: they may be an
// earlier daemon's.
void TouchPages(std::span<std::byte> memory) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return;
#endif
  // Before Linux 5.14: an atomic add of 0 is a write fault.
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
    const HostPoolOptions& options, std::vector<Device*> devices,
    const hoist::UniqueFd& memory) {
  HostPoolOptions o = options;
  o.piece_bytes = std::min(o.piece_bytes, kMaxPiece);
  o.first_piece_bytes = std::min(o.first_piece_bytes, kMaxPiece);
  o.shy_piece_bytes = std::min(o.shy_piece_bytes, o.piece_bytes);
  o.touch_threads = std::max(o.touch_threads, 1);
  for (const uint64_t size :
       {o.bytes, o.piece_bytes, o.first_piece_bytes, o.shy_piece_bytes}) {
    if (size == 0 || size % kPoolStep != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the host pool's sizes must be multiples of 2 MiB and "
                       "not 0; one is ",
                       size));
    }
  }
  struct stat file;
  if (fstat(memory.get(), &file) != 0) {
    return ErrnoToStatus(errno, "the host pool's memory");
  }
  if (static_cast<uint64_t>(file.st_size) != o.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the host pool's memory has ", file.st_size,
                     " bytes, and not ", o.bytes));
  }
  HOIST_ASSIGN_OR_RETURN(
      hoist::Mapping mapping,
      ToAbsl(hoist::Mapping::OfFd(memory.get(), o.bytes,
                                  hoist::Mapping::Access::kReadWrite)));
  // Best effort: this fails for reserved pages, and without transparent ones.
  madvise(mapping.data(), mapping.size(),
          o.best_pages == PageKind::kSmall ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  const absl::Status spread = SpreadOverNodes(mapping.span());
  return absl::WrapUnique(
      new HostPool(o, CudaAlone(std::move(devices)), std::move(mapping),
                   PagesOf(memory, o.best_pages, ReadHugePages("")),
                   std::string(spread.message())));
}

HostPool::HostPool(const HostPoolOptions& options, std::vector<Device*> devices,
                   hoist::Mapping memory, PageKind pages, std::string note)
    : options_(options),
      devices_(std::move(devices)),
      memory_(std::move(memory)),
      pages_(pages),
      note_(std::move(note)) {
  const absl::MutexLock lock(&mu_);
  if (devices_.empty() || options_.found) ready_bytes_ = options_.bytes;
  if (devices_.empty() || !options_.found) return;
  pinned_.resize(ShyPieces(), Pinned::kNo);
  all_pinned_ = false;
}

HostPool::~HostPool() {
  {
    const absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
  const absl::MutexLock lock(&mu_);
  for (const Registration& one : registered_) {
    // The memory is unmapped next; the driver's registration ends with the
    // process.
    one.device->UnregisterHost(one.memory).IgnoreError();
  }
}

absl::Status HostPool::Start(OnGrown on_grown, Demand demand, OnNote on_note) {
  HOIST_CHECK(threads_.empty() && demand != nullptr);
  on_grown_ = std::move(on_grown);
  demand_ = std::move(demand);
  {
    const absl::MutexLock lock(&note_mu_);
    on_note_ = std::move(on_note);
    if (!note_.empty()) on_note_(note_);
  }
  const uint64_t ready = ready_bytes();
  if (ready > 0) on_grown_(ready);
  if (devices_.empty()) return absl::OkStatus();
  for (int i = 0; i < options_.touch_threads; ++i) {
    HOIST_ASSIGN_OR_RETURN(threads_.emplace_back(),
                           StartThread([this, i] { Touch(i); }));
  }
  HOIST_ASSIGN_OR_RETURN(threads_.emplace_back(), StartThread([this] {
                           if (options_.found) {
                             RegisterFound();
                           } else {
                             Register();
                           }
                         }));
  return absl::OkStatus();
}

uint64_t HostPool::ready_bytes() const {
  const absl::MutexLock lock(&mu_);
  return ready_bytes_;
}

bool HostPool::IsShy() const { return demand_() > kNoDemand; }

// Runs ahead of registration, so that the two overlap.
void HostPool::Touch(int thread) {
  while (true) {
    const std::span<std::byte> step = TakeStep(thread);
    if (step.empty()) return;
    TouchPages(step);
    Touched(step);
  }
}

std::span<std::byte> HostPool::TakeStep(int thread) {
  while (true) {
    // Found memory has its pages already; they need only be mapped.
    const double demand = options_.found ? 0 : demand_();
    const double threads =
        options_.touch_threads * std::max(1 - demand, kLeastThreads);
    const absl::MutexLock lock(&mu_);
    if (stopping_ || next_touch_ == options_.bytes) return {};
    const uint64_t ahead =
        ready_bytes_ + kShyPiecesAhead * options_.shy_piece_bytes;
    if (demand > kNoDemand && (thread >= threads || next_touch_ >= ahead)) {
      changed_.WaitWithTimeout(&mu_, kLookAgain);
      continue;
    }
    const uint64_t bytes = std::min(
        {kTouchStep, options_.shy_piece_bytes, options_.bytes - next_touch_});
    const uint64_t from = std::exchange(next_touch_, next_touch_ + bytes);
    return memory_.span().subspan(from, bytes);
  }
}

void HostPool::Touched(std::span<std::byte> step) {
  const auto from = static_cast<uint64_t>(step.data() - memory_.data());
  const absl::MutexLock lock(&mu_);
  touched_later_[from] = from + step.size();
  while (!touched_later_.empty() && touched_later_.begin()->first == touched_) {
    touched_ = touched_later_.begin()->second;
    touched_later_.erase(touched_later_.begin());
  }
  changed_.SignalAll();
}

uint64_t HostPool::SizeOfNext(uint64_t registered) const {
  uint64_t bytes = options_.piece_bytes;
  if (registered == 0) bytes = std::min(bytes, options_.first_piece_bytes);
  if (IsShy()) bytes = std::min(bytes, options_.shy_piece_bytes);
  return std::min(bytes, options_.bytes - registered);
}

absl::Duration HostPool::PauseAfter(absl::Duration took, double demand) {
  const double part = std::max(1 - demand, kLeastPart);
  return std::max(kYield, took * ((1 - part) / part));
}

void HostPool::Register() {
  uint64_t registered = 0;
  while (registered < options_.bytes) {
    const uint64_t bytes = WaitForPiece(registered);
    if (bytes == 0) return;
    const absl::Time begin = clock_.Now();
    RegisterPiece(memory_.span().subspan(registered, bytes));
    const absl::Duration took = clock_.Now() - begin;
    registered += bytes;
    {
      const absl::MutexLock lock(&mu_);
      ready_bytes_ = registered;
      changed_.SignalAll();
    }
    on_grown_(registered);
    if (!Yield(PauseAfter(took, demand_()))) return;
  }
}

uint64_t HostPool::ShyPieces() const {
  return (options_.bytes + options_.shy_piece_bytes - 1) /
         options_.shy_piece_bytes;
}

void HostPool::RegisterFound() {
  while (true) {
    const uint64_t most =
        IsShy() ? options_.shy_piece_bytes : options_.piece_bytes;
    const absl::Time begin = clock_.Now();
    if (!RegisterSome(0, options_.bytes, most)) return;
    if (!Yield(PauseAfter(clock_.Now() - begin, demand_()))) return;
  }
}

bool HostPool::RegisterSome(uint64_t begin, uint64_t end, uint64_t most) {
  const uint64_t step = options_.shy_piece_bytes;
  uint64_t first = begin / step;
  const uint64_t last = std::min((end + step - 1) / step, ShyPieces());
  uint64_t next = 0;
  {
    const absl::MutexLock lock(&mu_);
    while (first < last && pinned_[first] != Pinned::kNo) ++first;
    if (first == last) return false;
    const uint64_t beyond =
        std::min(last, first + std::max<uint64_t>(most / step, 1));
    for (next = first; next < beyond && pinned_[next] == Pinned::kNo; ++next) {
      pinned_[next] = Pinned::kBusy;
    }
  }
  const uint64_t from = first * step;
  const uint64_t to = std::min(next * step, options_.bytes);
  RegisterPiece(memory_.span().subspan(from, to - from));
  const absl::MutexLock lock(&mu_);
  std::fill(pinned_.begin() + static_cast<ptrdiff_t>(first),
            pinned_.begin() + static_cast<ptrdiff_t>(next), Pinned::kYes);
  if (std::ranges::count(pinned_, Pinned::kYes) == std::ssize(pinned_)) {
    all_pinned_ = true;
  }
  changed_.SignalAll();
  return true;
}

void HostPool::Pin(std::span<const std::byte> memory) {
  if (all_pinned_ || memory.empty()) return;
  const std::span<std::byte> pool = memory_.span();
  if (std::less<>()(memory.data(), pool.data()) ||
      !std::less<>()(memory.data(), pool.data() + pool.size())) {
    return;
  }
  const auto begin = static_cast<uint64_t>(memory.data() - pool.data());
  const uint64_t end = begin + memory.size();
  while (RegisterSome(begin, end, options_.shy_piece_bytes)) {
  }
  const uint64_t step = options_.shy_piece_bytes;
  const uint64_t last = std::min((end + step - 1) / step, ShyPieces());
  const absl::MutexLock lock(&mu_);
  for (uint64_t i = begin / step; i < last; ++i) {
    while (pinned_[i] != Pinned::kYes) changed_.Wait(&mu_);
  }
}

uint64_t HostPool::WaitForPiece(uint64_t registered) {
  while (true) {
    // Recomputed each time: touching ahead follows the same demand.
    const uint64_t bytes = SizeOfNext(registered);
    const absl::MutexLock lock(&mu_);
    if (stopping_) return 0;
    if (touched_ >= registered + bytes) return bytes;
    changed_.WaitWithTimeout(&mu_, kLookAgain);
  }
}

bool HostPool::Yield(absl::Duration pause) {
  const absl::Time until = clock_.Now() + pause;
  const absl::MutexLock lock(&mu_);
  while (!stopping_ && clock_.Now() < until) {
    changed_.WaitWithTimeout(&mu_, until - clock_.Now());
  }
  return !stopping_;
}

void HostPool::RegisterPiece(std::span<std::byte> piece) {
  for (Device* device : devices_) {
    const absl::Status status = device->RegisterHost(piece);
    if (status.ok()) {
      const absl::MutexLock lock(&mu_);
      registered_.push_back({device, piece});
      continue;
    }
    // Unpinned memory still works; its copies are slower.
    unpinned_bytes_ += piece.size();
    const absl::MutexLock lock(&note_mu_);
    if (on_note_ == nullptr) continue;
    on_note_(absl::StrCat(
        "host pool: bytes ", piece.data() - memory_.data(), " + ", piece.size(),
        " are not pinned for device ", device->info().index.number(),
        " (copies run at a third of the rate): ", std::string(status.message()),
        "; raise LimitMEMLOCK (ulimit -l) or lower host.pool"));
  }
}

}  // namespace hoistd
