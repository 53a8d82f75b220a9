#include "daemon/successor/book.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/hash.h"
#include "daemon/base/overloaded.h"
#include "daemon/base/status.h"
#include "daemon/successor/persisted_host.h"
#include "daemon/successor/persisted_keys.h"
#include "daemon/successor/persisted_node.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {

Book::Book(Keep* keep, std::span<const std::byte> host, AddNote note)
    : keep_(keep), host_(host), note_(std::move(note)) {}

void Book::Checked(const absl::Status& fact) {
  if (fact.ok() || abandoned_) return;
  keep_->Abandon();
  abandoned_ = true;
  note_(
      "nothing outlives this hoistd any more: what it has could not be written "
      "down");
}

void Book::Noted(const absl::Status& word) {
  if (word.ok() || std::exchange(warned_word_, true)) return;
  note_(absl::StrCat(
      "what admins pin and set is not all known to the next hoistd: ",
      std::string(word.message())));
}

void Book::Begin(const PersistedInstance& instance, uint64_t first_number) {
  last_file_ = first_number;
  if (is_open()) Checked(keep_->Write(kInstanceKey, ToRecord(instance)));
}

void Book::Write(const Persisted& kept) {
  if (!is_open()) return;
  std::visit(
      Overloaded{
          [&](const PersistedOnHost& at) { WriteOnHost(at); },
          [&](const PersistedModel& model) {
            if (model.model == nullptr) ForgetPins(model.id);
            Checked(hoistd::WriteModel(model, *keep_));
          },
          [&](const PersistedSlab& slab) { Checked(WriteSlab(slab, *keep_)); },
          [&](const PersistedCopy& copy) { Checked(WriteCopy(copy, *keep_)); },
          [&](const PersistedSession& session) {
            Checked(WriteSession(session, *keep_));
          },
          [&](const PersistedLease& lease) {
            Checked(WriteLease(lease, *keep_));
          },
          [&](const PersistedPin& pin) { WritePin(pin); },
          [&](const PersistedPlanEnd& plan) {
            Checked(ErasePlan(plan.id, *keep_));
          },
          [&](const PersistedArena& arena) {
            Checked(WriteArena(arena, *keep_));
          },
      },
      kept);
}

// A failed write loses the record. A failed erase leaves a false one.
void Book::WriteOnHost(const PersistedOnHost& at) {
  const absl::Status written = hoistd::WriteOnHost(at, host_, *keep_);
  if (std::holds_alternative<std::monostate>(at.what)) return Checked(written);
  if (written.ok() || std::exchange(warned_host_, true)) return;
  note_(absl::StrCat("not all that lies on the host outlives hoistd: ",
                     std::string(written.message())));
}

// Without it no lease of the model could resume, and so nothing on devices.
void Book::WriteModel(const Model& model, const SourceFiles& files) {
  if (is_open()) Checked(WriteSpec(model, files));
}

absl::Status Book::WriteSpec(const Model& model, const SourceFiles& files) {
  const std::string spec = ToRecord(*model.spec);
  HOIST_ASSIGN_OR_RETURN(const hoist::UniqueFd memfd,
                         ToAbsl(hoist::CreateMemfd("hoist-spec", spec.size())));
  HOIST_ASSIGN_OR_RETURN(
      const hoist::Mapping mapping,
      ToAbsl(hoist::Mapping::OfFd(memfd.get(), spec.size(),
                                  hoist::Mapping::Access::kReadWrite)));
  std::memcpy(mapping.data(), spec.data(), spec.size());
  ModelRecord record;
  record.owner = model.owner;
  record.readers = model.readers;
  record.name = model.spec->name;
  record.spec_hash = Xxh3(std::as_bytes(std::span(spec)));
  std::vector<int> fds;
  for (const std::shared_ptr<const SourceFile>& file : files) {
    record.files.push_back(++last_file_);
    fds.push_back(file->fd());
  }
  record.spec = ++last_file_;
  fds.push_back(memfd.get());
  return WriteFiles(model.id, record, fds, *keep_);
}

void Book::WritePlan(const PlanRecord& plan, const LaneShare& lane) {
  if (is_open()) Checked(hoistd::WritePlan(plan, lane, *keep_));
}

void Book::Erase(PersistedKey key) {
  if (is_open()) Checked(keep_->Erase(key));
}

void Book::EraseOnHost(uint64_t offset) {
  if (is_open()) Checked(hoistd::EraseOnHost(offset, *keep_));
}

void Book::DropNode(const std::map<PersistedKey, std::string>& records) {
  if (is_open()) Checked(hoistd::DropNode(records, *keep_));
}

void Book::DropDescriptors(const std::set<PersistedKey>& keys) {
  if (keys.empty() || !is_open()) return;
  Checked(keep_->DropDescriptors(
      [&](PersistedKey key) { return keys.contains(key); }));
}

absl::Status Book::StoreAgain() {
  return keep_ == nullptr ? absl::OkStatus() : keep_->StoreAgain();
}

void Book::WritePin(const PersistedPin& pin) {
  if (!is_open()) return;
  const auto found = pins_.find(pin.copy);
  if (pin.pinned == (found != pins_.end())) return;
  if (pin.pinned) {
    pins_[pin.copy] = ++last_pin_;
    return Noted(hoistd::WritePin(last_pin_, pin.copy, *keep_));
  }
  Noted(ErasePin(found->second, *keep_));
  pins_.erase(found);
}

bool Book::AdoptPin(uint64_t number, const CopyRef& copy) {
  last_pin_ = std::max(last_pin_, number);
  if (pins_.emplace(copy, number).second) return true;
  if (is_open()) Noted(ErasePin(number, *keep_));
  return false;
}

void Book::ForgetPins(ModelId model) {
  auto at = pins_.lower_bound(CopyRef{{model, GroupIndex(0)}, {}});
  while (at != pins_.end() && at->first.key.model == model) {
    Noted(ErasePin(at->second, *keep_));
    at = pins_.erase(at);
  }
}

void Book::WriteShare(PlanId plan, const ShareOptions& share) {
  if (!is_open()) return;
  const absl::Status written = hoistd::WriteShare(plan, share, *keep_);
  // A plan that ends with this process has no record.
  if (!absl::IsNotFound(written)) Noted(written);
}

void Book::WriteLoadCap(DeviceIndex device, const LoadCap& cap) {
  if (is_open()) Noted(hoistd::WriteLoadCap(device, cap, *keep_));
}

void Book::EraseLoadCap(DeviceIndex device) {
  if (is_open()) Noted(hoistd::EraseLoadCap(device, *keep_));
}

}  // namespace hoistd
