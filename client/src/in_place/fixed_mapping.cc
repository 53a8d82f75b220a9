#include "client/src/in_place/fixed_mapping.h"

#include <string>
#include <utility>

#include "client/src/base/fork_guard.h"
#include "client/src/device/device_map.h"
#include "hoist/shared/image_layout.h"

namespace hoist {
namespace {

bool LiesAs(const GroupEntry& group, const GroupEntry& other) {
  if (group.image_bytes != other.image_bytes ||
      group.tensors.size() != other.tensors.size()) {
    return false;
  }
  for (size_t i = 0; i < group.tensors.size(); ++i) {
    const TensorEntry& one = group.tensors[i];
    const TensorEntry& two = other.tensors[i];
    if (one.name != two.name || one.dtype != two.dtype ||
        one.shape != two.shape || one.strides != two.strides ||
        one.offset_bytes != two.offset_bytes) {
      return false;
    }
  }
  return true;
}

Status NoGroup(uint32_t number) {
  return Status(Code::kOutOfRange,
                "the model has no group " + std::to_string(number));
}

}  // namespace

Result<std::unique_ptr<FixedMapping>> FixedMapping::Create(
    const Session& session, const ModelTable& model,
    std::span<const uint32_t> groups, uint32_t device) {
  const DeviceFacts* facts = session.FindDevice(device);
  if (facts == nullptr) {
    return Status(Code::kInvalidArgument,
                  "hoistd has no device " + std::to_string(device));
  }
  std::vector<Place> places;
  uint64_t bytes = 0;
  for (const uint32_t number : groups) {
    if (number >= model.groups().size()) return NoGroup(number);
    Place place = {bytes, 0, model.groups()[number]};
    // No overflow: an image has at most 2^46 bytes, and a model 2^20 groups.
    place.bytes = *AlignUp(place.group.image_bytes, kSlabAlignment);
    bytes += place.bytes;
    places.push_back(std::move(place));
  }
  std::unique_ptr<PieceRange> range;
  if (bytes > 0) {
    Result<std::unique_ptr<PieceRange>> made =
        facts->kind == DeviceKind::kEmulated
            ? CreateEmulatedRange(bytes)
            : CreateCudaRange(facts->uuid, bytes);
    if (!made.ok()) return made.status();
    range = std::move(made).value();
  }
  return std::unique_ptr<FixedMapping>(
      new FixedMapping(*facts, std::move(places), std::move(range)));
}

FixedMapping::FixedMapping(DeviceFacts device, std::vector<Place> places,
                           std::unique_ptr<PieceRange> range)
    : device_(std::move(device)),
      generation_(ForkGeneration()),
      places_(std::move(places)),
      range_(std::move(range)) {}

FixedMapping::~FixedMapping() {
  const MutexLock lock(mu_);
  // Mappings that cannot be unmapped end with the range.
  (void)EmptyLocked();
}

bool FixedMapping::forked() const { return generation_ != ForkGeneration(); }

std::optional<const void*> FixedMapping::AddressOf(size_t group) const {
  if (group >= places_.size()) return std::nullopt;
  const Place& place = places_[group];
  if (place.bytes == 0) return nullptr;
  return static_cast<const std::byte*>(range_->address()) + place.offset;
}

Status FixedMapping::Check(const Session& session, const ModelTable& model,
                           std::span<const uint32_t> groups) const {
  if (groups.size() != places_.size()) {
    return Status(Code::kInvalidArgument,
                  "the mapping is of " + std::to_string(places_.size()) +
                      " groups, not of " + std::to_string(groups.size()));
  }
  const DeviceFacts* facts = session.FindDevice(device_.index);
  // An emulated device's UUID differs between hoistds.
  const bool same =
      facts != nullptr && facts->kind == device_.kind &&
      (facts->kind == DeviceKind::kEmulated || facts->uuid == device_.uuid);
  if (!same) {
    return Status(Code::kInvalidArgument,
                  "device " + std::to_string(device_.index) +
                      " of this hoistd is another than the mapping's");
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i] >= model.groups().size()) return NoGroup(groups[i]);
    if (!LiesAs(model.groups()[groups[i]], places_[i].group)) {
      return Status(Code::kInvalidArgument,
                    "the tensors of group \"" + places_[i].group.name +
                        "\" lie otherwise than the mapping's");
    }
  }
  return Status();
}

Status FixedMapping::Fill(std::shared_ptr<Session> session,
                          const ModelPtr& model,
                          std::span<const uint32_t> groups,
                          std::chrono::milliseconds deadline) {
  if (Status s = Check(*session, *model, groups); !s.ok()) return s;
  const MutexLock lock(mu_);
  if (session_ != nullptr) return Status();
  model_ = session->Hold(model);
  session_ = std::move(session);
  Status staged = StageLocked(groups, deadline);
  if (!staged.ok()) (void)EmptyLocked();
  return staged;
}

Status FixedMapping::StageLocked(std::span<const uint32_t> groups,
                                 std::chrono::milliseconds deadline) {
  std::vector<uint32_t> numbers;
  std::vector<const Place*> places;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (places_[i].bytes == 0) continue;
    numbers.push_back(groups[i]);
    places.push_back(&places_[i]);
  }
  if (numbers.empty()) return Status();
  Session::ApartOptions options;
  options.device = device_.index;
  options.deadline = deadline;
  Status status;
  std::vector<uint64_t> granted;
  session_->StageApart(
      *model_, numbers, options, [&](size_t i, Result<LeaseGrant> lease) {
        if (!lease.ok()) {
          status = lease.status();
          return false;
        }
        granted.push_back(lease->id);
        status =
            lease->slab.bytes == places[i]->bytes
                ? range_->Lay(places[i]->offset, lease->slab)
                : Status(Code::kInternal, "hoistd sent a slab of another size");
        return status.ok();
      });
  leases_.insert(leases_.end(), granted.begin(), granted.end());
  return status.ok() ? range_->Open() : status;
}

Status FixedMapping::Empty() {
  const MutexLock lock(mu_);
  return EmptyLocked();
}

Status FixedMapping::EmptyLocked() {
  if (session_ == nullptr) return Status();
  // Unmap before the leases end.
  if (range_ != nullptr) {
    if (Status s = range_->Clear(); !s.ok()) return s;
  }
  session_->PostReleases(leases_);
  leases_.clear();
  model_.reset();
  session_.reset();
  return Status();
}

}  // namespace hoist
