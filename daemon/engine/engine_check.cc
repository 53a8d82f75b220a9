// hoistctl check: group by group.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/device_names.h"
#include "daemon/engine/engine.h"

namespace hoistd {

// One at a time: the mover reads no faster, and a request to forget a model in
// between is not refused.
struct Engine::Checking {
  std::vector<GroupKey> groups;
  size_t next = 0;
  bool repair = false;
  CheckProgress at;
  absl::AnyInvocable<void(const CheckProgress&)> progress;
  Done<CheckProgress> done;
};

void Engine::Start(Call<CheckArgs> call, Effects& effects) {
  auto& [args, done] = call;
  absl::StatusOr<std::vector<GroupKey>> groups =
      node_.audit().Select(args.asker, args.model);
  if (!groups.ok()) return done(groups.status());
  auto all = std::make_shared<Checking>();
  all->groups = *std::move(groups);
  all->repair = args.repair;
  all->at.total_groups = static_cast<uint32_t>(all->groups.size());
  all->progress = std::move(args.progress);
  all->done = std::move(done);
  CheckNext(std::move(all), effects);
}

void Engine::CheckNext(std::shared_ptr<Checking> all, Effects& effects) {
  if (Stopping()) {
    return all->done(absl::UnavailableError("hoistd is stopping"));
  }
  if (all->next == all->groups.size()) return all->done(all->at);
  const GroupKey key = all->groups[all->next++];
  const RequestId request =
      Await(SessionId(), [this, all](Answer answer) mutable {
        ++all->at.done_groups;
        if (answer.status.ok()) {
          all->at.read_bytes += answer.checked.bytes;
          for (CheckFinding& finding : answer.checked.findings) {
            AddNote(absl::StrCat(finding.group, " ",
                                 DeviceNames(DevicesOf(parts_)).On(finding.at),
                                 ": ", finding.what));
            ++all->at.damaged;
            if (all->at.findings.size() < CheckProgress::kMostFindings) {
              all->at.findings.push_back(std::move(finding));
            }
          }
        } else if (absl::IsUnavailable(answer.status) && Stopping()) {
          return all->done(answer.status);
        }
        all->progress(all->at);
        Post([this, all](Effects& more) { CheckNext(all, more); });
      });
  node_.audit().Check(request, key, all->repair, effects);
}

void Engine::SetQuotas(QuotaOptions quota) {
  Post([this, quota = std::move(quota)](Effects& effects) mutable {
    node_.quota().SetOptions(std::move(quota));
    node_.Tick(Now(), effects);
  });
}

}  // namespace hoistd
