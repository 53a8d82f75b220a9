// What is looked at.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/sim/system/world.h"
#include "tests/support/recount.h"

namespace hoistd::sim {
namespace {

// As a snapshot calls it.
constexpr absl::string_view kLeftByTheLast =
    "of files, as the last hoistd left it";

bool Meet(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

std::string Shown(const Holdings& holdings) {
  std::string text;
  for (const auto& [what, amount] : holdings.amounts) {
    absl::StrAppend(&text, " ", static_cast<int>(what), ":", amount);
  }
  for (const auto& [device, bytes] : holdings.device_bytes) {
    absl::StrAppend(&text, " device ", device.number(), ":", bytes);
  }
  return absl::StrCat(text, " in ", holdings.uses.size(), " copies");
}

}  // namespace

void World::CheckBooks() {
  const Node& node = engine_->node();
  node.CheckBooks();
  const std::map<User, Holdings> counted = testing::CountHoldings(node.books());
  if (node.quota().users() != counted) {
    std::string text = "the quotas' book says otherwise than what is there:";
    for (const auto& [user, holdings] : node.quota().users()) {
      absl::StrAppend(&text, "\nbook: ", ToString(user), Shown(holdings));
    }
    for (const auto& [user, holdings] : counted) {
      absl::StrAppend(&text, "\ncounted: ", ToString(user), Shown(holdings));
    }
    Violation(Check::kBooks, text);
  }
  // What plans hold may be more, by what is urgent.
  for (const auto& [user, holdings] : counted) {
    for (const Quota what : {Quota::kSessions, Quota::kPlans, Quota::kModels,
                             Quota::kPublishedBytes}) {
      if (holdings.Of(what) <= node.quota().LimitOf(user, what)) continue;
      Violation(Check::kBooks,
                absl::StrCat("a user holds more than one may:", Shown(holdings),
                             "; limit of ", static_cast<int>(what), " is ",
                             node.quota().LimitOf(user, what)));
    }
    for (const auto& [device, bytes] : holdings.device_bytes) {
      CheckDeviceQuota(user, device, bytes);
    }
  }
}

// A plan that had ended, and whose ring was not free yet, stands again until
// its session has said what it has: so more than one may hold can be taken
// over, and never becomes more.
void World::CheckDeviceQuota(User user, DeviceIndex device, uint64_t bytes) {
  const uint64_t limit = engine_->node().quota().DeviceLimitOf(user, device);
  const auto over = taken_over_.find({user, device});
  if (bytes <= limit) {
    if (over != taken_over_.end()) taken_over_.erase(over);
    return;
  }
  if (over != taken_over_.end() && bytes <= over->second) {
    over->second = bytes;
    return;
  }
  Violation(Check::kBooks,
            absl::StrCat(ToString(user), " holds ", bytes, " bytes of device ",
                         device.number(), ", more than ", limit));
}

void World::CheckBytes(DeviceIndex device, uint64_t offset, GroupKey key,
                       const std::string& who) {
  const std::string& image = images_.at(key);
  const std::byte* const there = devices_[device.number()]->At(offset);
  // What lies between a file's tensors is anybody's (Group::runs).
  std::vector<std::pair<uint64_t, uint64_t>> runs = {{0, image.size()}};
  const ModelSpec& spec = *all_models_.at(key.model)->spec;
  if (!spec.published) {
    runs.clear();
    for (const Tensor& tensor : spec.groups[key.group.number()]->tensors) {
      runs.emplace_back(tensor.offset, tensor.offset + tensor.bytes);
    }
  }
  std::optional<uint64_t> wrong;
  for (const auto& [from, to] : runs) {
    for (uint64_t b = from; b < to && !wrong.has_value(); ++b) {
      if (there[b] != static_cast<std::byte>(image[b])) wrong = b;
    }
  }
  if (!wrong.has_value()) return;
  const uint64_t at = *wrong;
  Violation(Check::kBytes,
            absl::StrCat(who, ": group ", key.group.number(), " of model ",
                         key.model.number(), " differs from byte ", at, " of ",
                         image.size(), " on"));
}

void World::Opened(Worker& worker, DeviceIndex device,
                   const std::vector<SlabUse>& slabs) {
  for (const SlabUse& use : slabs) {
    worker.slabs[{device, use.slab.id}] = use.slab;
  }
}

void World::CheckOpen(const Worker& worker, DeviceIndex device, uint64_t offset,
                      uint64_t bytes) {
  uint64_t covered = 0;
  for (const auto& [place, slab] : worker.slabs) {
    if (place.first != device) continue;
    const uint64_t begin = std::max(slab.offset, offset);
    const uint64_t end = std::min(slab.offset + slab.bytes, offset + bytes);
    if (begin < end) covered += end - begin;
  }
  if (covered == bytes) return;
  Violation(Check::kSlabs, absl::StrCat("worker ", worker.number,
                                        " was given no slab for what it uses"));
}

// Leases stay as they are for as long as they are held, slots while a kernel
// reads them.
void World::Written(DeviceIndex device, uint64_t offset, uint64_t bytes) {
  for (const auto& [number, worker] : workers_) {
    for (const auto& [id, lease] : worker->leases) {
      if (lease.device != device ||
          !Meet(lease.offset, lease.bytes, offset, bytes)) {
        continue;
      }
      Violation(Check::kOverwrite,
                absl::StrCat("worker ", number, "'s lease of group ",
                             lease.key.group.number(), " is written to"));
    }
    for (const auto& [id, entry] : worker->plans) {
      if (entry.plan->grant().device != device || entry.plan->faulted()) {
        continue;
      }
      for (const auto& [group, kernels] : entry.running) {
        const uint64_t image =
            images_.at({entry.plan->grant().model, GroupIndex(group)}).size();
        if (!Meet(entry.plan->OffsetOf(group), image, offset, bytes)) continue;
        Violation(Check::kOverwrite,
                  absl::StrCat("the slot of group ", group,
                               " is written to, which worker ", number,
                               " computes with"));
      }
    }
    for (const auto& [id, arena] : worker->arenas) {
      if (arena.grant.device != device) continue;
      for (const auto& [slab, share] : arena.grant.slabs) {
        if (!Meet(slab.offset, slab.bytes, offset, bytes)) continue;
        Violation(Check::kOverwrite, absl::StrCat("an arena of worker ", number,
                                                  " is written to by another"));
      }
    }
    for (const auto& [at, pieces] : worker->pieces) {
      for (const auto& [piece, shown] : pieces.shown()) {
        if (shown.device != device ||
            !Meet(shown.offset, shown.bytes, offset, bytes)) {
          continue;
        }
        Violation(Check::kOverwrite,
                  absl::StrCat("what a tensor of worker ", number,
                               " shows is written to"));
      }
    }
  }
  HostWritten(devices_[device.number()]->span().subspan(offset, bytes));
}

void World::Destroyed(DeviceIndex device, const SlabSpec& slab) {
  for (const auto& [number, worker] : workers_) {
    if (!worker->slabs.contains({device, slab.id})) continue;
    Violation(Check::kSlabs,
              absl::StrCat("a slab goes that worker ", number, " has open",
                           engine_ == nullptr ? ", as hoistd begins" : ""));
  }
}

void World::HostWritten(std::span<const std::byte> host) {
  for (const auto& device : devices_) {
    if (!device->Reads(host)) continue;
    Violation(Check::kOverwrite, "host memory that a copy reads is written to");
  }
}

// `of`: which files it was registered from.
void World::Known(Worker* worker, const ModelPtr& model,
                  std::optional<FileModel> of) {
  if (of.has_value()) {
    const auto [known, added] = file_models_.emplace(model->id, *of);
    if (known->second != *of) {
      Violation(Check::kProtocol, "a model is attached to other weights");
    }
    for (uint32_t g = 0; added && g < model->spec->groups.size(); ++g) {
      images_[{model->id, GroupIndex(g)}] =
          SimModels::ImageOf(*of, *model->spec->groups[g]);
    }
  }
  for (uint32_t g = 0; g < model->spec->groups.size(); ++g) {
    // Published by another worker, whose answer came first.
    if (!images_.contains({model->id, GroupIndex(g)})) return;
  }
  if (worker != nullptr) worker->models[model->id] = model;
  all_models_[model->id] = model;
}

void World::Look(absl::AnyInvocable<void(const NodeView&)> look) {
  bool answered = false;
  engine_->Ask(LookArgs{std::move(look)},
               [&](const absl::Status&) { answered = true; });
  while (!answered) Pump();
}

// What is where, for who reads a report.
std::string World::Picture() {
  std::string text;
  if (engine_ == nullptr) return text;
  Look([&](const NodeView& view) {
    for (const TierUse& tier : view.node.picture().Tiers(view.now)) {
      absl::StrAppend(&text, "\n  ", hoistd::ToString(tier.at), ": ",
                      tier.used_bytes / kPage, " of ",
                      tier.capacity_bytes / kPage, " pages used, ",
                      tier.largest_free_bytes / kPage, " free at once, ",
                      tier.leased_bytes / kPage, " leased, ",
                      tier.pinned_bytes / kPage, " pinned");
    }
    for (const auto& [id, plan] : view.node.tenure().plans().standing()) {
      absl::StrAppend(&text, "\n  plan ", id.number(), " of session ",
                      plan.session.number(), ", model ",
                      plan.grant.model.number(), ": holds ", plan.held.size(),
                      " groups", plan.ended ? ", has ended" : "");
    }
    for (const LaneStats& lane : view.lanes) {
      absl::StrAppend(&text, "\n  plan ", lane.plan.number(), " has copied ",
                      lane.copied_bytes / kPage, " pages");
    }
    for (const auto& [id, model] : view.node.copies().models()) {
      for (const GroupEntry& group : model->groups) {
        absl::StrAppend(&text, "\n  ", model->model->spec->name, "/",
                        group.group->name, " of model ", id.number(), ", ",
                        group.group->image_bytes,
                        " bytes:", group.spilled.has_value() ? " spilled" : "");
        for (const auto& [place, copy] : group.copies) {
          absl::StrAppend(&text, " ", hoistd::ToString(place.at), " ",
                          hoistd::ToString(copy.state), " x", copy.leases,
                          copy.pinned ? " pinned" : "");
        }
      }
    }
  });
  return text;
}

void World::CheckEmpty(const NodeView& view) {
  const Tenure& tenure = view.node.tenure();
  if (!view.node.copies().models().empty() ||
      !tenure.sessions().all().empty() || !tenure.plans().standing().empty()) {
    Violation(Check::kGivenBack, "something is left that was forgotten");
  }
  for (const TierUse& tier : view.node.picture().Tiers(view.now)) {
    uint64_t used = tier.used_bytes + tier.leased_bytes + tier.pinned_bytes;
    for (const Holder& holder : tier.holders) {
      // That stays for whoever comes.
      if (lives_ > 1 && holder.name == kLeftByTheLast) used -= holder.bytes;
    }
    if (used == 0) continue;
    Violation(Check::kGivenBack,
              absl::StrCat(used, " bytes of ", hoistd::ToString(tier.at),
                           " are used, by nobody"));
  }
}

void World::GiveAllBack() {
  for (const auto& [number, worker] : workers_) {
    std::vector<PlanId> plans;
    for (const auto& [id, entry] : worker->plans) plans.push_back(id);
    for (const PlanId plan : plans) EndPlan(*worker, plan);
    while (!worker->pieces.empty()) {
      CloseInPlace(*worker, worker->pieces.begin()->first);
    }
    while (!worker->arenas.empty()) {
      CloseArena(*worker, worker->arenas.begin()->first);
    }
    while (!worker->leases.empty()) {
      Release(*worker, worker->leases.begin()->first);
    }
    while (!worker->asks.empty()) AnswerAsk(*worker);
  }
  Rest();
  Look([&](const NodeView& view) {
    const Tenure& tenure = view.node.tenure();
    for (const auto& [id, session] : tenure.sessions().all()) {
      const size_t leases = session.leases.size();
      const size_t plans = tenure.plans().LiveOf(id).size();
      if (leases == 0 && plans == 0) continue;
      Violation(Check::kGivenBack,
                absl::StrCat("a worker gave all back and has ", leases,
                             " leases, ", plans, " plans"));
    }
  });
  while (!workers_.empty()) Die(workers_.begin()->first);
  Rest();
  std::vector<std::string> models;
  Look([&](const NodeView& view) {
    for (const auto& [id, entry] : view.node.copies().models()) {
      models.push_back(hoistd::ToString(
          OwnedName{entry->model->owner, entry->model->spec->name}));
    }
  });
  for (const std::string& model : models) {
    CopySelector which;
    which.model = model;
    which.asker = {.uid = User(0), .admin = true};
    using Totals = absl::StatusOr<CopyTotals>;
    engine_->Ask(UnpinArgs{which}, Reply<Totals>("unpin", nullptr, nullptr));
    engine_->Ask(EvictArgs{which, /*forget=*/true},
                 Reply<Totals>("evict --forget", nullptr, nullptr));
  }
  Rest();
  Look([&](const NodeView& view) { CheckEmpty(view); });
  if (!engine_->node().quota().users().empty()) {
    Violation(Check::kGivenBack, "somebody still holds something");
  }
}

}  // namespace hoistd::sim
