// An engine that answers each verb at once, on the caller's thread: OK where
// the answer carries nothing, else NotFound. Targets say more.
#ifndef HOIST_TESTS_FUZZ_PROMPT_ENGINE_H_
#define HOIST_TESTS_FUZZ_PROMPT_ENGINE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/engine_api.h"

namespace hoistd::fuzz {

class PromptEngine : public EngineApi {
 public:
  void OpenSession(OpenSessionArgs, OnSessionWord,
                   Done<SessionId> done) override {
    done(SessionId(1));
  }
  void Resume(SessionId, ResumeArgs, OnSessionWord,
              Done<Resumed> done) override {
    done(Resumed());
  }
  void Explain(Peer, std::string, std::string,
               Done<ModelExplanation> done) override {
    done(None());
  }
  void EndSession(Peer, SessionId, Done<SessionSnapshot> done) override {
    done(None());
  }
  void CloseSession(SessionId) override {}
  void RegisterModel(SessionId, RegisterModelArgs,
                     Done<ModelPtr> done) override {
    done(None());
  }
  void Publish(SessionId, PublishArgs, Done<ModelPtr> done) override {
    done(None());
  }
  void DescribeModel(SessionId, std::string, Done<ModelPtr> done) override {
    done(None());
  }
  void FindContent(SessionId, Content, Done<ModelPtr> done) override {
    done(None());
  }
  void ForgetModel(SessionId, ModelId, DoneStatus done) override {
    done(absl::OkStatus());
  }
  void Stage(SessionId, StageArgs, Done<LeaseGrant> done) override {
    done(None());
  }
  void StageShared(SessionId, StageArgs, Done<LeaseGrant> done) override {
    done(None());
  }
  void ReadImage(SessionId, ReadImageArgs, DoneStatus done) override {
    done(absl::OkStatus());
  }
  void Prefetch(SessionId, PrefetchArgs, DoneStatus done) override {
    done(absl::OkStatus());
  }
  void Release(SessionId, std::vector<LeaseId>, DoneStatus done) override {
    done(absl::OkStatus());
  }
  void SetOrder(SessionId, ModelId, std::vector<GroupIndex>,
                DoneStatus done) override {
    done(absl::OkStatus());
  }
  void SlabsClosed(SessionId, SlabsClosedArgs, DoneStatus done) override {
    done(absl::OkStatus());
  }
  void SetPlan(SessionId, SetPlanArgs, Done<OpenedPlan> done) override {
    done(None());
  }
  void ClearPlan(SessionId, PlanId, DoneStatus done) override {
    done(absl::OkStatus());
  }
  void OpenArena(SessionId, ArenaArgs, Done<ArenaGrant> done) override {
    done(None());
  }
  void CloseArena(SessionId, ArenaId, DoneStatus done) override {
    done(absl::OkStatus());
  }
  void OpenCopier(SessionId, OpenCopierArgs, Done<OpenedCopier> done) override {
    done(None());
  }
  void CloseCopier(SessionId, CopierId, DoneStatus done) override {
    done(absl::OkStatus());
  }
  void Snapshot(Done<NodeSnapshot> done) override { done(None()); }
  void Load(ModelId, TierAt, absl::AnyInvocable<void(const LoadProgress&)>,
            Done<LoadProgress> done) override {
    done(None());
  }
  void Check(CheckWish, absl::AnyInvocable<void(const CheckProgress&)>,
             Done<CheckProgress> done) override {
    done(None());
  }
  void Pin(CopySelector, absl::Duration, Done<CopyTotals> done) override {
    done(None());
  }
  void Unpin(CopySelector, Done<CopyTotals> done) override { done(None()); }
  void Evict(CopySelector, bool, Done<CopyTotals> done) override {
    done(None());
  }
  void SetShare(ShareOf, ShareChange, Done<ShareChanged> done) override {
    done(None());
  }
  void SetDraining(bool, DoneStatus done) override { done(absl::OkStatus()); }
  void Subscribe(absl::AnyInvocable<void(const NodeEvent&)>,
                 Done<uint64_t> done) override {
    done(None());
  }
  void Unsubscribe(uint64_t, DoneStatus done) override {
    done(absl::OkStatus());
  }
  void Trace(Done<std::unique_ptr<TraceRecording>> done) override {
    done(None());
  }
  NodeFacts facts() const override { return {}; }
  NodeNotes notes() const override { return {}; }
  absl::Time Now() const override { return absl::UnixEpoch(); }

 private:
  static absl::Status None() { return absl::NotFoundError("none"); }
};

}  // namespace hoistd::fuzz

#endif  // HOIST_TESTS_FUZZ_PROMPT_ENGINE_H_
