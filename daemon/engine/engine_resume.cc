// Resumes what the last hoistd left.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine.h"
#include "daemon/successor/successor.h"

namespace hoistd {

void Engine::Restore() {
  // All devices get the same, except the last if it is in place.
  if (!parts_.mover.links.empty()) {
    load_rate_ = parts_.mover.links.front()->load_rate();
  }
  Inheritance left =
      TakeOver(std::move(parts_.left),
               {.node = NodeOptionsOf(parts_),
                .devices = DevicesOf(parts_),
                .new_instance = parts_.new_instance,
                .files = parts_.files,
                .now = Now(),
                .store = parts_.mover.store,
                .open_files = open_files_,
                .slab_makers = slab_makers_,
                .keeps = parts_.keep != nullptr,
                .note = [this](std::string note) { AddNote(std::move(note)); }},
               book_, node_);
  instance_ = std::move(left.instance);
  permits_.SkipIds(IdsBefore(instance_.generation));
  resumed_ = std::move(left.sessions);
  for (auto& [id, files] : left.files) mover_->AddFiles(id, std::move(files));
  AdoptPins(left.pins);
  AdoptLoadCaps(left.load_caps);
  // Resumed sessions exist by now.
  node_.registry().EndOfGone();
  Post([this](Effects& effects) { node_.Tick(Now(), effects); });
  WritePersisted();
  ResumePlans(std::move(left.plans));
}

void Engine::WritePersisted() {
  for (const Persisted& kept : node_.TakePersisted()) book_.Write(kept);
}

std::vector<ResumedSession> Engine::TakeResumed() {
  return std::exchange(resumed_, {});
}

// Resumes lanes of standing plans where they are.
void Engine::ResumePlans(std::vector<std::pair<PlanRecord, LaneShare>> plans) {
  for (auto& [record, lane] : plans) {
    LaneSpec spec = SpecOf(record);
    ++resuming_[record.session].lanes;
    StreamerOf(record.grant.device)
        .Open(std::move(spec), std::move(lane),
              [this, record = std::move(record)](
                  absl::StatusOr<LaneShare> share) mutable {
                Post([this, record = std::move(record),
                      opened = share.status()](Effects& effects) {
                  LaneResumed(record, opened, effects);
                });
              });
  }
}

void Engine::LaneResumed(const PlanRecord& record, const absl::Status& opened,
                         Effects& effects) {
  const PlanId plan = record.grant.id;
  const auto resuming = resuming_.find(record.session);
  if (node_.tenure().FindPlan(plan) == nullptr) {
    // Its session has ended, or does not need it.
  } else if (opened.ok()) {
    LaneOpened(record.grant, record.share, effects);
  } else {
    AddNote(absl::StrCat("plan ", plan.number(),
                         " does not go on: ", std::string(opened.message())));
    node_.EndPlan(record.session, plan, Now(), effects).IgnoreError();
    if (resuming != resuming_.end()) {
      // Sessions that resume later are told then.
      for (auto& [answer, done] : resuming->second.answers) {
        answer.lost_plans.push_back(plan);
      }
    }
  }
  if (resuming == resuming_.end() || --resuming->second.lanes > 0) return;
  AnswerResumed(std::move(resuming_.extract(resuming).mapped()));
}

void Engine::AnswerResumed(Resuming resuming) {
  for (auto& [answer, done] : resuming.answers) done(std::move(answer));
}

// Answered once the fate of its plans is known: a client that is told nothing
// of a plan waits for its bytes. Its holdings count at once, before its next
// request.
void Engine::Resume(SessionId session, ResumeArgs has, OnSessionWord on_word,
                    Done<Resumed> done) {
  Post([this, session, has = std::move(has), on_word = std::move(on_word),
        done = std::move(done)](Effects& effects) mutable {
    if (node_.tenure().PeerOf(session) == nullptr) {
      return done(absl::NotFoundError("the session is closed"));
    }
    words_.Add(session, std::move(on_word));
    Resumed answer = node_.Resume(session, has, Now(), effects);
    const auto resuming = resuming_.find(session);
    if (resuming == resuming_.end()) return done(std::move(answer));
    resuming->second.answers.emplace_back(std::move(answer), std::move(done));
  });
}

}  // namespace hoistd
