// What was there before this hoistd began: by the store, and by whoever kept
// the host's memory.
#include <map>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/kept_host.h"

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

void Engine::Restore() {
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
  std::map<std::pair<User, std::string>, uint32_t> missing;
  std::map<std::pair<User, std::string>, uint32_t> next;
  for (const auto& [at, group] : all) {
    const absl::Status restored = node_.Restore(group);
    if (!restored.ok()) {
      AddNote(std::string(restored.message()));
      continue;
    }
    const uint32_t index = std::get<GroupIndex>(at).number();
    uint32_t& expected = next[{group.owner, group.model}];
    if (index > expected) {
      missing[{group.owner, group.model}] += index - expected;
    }
    expected = index + 1;
  }
  for (const auto& [model, groups] : missing) {
    AddNote(absl::StrCat("model ", model.second, " of ", ToString(model.first),
                         " is back without ", groups,
                         " of its groups; publish it again"));
  }
  RestoreParts();
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

void Engine::KeepOnHost() {
  for (const KeptOnHost& at : node_.TakeKept()) {
    HOIST_CHECK(parts_.keep != nullptr);
    if (abandoned_) continue;
    const absl::Status kept = WriteOnHost(at, parts_.mover.host, *parts_.keep);
    if (kept.ok()) continue;
    if (std::holds_alternative<std::monostate>(at.what)) {
      Abandon();
    } else if (!std::exchange(told_unkept_, true)) {
      AddNote(absl::StrCat("not all that lies on the host outlives hoistd: ",
                           std::string(kept.message())));
    }
  }
}

// It says that something lies where it does no more.
void Engine::Abandon() {
  parts_.keep->Abandon();
  abandoned_ = true;
  AddNote("nothing outlives this hoistd any more: its book is full");
}

}  // namespace hoistd
