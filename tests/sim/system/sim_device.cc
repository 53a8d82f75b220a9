#include "tests/sim/system/sim_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "daemon/base/check.h"
#include "tests/sim/system/reaper.h"
#include "tests/sim/system/sim_models.h"
#include "tests/sim/system/violation.h"

namespace hoistd::sim {
namespace {

constexpr int kTorn = 0xDB;    // Where a copy is under way.
constexpr int kNobody = 0xEE;  // Where no slab is.

bool SameMemory(const std::byte* a, uint64_t a_bytes, const std::byte* b,
                uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

// The memory lies elsewhere; it says which slab's it is.
hoist::UniqueFd TokenOf(const SlabSpec& spec) {
  hoist::UniqueFd fd(memfd_create("slab", MFD_CLOEXEC));
  HOIST_CHECK(write(fd.get(), &spec, sizeof(spec)) == sizeof(spec));
  return fd;
}

std::optional<SlabSpec> SlabOf(int token) {
  SlabSpec spec;
  if (pread(token, &spec, sizeof(spec), 0) != sizeof(spec)) return std::nullopt;
  return spec;
}

}  // namespace

class SimStream final : public CopyStream {
 public:
  explicit SimStream(SimDevice& device) : device_(device) {
    device_.streams_.push_back(this);
  }
  ~SimStream() override {
    while (!jobs_.empty()) Step();
    std::erase(device_.streams_, this);
  }

  absl::Status CopyIn(uint64_t to_offset,
                      std::span<const std::byte> from) override {
    if (!device_.Covered(to_offset, from.size())) {
      Violation(Check::kOverwrite, "a copy to where no slab is");
    }
    TheReaper().Point();
    Push({.to = to_offset, .from = from.data(), .bytes = from.size()});
    return absl::OkStatus();
  }
  absl::Status CopyOut(std::span<std::byte>, uint64_t) override {
    return absl::UnimplementedError("nothing is copied out of the simulation");
  }
  absl::Status WriteWords(std::span<const WordWrite> words) override {
    TheReaper().Point();
    Push({.words = {words.begin(), words.end()}});
    return absl::OkStatus();
  }
  absl::Status Health() override { return absl::OkStatus(); }
  void Then(Done done) override { Push({.done = std::move(done)}); }

  bool busy() const { return !jobs_.empty(); }
  bool Reads(std::span<const std::byte> host) const {
    return std::ranges::any_of(jobs_, [&](const Job& job) {
      return SameMemory(job.from, job.bytes, host.data(), host.size());
    });
  }
  void Step();
  void Reap(std::mt19937_64& random);

 private:
  struct Job {
    uint64_t to = 0;
    const std::byte* from = nullptr;
    uint64_t bytes = 0;
    std::vector<WordWrite> words = {};
    Done done = nullptr;
    bool begun = false;
    absl::Time ends = absl::InfinitePast();
  };

  void Push(Job job) { jobs_.push_back(std::move(job)); }
  void Begin(Job& job);
  void End(Job& job);

  SimDevice& device_;
  std::deque<Job> jobs_;
  std::vector<Job> late_;  // Copies that a mutant holds back.
};

void SimStream::Step() {
  Job& front = jobs_.front();
  if (front.bytes > 0 && !front.begun) return Begin(front);
  Job job = std::move(front);
  jobs_.pop_front();
  End(job);
}

void SimStream::Begin(Job& job) {
  job.begun = true;
  job.ends = device_.clock_.Now() + absl::Microseconds(1 + job.bytes / kPage);
  device_.events_.on_write(device_.info_.index, job.to, job.bytes);
  std::byte* const to = &device_.memory_[job.to];
  std::memcpy(to, job.from, job.bytes / 2);
  std::memset(to + job.bytes / 2, kTorn, job.bytes - job.bytes / 2);
}

void SimStream::End(Job& job) {
  if (job.done != nullptr) return std::move(job.done)(absl::OkStatus());
  for (const WordWrite& write : job.words) {
    write.word->store(write.value, std::memory_order_release);
  }
  if (job.bytes == 0) return;
  device_.clock_.AdvanceTo(job.ends);
  std::byte* const to = &device_.memory_[job.to];
  if (TheMutation().Shows(Mutant::kDroppedCopy)) return;
  if (TheMutation().Shows(Mutant::kTornCopy)) job.bytes -= kPage / 2;
  if (TheMutation().Shows(Mutant::kLateCopy)) {
    late_.push_back(std::move(job));
    return;
  }
  device_.events_.on_write(device_.info_.index, job.to, job.bytes);
  std::memcpy(to, job.from, job.bytes);
  for (Job& late : std::exchange(late_, {})) End(late);
}

void SimStream::Reap(std::mt19937_64& random) {
  for (uint64_t left = random() % (jobs_.size() + 1); left > 0; --left) {
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    // Whom it would have told is gone.
    if (job.done == nullptr) End(job);
  }
  if (jobs_.empty()) return;
  Job& next = jobs_.front();
  if (next.bytes > 0 && !next.begun && random() % 2 == 0) Begin(next);
  if (next.words.empty()) return;
  next.words.resize(random() % next.words.size());
  End(next);
}

SimDevice::SimDevice(const SimDeviceOptions& options, SimClock& clock,
                     SimDeviceEvents events)
    : clock_(clock),
      events_(std::move(events)),
      memory_(options.span_bytes, std::byte{kNobody}),
      keeps_(options.keeps) {
  info_.index = options.index;
  info_.name = "simulated";
  info_.kind = options.kind;
  info_.total_bytes = info_.free_bytes = options.total_bytes;
  info_.granularity = options.granularity;
  info_.span_bytes = options.span_bytes;
  info_.backing = options.backing;
}

SimDevice::~SimDevice() = default;

absl::Status SimDevice::CreateSlab(const SlabSpec& spec) {
  TheReaper().Point();
  uint64_t sum = spec.bytes;
  for (const auto& [id, slab] : slabs_) {
    sum += slab.bytes;
    if (slab.offset < spec.offset + spec.bytes &&
        spec.offset < slab.offset + slab.bytes) {
      Violation(Check::kSlabs, "a slab where one is");
    }
  }
  if (spec.bytes == 0 || spec.bytes % info_.granularity != 0 ||
      spec.offset % info_.granularity != 0 ||
      spec.offset + spec.bytes > info_.span_bytes) {
    Violation(Check::kSlabs, "a slab of no such place");
  }
  if (sum > info_.total_bytes) {
    return absl::ResourceExhaustedError("the device's memory is all used");
  }
  if (!numbers_.insert(spec.id).second) {
    Violation(Check::kProtocol, "a slab has the number of an earlier one");
  }
  slabs_[spec.id] = spec;
  adopted_.insert(spec.id);
  if (keeps_) kept_[spec.id] = TokenOf(spec);
  std::memset(&memory_[spec.offset], 0, spec.bytes);
  TheReaper().Point();
  return absl::OkStatus();
}

absl::Status SimDevice::AdoptSlab(const SlabSpec& spec, hoist::UniqueFd fd) {
  const auto found = slabs_.find(spec.id);
  const std::optional<SlabSpec> meant = SlabOf(fd.get());
  if (found == slabs_.end() || !meant.has_value() || meant->id != spec.id ||
      meant->offset != spec.offset || meant->bytes != spec.bytes ||
      !adopted_.insert(spec.id).second) {
    return absl::InvalidArgumentError("it is no slab of this device");
  }
  return absl::OkStatus();
}

absl::Status SimDevice::DestroySlab(SlabId id) {
  TheReaper().Point();
  const auto found = slabs_.find(id);
  if (found == slabs_.end() || !adopted_.contains(id)) {
    Violation(Check::kSlabs, "no such slab to destroy");
  }
  Erase(found);
  TheReaper().Point();
  return absl::OkStatus();
}

absl::Status SimDevice::ZeroSlab(SlabId id) {
  TheReaper().Point();
  const auto found = slabs_.find(id);
  if (found == slabs_.end() || !adopted_.contains(id)) {
    Violation(Check::kSlabs, "no such slab to zero");
  }
  const SlabSpec& spec = found->second;
  events_.on_write(info_.index, spec.offset, spec.bytes);
  if (TheMutation().Shows(Mutant::kNotZeroed)) return absl::OkStatus();
  std::memset(&memory_[spec.offset], 0, spec.bytes);
  return absl::OkStatus();
}

void SimDevice::Erase(std::map<SlabId, SlabSpec>::iterator slab) {
  const SlabSpec spec = slab->second;
  events_.on_destroy(info_.index, spec);
  events_.on_write(info_.index, spec.offset, spec.bytes);
  std::memset(&memory_[spec.offset], kNobody, spec.bytes);
  slabs_.erase(slab);
  kept_.erase(spec.id);
  adopted_.erase(spec.id);
}

void SimDevice::DropOthers() {
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    const auto next = std::next(slab);
    if (!adopted_.contains(slab->first)) Erase(slab);
    slab = next;
  }
}

void SimDevice::Reap(std::mt19937_64& random) {
  for (SimStream* const stream : std::exchange(streams_, {})) {
    stream->Reap(random);
  }
}

absl::StatusOr<SlabShare> SimDevice::Share(SlabId id) const {
  if (!adopted_.contains(id)) Violation(Check::kSlabs, "no such slab to share");
  const auto kept = kept_.find(id);
  return SlabShare{.backing = info_.backing,
                   .keep_fd = kept == kept_.end() ? -1 : kept->second.get()};
}

absl::StatusOr<std::unique_ptr<CopyStream>> SimDevice::CreateStream() {
  return std::make_unique<SimStream>(*this);
}

bool SimDevice::busy() const {
  return std::ranges::any_of(streams_,
                             [](SimStream* stream) { return stream->busy(); });
}

void SimDevice::Step() {
  (*std::ranges::find_if(streams_, [](SimStream* stream) {
    return stream->busy();
  }))->Step();
}

bool SimDevice::Reads(std::span<const std::byte> host) const {
  return std::ranges::any_of(
      streams_, [&](SimStream* stream) { return stream->Reads(host); });
}

bool SimDevice::Covered(uint64_t offset, uint64_t bytes) const {
  uint64_t covered = 0;
  for (const auto& [id, slab] : slabs_) {
    const uint64_t begin = std::max(offset, slab.offset);
    const uint64_t end = std::min(offset + bytes, slab.offset + slab.bytes);
    if (begin < end) covered += end - begin;
  }
  return covered == bytes;
}

}  // namespace hoistd::sim
