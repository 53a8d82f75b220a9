// What was there before this hoistd began: by the store, and by whoever kept
// the host's memory.
#include <map>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/overloaded.h"
#include "daemon/core/node_ending.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/kept_host.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

// Of all models, by owner, model and index: the order to restore them in.
using RestoredGroups =
    std::map<std::tuple<User, std::string, GroupIndex, std::string>,
             RestoredGroup>;

RestoredGroup& GroupOf(const SpillMeta& meta, RestoredGroups& all) {
  RestoredGroup& group =
      all[{meta.owner, meta.model, meta.group_index, meta.group.name}];
  if (group.group == nullptr) {
    group.model = meta.model;
    group.owner = meta.owner;
    group.readers = meta.readers;
    group.group = std::make_shared<Group>(meta.group);
    group.content = meta.group_content;
  }
  return group;
}

}  // namespace

// What the store and the keeper have of published models, in order.
std::vector<RestoredGroup> Engine::Published() {
  RestoredGroups all;
  for (const FoundImage& image : parts_.kept.images) {
    GroupOf(image.meta, all).host_offset = image.host_offset;
  }
  if (parts_.mover.store != nullptr) {
    for (const SpillRecord& record : parts_.mover.store->List()) {
      RestoredGroup& group = GroupOf(*record.meta, all);
      if (group.content == record.meta->group_content) group.spill = record.id;
    }
  }
  std::map<std::pair<User, std::string>, ModelId> ids;
  for (const auto& [id, model] : parts_.found.models) {
    if (model.spec == 0) ids[{model.owner, model.name}] = id;
  }
  std::map<std::pair<User, std::string>, uint32_t> missing;
  std::map<std::pair<User, std::string>, uint32_t> next;
  std::vector<RestoredGroup> published;
  for (auto& [at, group] : all) {
    const uint32_t index = std::get<GroupIndex>(at).number();
    uint32_t& expected = next[{group.owner, group.model}];
    if (index > expected) {
      missing[{group.owner, group.model}] += index - expected;
    }
    expected = index + 1;
    published.push_back(std::move(group));
  }
  NoteMissing(next);
  for (const auto& [model, groups] : missing) {
    AddNote(absl::StrCat("model ", model.second, " of ", ToString(model.first),
                         " is back without ", groups,
                         " of its groups; publish it again"));
  }
  for (RestoredGroup& group : published) {
    const std::pair<User, std::string> model = {group.owner, group.model};
    // With one missing, the others' numbers are not what they were.
    const auto id = ids.find(model);
    if (id != ids.end() && !missing.contains(model)) {
      group.model_id = id->second;
    }
  }
  return published;
}

// Of what was published last no image need be there to tell.
void Engine::NoteMissing(const ModelRoll::Models& there) {
  if (parts_.mover.store == nullptr) return;
  for (const auto& [model, groups] : parts_.mover.store->models()) {
    const auto& [owner, name] = model;
    const auto found = there.find(model);
    const uint32_t have = found == there.end() ? 0 : found->second;
    if (have >= groups) continue;
    AddNote(have == 0
                ? absl::StrCat("model ", name, " of ", ToString(owner),
                               " is gone with all of its ", groups,
                               " groups, which no disk had; publish it again")
                : absl::StrCat("model ", name, " of ", ToString(owner),
                               " is back without the last ", groups - have,
                               " of its ", groups,
                               " groups; publish it again"));
    // Said once, since nobody could forget it.
    if (have == 0) parts_.mover.store->NoteModel(owner, name, 0);
  }
}

void Engine::AddNote(std::string note) {
  // Users' names stand in it.
  SPDLOG_WARN("{}", absl::CHexEscape(note));
  notes_.Add(std::move(note));
}

void Engine::RestorePublished(const std::vector<RestoredGroup>& published) {
  for (const RestoredGroup& group : published) {
    const absl::Status restored = node_.Restore(group);
    if (!restored.ok()) AddNote(std::string(restored.message()));
  }
}

void Engine::Restore() {
  instance_.id = parts_.new_instance;
  // All are told the same, but the last, if that is read in place.
  if (!parts_.mover.links.empty()) {
    load_rate_ = parts_.mover.links.front()->load_rate();
  }
  std::vector<RestoredGroup> published = Published();
  std::map<ModelId, OpenedModel> opened;
  const bool may_adopt = parts_.keep != nullptr && parts_.found.status.ok();
  absl::Status adopted =
      may_adopt ? Adopt(published, opened) : parts_.found.status;
  if (!adopted.ok() && parts_.keep != nullptr) DropFound(adopted);
  adopted.Update(may_adopt ? absl::OkStatus()
                           : absl::NotFoundError("nothing is kept"));
  BeginInstance(adopted.ok());
  RestorePublished(published);
  if (adopted.ok()) {
    HOIST_CHECK(PutBack(opened, node_).ok());
    for (auto& [id, model] : opened) {
      mover_->AddFiles(id, std::move(model.files));
    }
    AdoptPins();
    AdoptLoadCaps();
  }
  RestoreParts();
  // Sessions that go on are there by now.
  NodeEnding(node_).EndOfGone();
  Post([this](Effects& effects) { node_.Tick(Now(), effects); });
  WriteKept();
}

void Engine::StoreAgain(DoneStatus done) {
  Post([this, done = std::move(done)](Effects&) mutable {
    done(parts_.keep == nullptr ? absl::OkStatus() : parts_.keep->StoreAgain());
  });
}

void Engine::SaveAll(Done<uint64_t> left) {
  Post([this, left = std::move(left)](Effects& effects) mutable {
    left(node_.SaveAll(Now(), effects));
  });
}

void Engine::RestoreParts() {
  for (const FoundPart& found : parts_.kept.parts) {
    const absl::Status restored = node_.Restore(found.host_offset, found.part);
    if (restored.ok()) continue;
    AddNote(std::string(restored.message()));
    // Others' bytes will lie there.
    if (!EraseOnHost(found.host_offset, *parts_.keep).ok()) Abandon();
  }
}

absl::Status Engine::Write(const Kept& kept) {
  Keep& keep = *parts_.keep;
  return std::visit(
      Overloaded{
          [&](const KeptOnHost& at) {
            const absl::Status written =
                WriteOnHost(at, parts_.mover.host, keep);
            const bool gone = std::holds_alternative<std::monostate>(at.what);
            if (written.ok() || gone) return written;
            if (!std::exchange(told_unkept_, true)) {
              AddNote(absl::StrCat(
                  "not all that lies on the host outlives hoistd: ",
                  std::string(written.message())));
            }
            return absl::OkStatus();
          },
          [&](const KeptModel& model) {
            if (model.model == nullptr) ForgetPins(model.id);
            return WriteModel(model, keep);
          },
          [&](const KeptSlab& slab) { return WriteSlab(slab, keep); },
          [&](const KeptCopy& copy) { return WriteCopy(copy, keep); },
          [&](const KeptSession& session) {
            return WriteSession(session, keep);
          },
          [&](const KeptLease& lease) { return WriteLease(lease, keep); },
          [&](const KeptPin& pin) {
            KeepPin(pin);
            return absl::OkStatus();
          },
          [&](const KeptPlanGone& plan) { return ErasePlan(plan.id, keep); },
          [&](const KeptArena& arena) { return WriteArena(arena, keep); },
      },
      kept);
}

void Engine::WriteKept() {
  for (const Kept& kept : node_.TakeKept()) {
    HOIST_CHECK(parts_.keep != nullptr);
    if (!abandoned_ && !Write(kept).ok()) Abandon();
  }
}

// It says that something lies where it does no more.
void Engine::Abandon() {
  parts_.keep->Abandon();
  abandoned_ = true;
  AddNote(
      "nothing outlives this hoistd any more: what it has could not be written "
      "down");
}

}  // namespace hoistd
