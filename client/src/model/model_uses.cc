#include "client/src/model/model_uses.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "client/src/base/fork_guard.h"

namespace hoist {

struct ModelUses::Held {
  Held(std::shared_ptr<ModelUses> its_uses, ModelPtr its_table)
      : uses(std::move(its_uses)), table(std::move(its_table)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { uses->Release(table->facts().id); }

  const std::shared_ptr<ModelUses> uses;
  const ModelPtr table;
};

ModelUses::ModelUses(Say say)
    : fork_generation_(ForkGeneration()), say_(std::move(say)) {}

ModelUses::Use& ModelUses::At(const ModelTable& table) {
  Use& use = models_[table.facts().id];
  if (use.name.empty()) use.name = table.facts().name;
  return use;
}

// Rolls the count back if an allocation fails: a count without its Held would
// never fall.
ModelPtr ModelUses::HoldLocked(ModelPtr table) {
  Use& use = At(*table);
  ++use.holders;
  std::shared_ptr<Held> held;
  try {
    held = std::make_shared<Held>(shared_from_this(), std::move(table));
  } catch (...) {
    --use.holders;
    throw;
  }
  return ModelPtr(held, held->table.get());
}

ModelPtr ModelUses::Hold(ModelPtr table) {
  if (fork_generation_ != ForkGeneration()) return table;
  const MutexLock lock(mu_);
  return HoldLocked(std::move(table));
}

void ModelUses::Release(uint64_t model) {
  if (fork_generation_ != ForkGeneration()) return;
  std::vector<Report> due;
  {
    const MutexLock lock(mu_);
    Use& use = models_.at(model);
    --use.holders;
    if (IsDue(use)) due.push_back({model, use.forget});
    DropOldest();
  }
  SayAll(due, say_);
}

void ModelUses::DoneWith(const ModelTable& table, bool forget) {
  if (fork_generation_ != ForkGeneration()) return;
  std::vector<Report> due;
  {
    const MutexLock lock(mu_);
    Use& use = At(table);
    use.done = true;
    use.forget |= forget;
    if (IsDue(use)) due.push_back({table.facts().id, use.forget});
    DropOldest();
  }
  SayAll(due, say_);
}

void ModelUses::AskedFor(const ModelTable& table) {
  if (fork_generation_ != ForkGeneration()) return;
  const MutexLock lock(mu_);
  At(table).Ask();
}

std::optional<std::vector<uint64_t>> ModelUses::InUse() {
  const MutexLock lock(mu_);
  if (!asks_.empty()) return std::nullopt;
  std::vector<uint64_t> used;
  for (const auto& [model, use] : models_) {
    if (!use.done || use.holders > 0) used.push_back(model);
  }
  return used;
}

void ModelUses::SayAgain(const Say& say) {
  std::vector<Report> due;
  {
    const MutexLock lock(mu_);
    for (auto& [model, use] : models_) {
      if (IsDue(use)) due.push_back({model, use.forget});
    }
  }
  SayAll(due, say);
}

bool ModelUses::IsDue(Use& use) {
  const bool done = use.done && use.holders == 0;
  // The answer may be this model; hoistd then considers it in use.
  use.due = done && (asks_.contains(std::nullopt) || asks_.contains(use.name));
  return done && !use.due;
}

void ModelUses::SayAll(const std::vector<Report>& reports, const Say& say) {
  for (const Report& report : reports) {
    say(report.model, report.forget, [this, &report] {
      const MutexLock lock(mu_);
      const auto it = models_.find(report.model);
      if (it == models_.end()) return true;  // Only what is over is dropped.
      return it->second.forget == report.forget && IsDue(it->second);
    });
  }
}

void ModelUses::EndAsk(const std::optional<std::string>& name) {
  std::vector<Report> due;
  {
    const MutexLock lock(mu_);
    asks_.erase(asks_.find(name));
    for (auto& [model, use] : models_) {
      if (use.due && IsDue(use)) due.push_back({model, use.forget});
    }
    DropOldest();
  }
  SayAll(due, say_);
}

// Ids increase, so the first entries are the oldest.
void ModelUses::DropOldest() {
  const auto over = [](const auto& entry) { return entry.second.over(); };
  auto many = std::ranges::count_if(models_, over);
  for (; many > static_cast<ptrdiff_t>(kMostDone); --many) {
    models_.erase(std::ranges::find_if(models_, over));
  }
}

ModelUses::Ask::Ask(ModelUses& uses, std::optional<std::string> name)
    : uses_(uses), name_(std::move(name)) {
  const MutexLock lock(uses_.mu_);
  uses_.asks_.insert(name_);
}

ModelUses::Ask::~Ask() { uses_.EndAsk(name_); }

ModelPtr ModelUses::Ask::Answered(ModelPtr table) {
  const MutexLock lock(uses_.mu_);
  uses_.At(*table).Ask();
  return uses_.HoldLocked(std::move(table));
}

}  // namespace hoist
