#include "client/src/in_place/in_place.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "client/src/base/fork_guard.h"
#include "client/src/base/start_thread.h"
#include "client/src/device/device_map.h"
#include "client/src/in_place/scratch.h"
#include "hoist/shared/image_layout.h"
#include "hoist/shared/size_text.h"

namespace hoist {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPassLimit{60'000};  // Of a pass, at a boundary.

// The bytes of the group's image that its tensors cover, from its first on.
// nullopt: there are gaps between them.
std::optional<uint64_t> CoveredBytes(const GroupEntry& group) {
  uint64_t end = 0;
  for (const TensorEntry& tensor : group.tensors) {
    if (tensor.offset_bytes > end && tensor.size_bytes > 0) return std::nullopt;
    end = std::max(end, tensor.offset_bytes + tensor.size_bytes);
  }
  return end;
}

Status CheckTensor(const InPlaceTensor& tensor, const std::string& name,
                   const hoist_in_place_options& options) {
  if (tensor.groups.empty() || tensor.units == 0) {
    return Status(Code::kInvalidArgument, name + " has no groups, or no units");
  }
  const bool counted = options.counts != nullptr || options.cold != nullptr;
  if (counted && (tensor.first_count > options.count_length ||
                  tensor.units > options.count_length - tensor.first_count)) {
    return Status(Code::kInvalidArgument,
                  name + " counts beyond the last of the counts");
  }
  if (tensor.scratch_bytes % kSlabAlignment == 0) return Status();
  return Status(Code::kInvalidArgument,
                name + " has " + std::to_string(tensor.scratch_bytes) +
                    " bytes of scratch, and it takes a multiple of 2 MiB");
}

Status OddSlab() {
  return Status(Code::kInternal, "hoistd sent a slab of another size");
}

// Sets the units that have one of these bytes.
void MarkUnits(uint64_t units, uint64_t tensor_bytes, uint64_t offset,
               uint64_t bytes, uint8_t* marks) {
  const uint64_t end = std::min(offset + bytes, tensor_bytes);
  for (uint64_t u = offset * units / tensor_bytes;
       u < units && tensor_bytes * u / units < end; ++u) {
    marks[u] = 1;
  }
}

// Kernels may be reading there.
void StoreAll(const std::vector<uint8_t>& from, uint8_t* to) {
  for (size_t i = 0; i < from.size(); ++i) {
    std::atomic_ref(to[i]).store(from[i], std::memory_order_relaxed);
  }
}

// `last`: of its tensor.
Status CheckPiece(const GroupEntry& group, bool last) {
  const auto refused = [&](const std::string& why) {
    return Status(Code::kInvalidArgument,
                  "the piece \"" + group.name + "\" " + why);
  };
  const std::optional<uint64_t> covered = CoveredBytes(group);
  if (group.image_bytes == 0) return refused("is empty");
  if (!last && group.image_bytes % kSlabAlignment != 0) {
    return refused("has " + std::to_string(group.image_bytes) +
                   " bytes; all but a tensor's last must be multiples of 2 "
                   "MiB, which a device maps by itself");
  }
  if (!covered.has_value()) {
    return refused("has gaps between its tensors; one tensor has none");
  }
  if (!last && *covered != group.image_bytes) {
    return refused("ends in a gap: its tensors have " +
                   std::to_string(*covered) + " bytes of its " +
                   std::to_string(group.image_bytes) +
                   ", and all but a tensor's last must have all");
  }
  return Status();
}

// hoistd's refusal of one piece, with what would be enough for all.
Status OfAll(const Status& refused, const ModelTable& model,
             const std::vector<uint32_t>& groups) {
  if (refused.code() != Code::kResourceExhausted) return refused;
  uint64_t bytes = 0;
  for (const uint32_t group : groups) bytes += model.group(group).image_bytes;
  return Status(refused.code(), refused.message() +
                                    "; all pieces together take " +
                                    HumanBytes(bytes) + " in place");
}

}  // namespace

Result<std::unique_ptr<InPlace>> InPlace::Create(
    std::shared_ptr<Session> session, ModelPtr model,
    std::vector<InPlaceTensor> tensors, const hoist_in_place_options& options) {
  const DeviceFacts* device = session->FindDevice(options.device);
  if (device == nullptr) {
    return Status(Code::kInvalidArgument,
                  "hoistd has no device " + std::to_string(options.device));
  }
  Result<DeviceFacts> in_place = session->InPlace();
  if (!in_place.ok()) return in_place.status();
  std::unique_ptr<InPlace> made(
      new InPlace(std::move(session), std::move(model), std::move(tensors),
                  options, std::move(in_place).value()));
  if (Status s = made->Layout(); !s.ok()) return s;
  if (Status s = made->Open(*device); !s.ok()) return s;
  if (Status s = made->StageCold(); !s.ok()) return s;
  made->TellHeat();  // Also seeds it with others' reports.
  InPlace* const self = made.get();
  Status started = StartThread(&made->thread_, [self] { self->Run(); });
  if (!started.ok()) return started;
  return made;
}

InPlace::InPlace(std::shared_ptr<Session> session, ModelPtr model,
                 std::vector<InPlaceTensor> tensors,
                 const hoist_in_place_options& options, DeviceFacts in_place)
    : session_(std::move(session)),
      model_(session_->Hold(model)),
      tensors_(std::move(tensors)),
      options_(options),
      in_place_(std::move(in_place)),
      book_({}) {}

InPlace::~InPlace() {
  stopping_ = true;
  session_->WakeCalls();
  {
    const MutexLock lock(mu_);
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  // The next worker starts with this heat. Sent without a wait: hoistd may be
  // stopped.
  if (ToTell()) session_->PostHeat(MakeReport());
  ranges_.clear();  // Unmap before the leases end.
  const MutexLock lock(mu_);
  for (const Piece& piece : pieces_) {
    if (piece.cold_lease != 0) book_.Leave(piece.cold_lease);
  }
  book_.LeaveAll();
  session_->PostReleases(book_.TakeLeft());
}

Status InPlace::Layout() {
  const MutexLock lock(mu_);
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const InPlaceTensor& tensor = tensors_[t];
    const std::string name = "tensor " + std::to_string(t);
    if (Status s = CheckTensor(tensor, name, options_); !s.ok()) return s;
    first_piece_.push_back(pieces_.size());
    Piece piece;
    piece.tensor = t;
    for (const uint32_t& number : tensor.groups) {
      if (number >= model_->groups().size()) {
        return Status(Code::kOutOfRange, name + " has group " +
                                             std::to_string(number) +
                                             ", and its model has not");
      }
      const GroupEntry& group = model_->groups()[number];
      const bool last = &number == &tensor.groups.back();
      if (Status s = CheckPiece(group, last); !s.ok()) {
        return Status(s.code(), name + ": " + s.message());
      }
      piece.group = number;
      piece.image_bytes = group.image_bytes;
      piece.bytes = *AlignUp(piece.image_bytes, kSlabAlignment);
      pieces_.push_back(piece);
      piece.offset += piece.image_bytes;
    }
    const Piece& last = pieces_.back();
    tensor_bytes_.push_back(last.offset +
                            *CoveredBytes(model_->groups()[last.group]));
    if (tensor.bytes != 0 && tensor.bytes != tensor_bytes_.back()) {
      return Status(Code::kInvalidArgument,
                    name + " has " + std::to_string(tensor.bytes) +
                        " bytes, and its pieces " +
                        std::to_string(tensor_bytes_.back()));
    }
    stats_.bytes += tensor_bytes_.back();
  }
  first_piece_.push_back(pieces_.size());
  stats_.pieces = static_cast<uint32_t>(pieces_.size());
  std::vector<uint64_t> bytes;
  for (const Piece& piece : pieces_) bytes.push_back(piece.bytes);
  book_ = PieceBook(bytes);
  return Status();
}

Status InPlace::Open(const DeviceFacts& device) {
  const bool emulated = device.kind == DeviceKind::kEmulated;
  if (emulated) emulated_link_ = device.link_bytes_per_second;
  const MutexLock counts_lock(counts_mu_);
  const MutexLock lock(mu_);
  scratch_ = std::make_unique<Scratch>(device);
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const Piece& last = pieces_[first_piece_[t + 1] - 1];
    Result<std::unique_ptr<PieceRange>> range =
        scratch_->MakeRange(last.offset + last.bytes, tensors_[t]);
    if (!range.ok()) return range.status();
    ranges_.push_back(std::move(range).value());
  }
  if (Status s = scratch_->Lay(); !s.ok()) return s;
  ShowCold();
  if (options_.counts != nullptr) {
    Result<std::unique_ptr<TouchCounts>> counts =
        emulated
            ? CountsOnCpu(options_.counts, options_.count_length)
            : CountsOnGpu(device.uuid, options_.counts, options_.count_length);
    if (!counts.ok()) return counts.status();
    counts_ = std::move(counts).value();
    // Earlier counts are not touches of these tensors.
    if (Status s = counts_->Take().status(); !s.ok()) return s;
  }
  Result<std::unique_ptr<StreamOrder>> order =
      emulated ? CreateEmulatedOrder(kPassLimit) : CreateCudaOrder(device.uuid);
  if (!order.ok()) return order.status();
  order_ = std::move(order).value();
  Result<std::unique_ptr<PassBoundary>> boundary =
      PassBoundary::Create(order_.get());
  if (!boundary.ok()) return boundary.status();
  boundary_ = std::move(boundary).value();
  return Status();
}

Status InPlace::StageCold() {
  std::vector<uint32_t> groups;
  {
    const MutexLock lock(mu_);
    for (const Piece& piece : pieces_) groups.push_back(piece.group);
  }
  Status status;
  Session::ApartOptions options;
  options.device = in_place_.index;
  options.deadline = milliseconds(options_.deadline_ms);
  session_->StageApart(
      *model_, groups, options, [&](size_t i, Result<LeaseGrant> lease) {
        if (!lease.ok()) {
          status = OfAll(lease.status(), *model_, groups);
          return false;
        }
        const MutexLock lock(mu_);
        Piece& piece = pieces_[i];
        piece.cold_lease = lease->id;
        piece.cold = lease->slab;
        PieceRange& range = *ranges_[piece.tensor];
        status = piece.cold.bytes == piece.bytes
                     ? range.Lay(piece.offset, piece.cold)
                     : OddSlab();
        // While the next tensor's pieces arrive.
        const bool last = i + 1 == first_piece_[piece.tensor + 1];
        if (status.ok() && last) status = range.Open();
        return status.ok();
      });
  return status;
}

void InPlace::ShowCold() {
  if (options_.cold == nullptr) return;
  std::vector<uint8_t> cold(options_.count_length, 0);
  for (size_t i = 0; i < pieces_.size() && scratch_->is_laid(); ++i) {
    const Piece& piece = pieces_[i];
    if (book_.IsHot(i)) continue;
    MarkUnits(tensors_[piece.tensor].units, tensor_bytes_[piece.tensor],
              piece.offset, piece.image_bytes,
              &cold[tensors_[piece.tensor].first_count]);
  }
  StoreAll(cold, options_.cold);
}

const void* InPlace::AddressOf(size_t tensor) const {
  return tensor < ranges_.size() ? ranges_[tensor]->address() : nullptr;
}

Status InPlace::Touch(size_t tensor, std::span<const uint32_t> units,
                      std::span<const uint32_t> counts) {
  if (tensor >= tensors_.size()) {
    return Status(Code::kOutOfRange, "no tensor " + std::to_string(tensor));
  }
  std::vector<double> touches(tensors_[tensor].units, 0);
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i] >= touches.size()) {
      return Status(Code::kOutOfRange, "no unit " + std::to_string(units[i]) +
                                           " of " +
                                           std::to_string(touches.size()));
    }
    touches[units[i]] += counts[i];
  }
  const MutexLock lock(mu_);
  AddTouches({{tensor, std::move(touches)}});
  changed_.NotifyAll();
  return Status();
}

// Converts touches of units into bytes read of each piece. A pass reads a unit
// once, however many tokens of its batch touch it. So touches of a unit that
// are seen together are a read.
void InPlace::AddTouches(const std::vector<TensorTouches>& all) {
  std::vector<double> read(pieces_.size(), 0);
  double passes = 0;
  for (const auto& [t, touches] : all) {
    const uint64_t bytes = tensor_bytes_[t];
    const uint64_t units = tensors_[t].units;
    size_t p = first_piece_[t];
    bool any = false;
    for (uint64_t u = 0; u < units; ++u) {
      const uint64_t begin = bytes * u / units;
      const uint64_t end = bytes * (u + 1) / units;
      while (pieces_[p].offset + pieces_[p].image_bytes <= begin) ++p;
      if (touches[u] == 0) continue;
      any = true;
      for (size_t q = p; q < first_piece_[t + 1] && pieces_[q].offset < end;
           ++q) {
        const Piece& piece = pieces_[q];
        const uint64_t from = std::max(begin, piece.offset);
        const uint64_t to = std::min(end, piece.offset + piece.image_bytes);
        const auto of_it = static_cast<double>(to - from);
        read[q] += of_it;
        (book_.IsHot(q) ? stats_.touched_hot_bytes
                        : stats_.touched_cold_bytes) += touches[u] * of_it;
      }
    }
    passes += any ? 1 : 0;
  }
  if (passes == 0) return;
  // A pass touches each tensor.
  book_.heat().Add(read, passes / static_cast<double>(tensors_.size()));
  touched_ = any_touch_ = true;
}

void InPlace::TakeCounts() {
  const MutexLock counts_lock(counts_mu_);
  if (counts_ == nullptr) return;
  Result<std::span<const uint32_t>> added = counts_->Take();
  const MutexLock lock(mu_);
  if (!added.ok()) {
    if (broken_.ok()) broken_ = added.status();
    return;
  }
  std::vector<TensorTouches> all;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const auto of = added->subspan(tensors_[t].first_count, tensors_[t].units);
    all.push_back({t, std::vector<double>(of.begin(), of.end())});
  }
  AddTouches(all);
}

// Includes touches since the last report.
Session::HeatReport InPlace::MakeReport() {
  Session::HeatReport report;
  Hoist__V1__HeatRequest& request = report.request;
  request.model_id = model_->facts().id;
  request.device = options_.device;
  const MutexLock lock(mu_);
  const Stats told = std::exchange(told_, stats_);
  request.touched_hot_bytes =
      static_cast<uint64_t>(stats_.touched_hot_bytes - told.touched_hot_bytes);
  request.touched_cold_bytes = static_cast<uint64_t>(stats_.touched_cold_bytes -
                                                     told.touched_cold_bytes);
  for (size_t i = 0; i < pieces_.size() && any_touch_; ++i) {
    report.read.groups.push_back(pieces_[i].group);
    report.read.heat.push_back(static_cast<float>(book_.heat().OfAPass(i)));
  }
  return report;
}

void InPlace::TellHeat() {
  // Not an error: a hoistd without this verb has no heat to seed with.
  Result<KnownHeat> known = session_->ReportHeat(MakeReport(), &stopping_);
  const MutexLock lock(mu_);
  if (!known.ok() || any_touch_) return;
  std::unordered_map<uint32_t, float> by_group;
  for (size_t i = 0; i < known->groups.size(); ++i) {
    by_group[known->groups[i]] = known->heat[i];
  }
  std::vector<double> of(pieces_.size(), 0);
  bool any = false;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const auto found = by_group.find(pieces_[i].group);
    if (found == by_group.end()) continue;
    of[i] = found->second;
    any = true;
  }
  if (any) book_.heat().Seed(of);
}

void InPlace::Choose() {
  touched_ = room_.IsDue(steady_clock::now()) || touched_;
  if (!std::exchange(touched_, false)) return;
  book_.Choose(Room());
}

bool InPlace::Bring() {
  constexpr milliseconds kPatience{2'000};
  std::vector<size_t> next;
  std::vector<uint32_t> groups;
  std::vector<uint64_t> left;
  {
    const MutexLock lock(mu_);
    next = book_.NextToBring(Room());
    for (const size_t i : next) groups.push_back(pieces_[i].group);
    left = book_.TakeLeft();
  }
  // Releases go first: they make room in the budget for the new pieces.
  session_->PostReleases(left);
  if (next.empty()) return false;
  Session::ApartOptions options;
  options.device = options_.device;
  options.deadline = kPatience;
  options.background = true;
  options.cancelled = &stopping_;
  Status refusal;
  session_->StageApart(*model_, groups, options,
                       [&](size_t i, Result<LeaseGrant> lease) {
                         const MutexLock lock(mu_);
                         const size_t at = next[i];
                         if (!lease.ok()) {
                           refusal = lease.status();
                           book_.DidNotCome(at);
                         } else if (lease->slab.bytes != pieces_[at].bytes) {
                           refusal = OddSlab();
                           book_.DidNotCome(at);
                           book_.Leave(lease->id);
                         } else {
                           book_.Came(at, lease->id);
                           pieces_[at].hot = lease->slab;
                           touched_ = touched_ || !book_.wanted(at);
                         }
                         return true;
                       });
  const MutexLock lock(mu_);
  bool refused = false;
  for (const size_t i : next) {
    // Cancelled calls have no answer.
    if (book_.StateOf(i) == PieceState::kComing) book_.DidNotCome(i);
    refused = refused || book_.StateOf(i) == PieceState::kCold;
  }
  if (refused) {
    room_.Refused(std::move(refusal), book_.device_bytes(),
                  steady_clock::now() + kPatience);
    touched_ = true;
  } else {
    room_.Given();
  }
  changed_.NotifyAll();
  return !refused;
}

bool InPlace::ToTell() const {
  const MutexLock lock(mu_);
  return any_touch_ && stats_.touched_hot_bytes + stats_.touched_cold_bytes >
                           told_.touched_hot_bytes + told_.touched_cold_bytes;
}

void InPlace::ReleaseLeft() {
  std::vector<uint64_t> left;
  {
    const MutexLock lock(mu_);
    left = book_.TakeLeft();
  }
  session_->PostReleases(left);
}

void InPlace::Run() {
  constexpr milliseconds kBusy{1}, kFirst{10}, kIdle{200}, kTell{2'000};
  pthread_setname_np(pthread_self(), "hoist-in-place");
  milliseconds nap = kFirst;
  auto told = steady_clock::now();
  while (!stopping_) {
    TakeCounts();
    bool touched = false;
    {
      const MutexLock lock(mu_);
      touched = touched_;
      Choose();
    }
    const bool brought = Bring();
    const bool placed = captured_ && PlaceAtBoundary();
    ReleaseLeft();
    if (ToTell() && steady_clock::now() - told >= kTell) {
      told = steady_clock::now();
      TellHeat();
    }
    nap = brought ? kBusy : touched ? kFirst : std::min(2 * nap, kIdle);
    const MutexLock lock(mu_);
    ++rounds_;
    CountPending();
    if (placed) nap = kBusy;
    if (stopping_ || touched_) continue;
    changed_.WaitUntil(mu_, steady_clock::now() + nap);
  }
}

Status InPlace::Check() const {
  {
    const MutexLock lock(mu_);
    if (!broken_.ok()) return broken_;
  }
  return session_->Check();
}

Status InPlace::CheckHot() const {
  const MutexLock lock(mu_);
  return room_.refusal();
}

InPlace::Stats InPlace::stats() const {
  const MutexLock lock(mu_);
  Stats stats = stats_;
  stats.hot_budget_bytes = room_.budget();
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!book_.IsHot(i)) continue;
    ++stats.hot_pieces;
    stats.hot_bytes += pieces_[i].bytes;
  }
  return stats;
}

}  // namespace hoist
