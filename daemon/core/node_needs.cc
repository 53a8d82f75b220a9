// Needs: the order of their tries, and the grants of arrived copies.
#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/core/node.h"

namespace hoistd {

// Runs until nothing changes: space freed by one need may serve an older one.
// Ends, since a round that changes the epoch meets a need or evicts a usable
// copy, and in here no need is added and no copy becomes usable.
void Node::Pump(absl::Time now, Effects& effects) {
  do {
    if (pumped_epoch_ != space_.epoch()) supply_.needs().WakeBlocked();
    pumped_epoch_ = space_.epoch();
    PumpNeeds(/*urgent=*/true, now, effects);
    for (const RequestId request : registry_.incoming().Waiting()) {
      bool goes_on = true;
      while (goes_on) {
        goes_on = registry_.Advance(request, now, effects);
        Follow(now, effects);
      }
    }
    AdvancePlans(now, effects);
    PumpNeeds(/*urgent=*/false, now, effects);
  } while (space_.epoch() != pumped_epoch_ || supply_.needs().AnyReady());
}

void Node::PumpNeeds(bool urgent, absl::Time now, Effects& effects) {
  for (const uint64_t age : supply_.needs().Ready(urgent)) {
    if (!supply_.needs().IsReady(age)) continue;  // Another's step ended it.
    const bool met = Advance(supply_.needs().At(age), now, effects);
    supply_.needs().Tried(age, met);
  }
}

// Takes the next step; then something else must wake the need. True: it is met
// and answered.
bool Node::Advance(Need& need, absl::Time now, Effects& effects) {
  Copy& copy = copies_.At(need.copy);
  if (!delivery_.MayTry(need, copy, now)) {
    supply_.needs().Block(need);
    return false;
  }
  const Supply::Progress progress = supply_.Advance(need, now, effects);
  Follow(now, effects);
  if (progress == Supply::Progress::kServes) {
    return delivery_.Give(need, copy, now, effects);
  }
  if (progress == Supply::Progress::kNoSpace && need.urgent &&
      absl::IsResourceExhausted(need.blocked.why)) {
    delivery_.AskPlansForRoom(need, now, effects);
  }
  return false;
}

// Follows up on the work of Supply and Space.
void Node::Follow(absl::Time now, Effects& effects) {
  supply_.FollowSpace(effects);
  SupplyWork work = supply_.TakeWork();
  while (!work.empty()) {
    for (const ForgottenModel& gone : work.forgotten) {
      ++counters_.models_forgotten;
      Retire(gone,
             "it made room: no session used it, and it could not be spilled",
             now, effects);
    }
    for (Refused& refused : work.refused) {
      delivery_.Refuse(refused.waiter, refused.copy, std::move(refused.why),
                       effects);
    }
    work = supply_.TakeWork();
  }
}

// A transfer of Supply, of a check, or of a published image.
void Node::TransferDone(TransferId id, const absl::Status& status,
                        const TransferResult& result, absl::Time now,
                        Effects& effects) {
  const Transfer transfer = supply_.Take(id, status);
  if (transfer.by<ClientToHost>() != nullptr) {
    registry_.Received(id, status, result.content, now, effects);
  } else if (!audit_.Done(transfer, status, result.content, now, effects)) {
    supply_.Done(transfer, status, result, now, effects);
  }
  Follow(now, effects);
  Tick(now, effects);
}

}  // namespace hoistd
