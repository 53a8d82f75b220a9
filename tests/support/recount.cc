#include "tests/support/recount.h"

namespace hoistd::testing {

void CountInto(const SessionBook& sessions, const CopyTable& copies,
               QuotaBook& counted) {
  for (const auto& [id, session] : sessions.all()) {
    counted.Add(session.uid(), Quota::kSessions, 1);
    for (const auto& [copy, count] : session.claims) {
      counted.Use(session.uid(), copy, copies.SpaceOf(copy.key));
    }
  }
}

void CountInto(const PlanBook& plans, const CopyTable& copies,
               QuotaBook& counted) {
  const auto count = [&](User uid, const PlanGrant& grant, bool ended) {
    counted.Add(uid, Quota::kPlans, 1);
    counted.AddBytes(uid, grant.device, grant.ring_bytes);
    if (ended) return;
    for (const PlannedGroup& group : grant.groups) {
      if (!group.resident) continue;
      const GroupKey key = {grant.model, group.group};
      counted.Use(uid, {key, {OnDevice(grant.device), false}},
                  copies.SpaceOf(key));
    }
  };
  for (const auto& [request, pending] : plans.waiting()) {
    count(pending.uid, pending.grant, false);
  }
  for (const auto& [id, plan] : plans.standing()) {
    count(plan.uid, plan.grant, plan.ended);
    for (const auto* groups : {&plan.asked, &plan.held}) {
      for (const GroupIndex group : *groups) {
        const GroupKey key = {plan.grant.model, group};
        counted.Use(plan.uid, {key, kHost}, copies.SpaceOf(key));
      }
    }
  }
}

void CountInto(const IncomingBook& incoming, QuotaBook& counted) {
  for (const auto& [request, image] : incoming.all()) {
    if (!image.offset.has_value()) continue;
    counted.Add(image.owner, Quota::kPublishedBytes, SpaceOf(*image.group));
  }
}

void CountInto(const ArenaBook& arenas, QuotaBook& counted) {
  for (const auto& [id, arena] : arenas.all()) {
    counted.AddBytes(arena.uid, arena.device, arena.bytes);
  }
}

void CountModelsInto(const CopyTable& copies, QuotaBook& counted) {
  for (const auto& [id, entry] : copies.models()) {
    const Model& model = *entry->model;
    counted.Add(model.owner, Quota::kModels, 1);
    counted.Add(model.owner, Quota::kHeaderBytes, model.spec->book_bytes);
    counted.UseFiles(model.owner, model.spec->identities);
  }
}

std::map<User, Holdings> CountHoldings(const NodeBooks& node) {
  QuotaBook counted;
  CountInto(node.tenure.sessions(), node.copies, counted);
  CountModelsInto(node.copies, counted);
  for (const auto& [id, model] : node.copies.models()) {
    for (const GroupEntry& group : model->groups) {
      if (!group.unsaved()) continue;
      counted.Add(model->model->owner, Quota::kPublishedBytes,
                  SpaceOf(*group.group));
    }
  }
  CountInto(node.incoming, counted);
  CountInto(node.tenure.plans(), node.copies, counted);
  CountInto(node.arenas, counted);
  return counted.users();
}

}  // namespace hoistd::testing
