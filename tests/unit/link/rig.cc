#include "tests/unit/link/rig.h"

#include <cstring>
#include <utility>

#include "daemon/base/check.h"
#include "hoist/shared/mapping.h"

namespace hoistd::testing {

LinkPiece Repeater::TakePiece(uint64_t) {
  ++taken_;
  if (options_.clock != nullptr) options_.clock->Advance(options_.takes);
  LinkPiece piece;
  piece.Add(options_.to_offset, options_.from);
  return piece;
}

LinkRig::LinkRig(LinkOptions options) : host_(kBytes) {
  device_ = EmulatedDevice::Create({.total_bytes = kBytes}).value();
  HOIST_CHECK(device_->CreateSlab({SlabId(1), 0, kBytes}).ok());
  memory_ = hoist::Mapping::OfFd(device_->Share(SlabId(1)).value().fd, kBytes,
                                 hoist::Mapping::Access::kRead)
                .value();
  faulty_ = std::make_unique<FaultyDevice>(*device_);
  for (size_t i = 0; i + 8 <= host_.size(); i += 8) {
    const uint64_t value = (i + 1) * 0x9E3779B97F4A7C15u;
    std::memcpy(&host_[i], &value, 8);
  }
  options.trace = &recorder_;
  link_ = Link::Create(*faulty_, clock_, options).value();
}

LinkRig::~LinkRig() {
  faulty_->LetCopiesGo();
  link_.reset();
}

void LinkRig::Wait() {
  go_ = std::make_unique<absl::Notification>();
  // It takes commands in batches: what comes after must be in one of its own.
  absl::Notification waits;
  link_->Post([go = go_.get(), &waits] {
    waits.Notify();
    go->WaitForNotification();
  });
  waits.WaitForNotification();
}

void LinkRig::Settle() {
  // The second command comes a whole turn after the first.
  for (int i = 0; i < 2; ++i) {
    absl::Notification done;
    link_->Post([&done] { done.Notify(); });
    done.WaitForNotification();
  }
}

Repeater& LinkRig::AddPlan(PlanId plan, uint64_t offset, uint64_t bytes,
                           Repeater::Options options,
                           const ShareOptions& share) {
  options.to_offset = offset;
  options.from = std::span(host_).subspan(offset, bytes);
  Repeater& repeater =
      *plans_.emplace_back(std::make_unique<Repeater>(options));
  link_->Post([this, plan, share, &repeater] {
    link_->Add(LinkParty::Of(plan), share, repeater);
  });
  return repeater;
}

TransferId LinkRig::Copy(uint64_t offset, uint64_t bytes, bool urgent,
                         uint64_t rows, uint64_t pitch) {
  TransferId id;
  {
    const absl::MutexLock lock(&mu_);
    id = TransferId(ends_.size());
    ends_.emplace_back();
  }
  std::vector<HostRun> runs;
  for (uint64_t i = 0; i < rows && bytes > 0; ++i) {
    runs.push_back({offset + i * bytes,
                    std::span(host_).subspan(offset + i * pitch, bytes)});
  }
  link_->Copy({.id = id,
               .runs = std::move(runs),
               .urgent = urgent,
               .done = [this, id](absl::Status status) {
                 const absl::MutexLock lock(&mu_);
                 ASSERT_FALSE(ends_[id.number()].has_value()) << "told twice";
                 ends_[id.number()] = std::move(status);
               }});
  return id;
}

std::optional<absl::Status> LinkRig::end(TransferId id) const {
  const absl::MutexLock lock(&mu_);
  return ends_[id.number()];
}

absl::Status LinkRig::WaitFor(TransferId id) const {
  if (!Until([&] { return end(id).has_value(); })) {
    return absl::DeadlineExceededError("not told in a minute");
  }
  return *end(id);
}

bool LinkRig::Right(uint64_t offset, uint64_t bytes) const {
  return std::memcmp(memory_.data() + offset, &host_[offset], bytes) == 0;
}

uint64_t LinkRig::BytesTo(uint64_t offset, uint64_t bytes,
                          size_t copies) const {
  uint64_t sum = 0;
  for (const FaultyDevice::Copy& copy : faulty_->copies()) {
    if (copies-- == 0) break;
    if (copy.to_offset >= offset && copy.to_offset < offset + bytes) {
      sum += copy.bytes;
    }
  }
  return sum;
}

}  // namespace hoistd::testing
