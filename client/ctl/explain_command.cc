#include <algorithm>
#include <string>
#include <vector>

#include "client/ctl/calls.h"
#include "client/ctl/commands.h"
#include "client/ctl/loans.h"
#include "client/ctl/picture.h"
#include "client/ctl/text.h"

namespace hoist::ctl {
namespace {

using v1::CopyExplanation;
using v1::Keeper;

// "850 us", else as HumanTime.
std::string ShortTime(uint64_t us) {
  return us < 1000 ? std::to_string(us) + " us" : HumanTime(us / 1000);
}

std::string Whose(const Keeper& keeper) {
  std::string text = "session " + std::to_string(keeper.session_id());
  if (!keeper.client_name().empty()) {
    text += " (" + Shown(keeper.client_name()) + ")";
  }
  return text;
}

std::string KeeperText(const Keeper& keeper) {
  const std::string plan = "plan " + std::to_string(keeper.plan_id());
  switch (keeper.by()) {
    case Keeper::BY_LEASE:
      return "leased by " + Whose(keeper);
    case Keeper::BY_PIN:
      return "pinned by an admin";
    case Keeper::BY_RESIDENT:
      return "resident of " + plan + " of " + Whose(keeper);
    case Keeper::BY_HOLD:
      return "held for " + plan + " of " + Whose(keeper) + ", which streams it";
    case Keeper::BY_STREAM:
      return "streamed through the ring of " + plan + " of " + Whose(keeper);
    case Keeper::BY_WAIT:
      return keeper.session_id() == 0 && keeper.plan_id() == 0
                 ? "awaited"
                 : "awaited by " +
                       (keeper.plan_id() == 0 ? Whose(keeper) : plan);
    case Keeper::BY_COPYING:
      return "being copied";
    case Keeper::BY_ONLY_COPY:
      return "on no disk, and cannot be spilled now";
    default:
      return "kept";
  }
}

// What lets go of it, each once.
std::string LooserText(const Keeper& keeper) {
  switch (keeper.by()) {
    case Keeper::BY_LEASE:
      return "the session gives it back (`hoistctl end " +
             std::to_string(keeper.session_id()) + "` ends it)";
    case Keeper::BY_PIN:
      return "`hoistctl unpin`";
    case Keeper::BY_RESIDENT:
      return "the plan ends, or gets another budget";
    case Keeper::BY_HOLD:
      return "the plan has copied it, or ends";
    case Keeper::BY_COPYING:
      return "the copy is done";
    case Keeper::BY_ONLY_COPY:
      return "it is spilled (disk.spill_dir), or forgotten";
    default:
      return "";
  }
}

bool IsThere(const CopyExplanation& copy) {
  return copy.residency() != v1::RESIDENCY_ABSENT &&
         copy.residency() != v1::RESIDENCY_UNSPECIFIED;
}

// Whether it is there, and why.
std::string WhyText(const CopyExplanation& copy,
                    const v1::ExplainResponse& model) {
  if (copy.tier() == v1::TIER_DISK) {
    if (!IsThere(copy)) return "not there";
    return model.published() ? "spilled" : "in the model's files";
  }
  if (copy.tier() == v1::TIER_PAGEABLE) {
    return IsThere(copy) ? "there: made room in the pool" : "not there";
  }
  std::vector<std::string> why;
  for (const Keeper& keeper : copy.keepers()) {
    why.push_back(KeeperText(keeper));
  }
  if (IsThere(copy)) {
    if (why.empty()) {
      why.push_back("kept for whoever needs it next; used " +
                    HumanTime(copy.idle_ms()) + " ago");
    }
    if (copy.use_is_known()) {
      why.push_back("needed again in about " + HumanTime(copy.until_use_ms()) +
                    ", as a session has announced");
    }
  } else if (why.empty()) {
    switch (copy.left()) {
      case CopyExplanation::LEFT_EVICTED:
        why.push_back(
            "made room for " +
            (copy.left_for().empty() ? "others" : Shown(copy.left_for())) +
            " " + HumanTime(copy.left_ms()) + " ago");
        break;
      case CopyExplanation::LEFT_BY_ADMIN:
        why.push_back("evicted by an admin " + HumanTime(copy.left_ms()) +
                      " ago");
        break;
      case CopyExplanation::LEFT_BY_WORKER:
        why.push_back("parked on the disk by its worker " +
                      HumanTime(copy.left_ms()) + " ago");
        break;
      case CopyExplanation::LEFT_FOR_HEADROOM:
        why.push_back("left for other programs of the device " +
                      HumanTime(copy.left_ms()) + " ago");
        break;
      default:
        why.push_back("nobody has asked for it");
    }
  }
  std::string text = copy.residency() == v1::RESIDENCY_PRESENT ? "there"
                     : IsThere(copy) ? ResidencyName(copy.residency())
                                     : "not there";
  for (size_t i = 0; i < why.size(); ++i)
    text += (i == 0 ? ": " : "; ") + why[i];
  if (!copy.blocked().empty()) text += "; it waits: " + Shown(copy.blocked());
  return text;
}

// What would move it; "" where that is not hoist's to do.
std::string MovesText(const CopyExplanation& copy) {
  if (copy.tier() == v1::TIER_DISK || !IsThere(copy)) return "";
  if (copy.tier() == v1::TIER_PAGEABLE) {
    return "when it is needed, or younger ones need its place";
  }
  if (copy.may_leave()) {
    return "once more than " +
           HumanBytes(copy.free_bytes() + copy.before_bytes()) +
           " are asked for here (" + HumanBytes(copy.free_bytes()) +
           " are free, " + HumanBytes(copy.before_bytes()) +
           " go before it), or by `hoistctl evict`";
  }
  std::vector<std::string> said;
  for (const Keeper& keeper : copy.keepers()) {
    const std::string text = LooserText(keeper);
    if (text.empty() || std::count(said.begin(), said.end(), text) > 0) {
      continue;
    }
    said.push_back(text);
  }
  std::string all;
  for (const std::string& one : said)
    all += (all.empty() ? "" : ", and ") + one;
  return all.empty() ? "when its waiter has had it" : "when " + all;
}

std::string CostText(const CopyExplanation& copy) {
  if (copy.tier() == v1::TIER_DISK || copy.tier() == v1::TIER_PAGEABLE) {
    return "";
  }
  if (copy.from() == v1::TIER_UNSPECIFIED) {
    return IsThere(copy) ? "it cannot be loaded again: no other tier has it"
                         : "it cannot be loaded: no tier has it";
  }
  return "about " + ShortTime(copy.bring_us()) + ", from " +
         (copy.from() == v1::TIER_DISK       ? "the disk"
          : copy.from() == v1::TIER_PAGEABLE ? "pageable memory"
                                             : "the host");
}

void PrintGroup(const v1::GroupExplanation& group,
                const v1::ExplainResponse& model, const Output& output) {
  output.out << Shown(model.model()) << '/' << Shown(group.name()) << "  "
             << HumanBytes(group.image_bytes()) << '\n';
  if (!group.lost().empty()) {
    output.out << "  lost: " << Shown(group.lost()) << '\n';
  }
  for (const CopyExplanation& copy : group.copies()) {
    output.out << "  " << TierName(copy.tier(), copy.device()) << "  "
               << WhyText(copy, model) << '\n';
    if (const std::string moves = MovesText(copy); !moves.empty()) {
      output.out << "      leaves: " << moves << '\n';
    }
    if (const std::string cost = CostText(copy); !cost.empty()) {
      output.out << (IsThere(copy) ? "      to have it again: "
                                   : "      to have it: ")
                 << cost << '\n';
    }
  }
}

// What groups that are told together have alike: all but times and sizes.
std::string Likeness(const v1::GroupExplanation& group) {
  std::string text = group.lost();
  for (const CopyExplanation& copy : group.copies()) {
    text += '|' + std::to_string(copy.tier()) + ' ' +
            std::to_string(copy.device()) + ' ' +
            std::to_string(copy.residency()) + ' ' +
            std::to_string(copy.left()) + ' ' + copy.left_for() + ' ' +
            std::to_string(copy.from());
    for (const Keeper& keeper : copy.keepers()) {
      text += ',' + std::to_string(keeper.by()) + ' ' +
              std::to_string(keeper.session_id()) + ' ' +
              std::to_string(keeper.plan_id());
    }
  }
  return text;
}

// The group of all of them, with the largest of what differs: who asks what it
// costs is told the worst of them.
v1::GroupExplanation Together(const v1::ExplainResponse& model, int from,
                              int to) {
  v1::GroupExplanation all = model.groups(from);
  for (int g = from + 1; g < to; ++g) {
    const v1::GroupExplanation& one = model.groups(g);
    all.set_image_bytes(all.image_bytes() + one.image_bytes());
    for (int c = 0; c < one.copies_size(); ++c) {
      const CopyExplanation& copy = one.copies(c);
      CopyExplanation& of_all = *all.mutable_copies(c);
      of_all.set_bring_us(of_all.bring_us() + copy.bring_us());
      of_all.set_idle_ms(std::max(of_all.idle_ms(), copy.idle_ms()));
      of_all.set_left_ms(std::max(of_all.left_ms(), copy.left_ms()));
      of_all.set_before_bytes(
          std::min(of_all.before_bytes(), copy.before_bytes()));
      of_all.set_until_use_ms(
          std::min(of_all.until_use_ms(), copy.until_use_ms()));
    }
  }
  if (to - from > 1) {
    all.set_name(model.groups(from).name() + " ... " +
                 model.groups(to - 1).name() + " (" +
                 std::to_string(to - from) + " groups)");
  }
  return all;
}

}  // namespace

int Explain(Connection& daemon, const v1::ExplainRequest& request,
            const Output& output) {
  return Ask(daemon, Lasts::kTimeout, &v1::Admin::Stub::Explain, request,
             output, [&](const v1::ExplainResponse& response) {
               for (int from = 0; from < response.groups_size();) {
                 int to = from + 1;
                 const std::string like = Likeness(response.groups(from));
                 while (to < response.groups_size() &&
                        Likeness(response.groups(to)) == like) {
                   ++to;
                 }
                 PrintGroup(Together(response, from, to), response, output);
                 from = to;
               }
               PrintWithheld(response.withheld(), output.out);
               PrintLoans(response.loans(), output.out);
             });
}

}  // namespace hoist::ctl
