// A hoistd that dies, and the next one, which goes on with what it left.
#include <algorithm>
#include <iterator>

#include "daemon/core/node_restore.h"
#include "daemon/model/published_group.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing {

void NodeRig::Note(const Persisted& kept) {
  if (const auto* model = std::get_if<PersistedModel>(&kept)) {
    if (model->model == nullptr) {
      book_.models.erase(model->id);
      std::erase_if(book_.pins, [&](const CopyRef& copy) {
        return copy.key.model == model->id;
      });
    } else {
      book_.models.insert(model->id);
    }
  } else if (const auto* slab = std::get_if<PersistedSlab>(&kept)) {
    const auto key = std::pair(slab->device, slab->slab.id);
    book_.slabs.erase(key);
    if (slab->keep_fd >= 0) book_.slabs[key] = *slab;
  } else if (const auto* copy = std::get_if<PersistedCopy>(&kept)) {
    const auto key = std::pair(copy->device, copy->offset);
    book_.copies.erase(key);
    if (copy->key.has_value()) book_.copies[key] = *copy;
  } else if (const auto* session = std::get_if<PersistedSession>(&kept)) {
    book_.sessions.erase(session->id);
    if (session->args.has_value()) book_.sessions[session->id] = *session->args;
  } else if (const auto* lease = std::get_if<PersistedLease>(&kept)) {
    book_.leases.erase(lease->id);
    if (lease->copy.has_value()) book_.leases[lease->id] = *lease;
  } else if (const auto* pin = std::get_if<PersistedPin>(&kept)) {
    const bool changes = pin->pinned ? book_.pins.insert(pin->copy).second
                                     : book_.pins.erase(pin->copy) > 0;
    EXPECT_TRUE(changes || coming_pins_.contains(pin->copy));
  } else if (const auto* plan = std::get_if<PersistedPlanEnd>(&kept)) {
    book_.plans.erase(plan->id);
  } else if (const auto* arena = std::get_if<PersistedArena>(&kept)) {
    book_.arenas.erase(arena->id);
    if (!arena->offsets.empty()) book_.arenas[arena->id] = *arena;
  }
}

std::set<CopyRef> NodeRig::Pinned() const {
  std::set<CopyRef> pinned;
  for (const auto& [id, model] : node_->copies().models()) {
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      for (const auto& [place, copy] : model->groups[g].copies) {
        if (copy.state == Residency::kAbsent || !copy.pinned) continue;
        pinned.insert({{id, GroupIndex(g)}, {place.at, false}});
      }
    }
  }
  return pinned;
}

// As the engine does: what is there is pinned at once, the rest is brought.
// `before`: what was pinned when the last hoistd died; none of it is let go.
// But plans that had ended are in the book until their sessions have said so,
// and what they were promised is in the way of a pin until then.
void NodeRig::PutPinsBack(const std::set<CopyRef>& before) {
  NodeRestore restore(*node_);
  for (const CopyRef& copy : book_.pins) {
    if (restore.AddPin(copy)) continue;
    coming_pins_[copy] = RequestId();
    const bool was_kept =
        copy.place.at.tier == Tier::kDevice &&
        infos_[copy.place.at.device.number()].backing != Backing::kIpc;
    EXPECT_FALSE(was_kept && before.contains(copy)) << "a pin is let go";
  }
}

void NodeRig::BringPins() {
  const std::map<CopyRef, RequestId> coming = coming_pins_;
  for (const auto& [copy, none] : coming) {
    BringArgs bring;
    bring.request = NewRequest(SessionId());
    bring.copy = copy;
    bring.deadline = now + absl::Seconds(10);
    bring.pin = true;
    coming_pins_[copy] = bring.request;
    Effects effects;
    node_->Bring(bring, now, effects);
    Take(std::move(effects));
    CloseAtOnce();
  }
}

void NodeRig::PinAnswered(const Answer& answer) {
  for (auto it = coming_pins_.begin(); it != coming_pins_.end(); ++it) {
    if (it->second != answer.request) continue;
    if (!answer.status.ok()) book_.pins.erase(it->first);
    coming_pins_.erase(it);
    return;
  }
}

// An admin's word is known to a successor as soon as it counts.
void NodeRig::CheckPins() const {
  const std::set<CopyRef> pinned = Pinned();
  std::set<CopyRef> known = book_.pins;
  for (const auto& [copy, request] : coming_pins_) {
    if (!pinned.contains(copy)) known.erase(copy);
  }
  EXPECT_EQ(pinned.size(), known.size());
  EXPECT_TRUE(pinned == known) << "pins that a successor would not know";
}

// A successor that begins now has all that was published and lies on the host.
void NodeRig::CheckPersisted() const {
  size_t published = 0;
  for (const auto& [id, model] : node_->copies().models()) {
    if (!model->model->spec->published) continue;
    for (const GroupEntry& group : model->groups) {
      const auto host = group.copies.find(kHost);
      if (host != group.copies.end() && host->second.usable()) ++published;
    }
  }
  EXPECT_EQ(kept_.size(), published + laid_.size());
  for (const auto& [offset, group] : kept_) {
    ExpectImage(host_, offset, *group, "a kept image was overwritten");
  }
  CheckPins();
  for (const auto& [offset, part] : persisted_parts_) {
    for (uint64_t at = 0; at < part.bytes; at += kPage) {
      EXPECT_EQ(host_.at((offset + at) / kPage),
                sheets_.at({part.file, (part.from + at) / kPage}).get())
          << "a kept part was overwritten";
    }
  }
}

// What the store and the host's memory have of published models.
std::vector<RestoredGroup> NodeRig::LeftPublished() const {
  std::vector<RestoredGroup> all;
  for (const auto& [key, entry] : node_->copies().models()) {
    const hoistd::Model& model = *entry->model;
    const ModelSpec& spec = *model.spec;
    if (!spec.published) continue;
    std::vector<RestoredGroup> groups;
    bool lost = false;
    for (uint32_t g = 0; g < spec.groups.size(); ++g) {
      if (IsMissing(*spec.groups[g])) continue;
      RestoredGroup group;
      group.index = GroupIndex(g);
      group.model = spec.name;
      group.owner = model.owner;
      group.readers = model.readers;
      group.group = spec.groups[g];
      group.content = spec.group_contents[g];
      for (const auto& [offset, kept] : kept_) {
        if (kept == group.group.get()) group.host_offset = offset;
      }
      for (const auto& [id, spilled] : spills_) {
        if (spilled == group.group.get()) group.spill = id;
      }
      if (group.host_offset.has_value() || group.spill.has_value()) {
        groups.push_back(std::move(group));
      } else {
        lost = true;
      }
    }
    // With one lost, its place may be another's soon.
    for (RestoredGroup& group : groups) {
      if (!lost) group.model_id = model.id;
      all.push_back(std::move(group));
    }
  }
  return all;
}

absl::Status NodeRig::PutBack(const std::map<ModelId, hoistd::Model>& models,
                              Node& node) const {
  NodeRestore restore(node);
  for (const ModelId id : book_.models) {
    const hoistd::Model& model = models.at(id);
    const absl::Status status =
        model.spec->published
            ? restore.CheckModel(id, model.owner, model.spec->name)
            : restore.AddModel(id, model.spec, model.owner, model.readers);
    if (!status.ok()) return status;
  }
  std::vector<PersistedSlab> slabs;
  for (const auto& [key, slab] : book_.slabs) slabs.push_back(slab);
  std::sort(slabs.begin(), slabs.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.device, a.slab.offset) <
           std::tuple(b.device, b.slab.offset);
  });
  absl::Status status;
  for (const PersistedSlab& slab : slabs) {
    const FakeDevice& device = *devices_[slab.device.number()];
    status.Update(restore.AddSlab(slab, device.Share(slab.slab.id).value()));
  }
  for (const auto& [place, copy] : book_.copies) {
    if (status.ok()) status.Update(restore.AddCopy(copy, now));
  }
  for (const auto& [id, args] : book_.sessions) {
    if (status.ok()) status.Update(restore.AddSession(id, args, now));
  }
  for (const auto& [id, lease] : book_.leases) {
    if (!status.ok()) break;
    status.Update(restore.AddLease(id, lease.session, *lease.copy));
  }
  for (const auto& [id, plan] : book_.plans) {
    if (status.ok()) status.Update(restore.AddPlan(plan.first, plan.second));
  }
  for (const auto& [id, arena] : book_.arenas) {
    if (status.ok()) status.Update(restore.AddArena(arena));
  }
  restore.NoMoreArenas();
  return status;
}

// What was under way is nobody's, and its memory is of no bytes.
void NodeRig::Forget() {
  for (auto& [id, label] : writing_) graves_.push_back(std::move(label));
  writing_.clear();
  moving_.clear();
  hurried_.clear();
  slab_work_.clear();
  open_.clear();
  abandoned_.clear();
  coming_pins_.clear();
  asks_.clear();
  closed_.clear();
  ended_.clear();
  for (auto& [id, plan] : plans_) {
    plan.ended = false;
    plan.asked.clear();
    plan.holds.clear();
  }
}

bool NodeRig::Die(std::optional<uint64_t> ready_pages) {
  resuming_ = true;
  const std::vector<RestoredGroup> published = LeftPublished();
  const std::set<CopyRef> pinned = Pinned();
  std::map<ModelId, hoistd::Model> models;
  for (const auto& [id, entry] : node_->copies().models()) {
    models[id] = *entry->model;
  }
  std::set<PlanId> over(ended_.begin(), ended_.end());
  Forget();
  for (auto& device : devices_) {
    const std::map<SlabId, SlabSpec> slabs = device->slabs();
    for (const auto& [id, slab] : slabs) {
      if (!book_.slabs.contains({device->info().index, id})) {
        EXPECT_OK(device->DestroySlab(id));
      }
    }
  }
  const auto begin = [&](Node& node) {
    for (const RestoredGroup& group : published)
      EXPECT_OK(node.registry().Restore(group));
  };
  Node trial(node_options_, infos_);
  begin(trial);
  const bool taken = PutBack(models, trial).ok();
  if (!taken) DropAll();
  node_ = std::make_unique<Node>(node_options_, infos_);
  laid_.clear();
  for (const auto& [offset, group] : kept_) laid_.insert(group);
  NodeRestore(*node_).SkipIds(uint64_t{++generation_} << 20);
  begin(*node_);
  if (taken) {
    EXPECT_OK(PutBack(models, *node_));
    PutPinsBack(over.empty() ? pinned : std::set<CopyRef>());
  }
  const std::map<uint64_t, PersistedPart> parts = persisted_parts_;
  for (const auto& [offset, part] : parts) {
    EXPECT_OK(node_->supply().restored().AddPart(offset, part));
  }
  node_->registry().EndOfGone();
  Effects effects;  // Of all at once: Take compares the books.
  for (const SessionId session : EndedByDeath()) {
    node_->CloseSession(session, now, effects);
  }
  Take(std::move(effects));
  GrowHost(ready_pages.value_or(options_.host_pages));
  if (taken) ResumeAll(over);
  BringPins();
  resuming_ = false;
  Check();
  return taken;
}

// Nobody of it goes on.
void NodeRig::DropAll() {
  book_ = {};
  leases_.clear();
  for (auto& [id, label] : rings_) graves_.push_back(std::move(label));
  rings_.clear();
  plans_.clear();
  for (auto& [id, arena] : arenas_) graves_.push_back(std::move(arena.label));
  arenas_.clear();
  open_slabs_.clear();
  uses_.clear();
  for (auto& device : devices_) {
    const std::map<SlabId, SlabSpec> slabs = device->slabs();
    for (const auto& [id, slab] : slabs) EXPECT_OK(device->DestroySlab(id));
  }
}

// Who had legacy IPC memory has it no more, and ends.
std::set<SessionId> NodeRig::EndedByDeath() {
  std::set<SessionId> ended;
  for (const auto& [id, lease] : leases_) {
    if (!book_.leases.contains(id)) ended.insert(lease.first);
  }
  for (const auto& [id, plan] : plans_) {
    if (!book_.plans.contains(id)) ended.insert(plan.session);
  }
  std::erase_if(leases_, [&](const auto& lease) {
    return ended.contains(lease.second.first);
  });
  // Those that the node knows end with their sessions.
  std::erase_if(plans_, [&](const auto& plan) {
    return !book_.plans.contains(plan.first);
  });
  for (const SessionId session : ended) {
    ArenasOver(session);
    open_slabs_.erase(session);
    uses_.erase(session);
  }
  for (auto& [session, slabs] : open_slabs_) {
    std::erase_if(slabs, [&](const auto& slab) {
      return !book_.slabs.contains(slab.first);
    });
  }
  return ended;
}

// Each session says what it has.
void NodeRig::ResumeAll(const std::set<PlanId>& over) {
  const std::map<SessionId, OpenSessionArgs> sessions = book_.sessions;
  for (const auto& [session, args] : sessions) {
    ResumeArgs has;
    for (const auto& [id, lease] : leases_) {
      if (lease.first != session) continue;
      has.leases.push_back(id);
    }
    for (const auto& [id, plan] : plans_) {
      if (plan.session != session) continue;
      if (!over.contains(id)) has.plans.push_back(id);
    }
    for (const auto& [id, arena] : arenas_) {
      if (arena.session == session) has.arenas.push_back(id);
    }
    for (const auto& [at, slab] : open_slabs_[session]) {
      has.slabs.push_back({at.first, at.second});
    }
    Effects effects;
    const Resumed resumed = node_->Resume(session, has, now, effects);
    EXPECT_TRUE(resumed.lost_leases.empty());
    EXPECT_TRUE(resumed.lost_plans.empty());
    EXPECT_TRUE(resumed.lost_arenas.empty());
    Take(std::move(effects));
    CloseAtOnce();
  }
}

}  // namespace hoistd::testing
