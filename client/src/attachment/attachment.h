// A model's groups under a plan, across hoistds.
#ifndef HOIST_CLIENT_SRC_ATTACHMENT_ATTACHMENT_H_
#define HOIST_CLIENT_SRC_ATTACHMENT_ATTACHMENT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/src/attachment/asks.h"
#include "client/src/attachment/standing.h"
#include "hoist/c/attachment.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// hoist/c/attachment.h has the promises. In the child of a fork only forked()
// may be called.
//
// Threads:  thread-safe. `mu_` is not held over a call of the plan's, nor over
//           a renewal.
// Owns:     a session, a plan and leases, all of one hoistd at a time; a thread
//           if it gives way.
// Bounds:   memory grows with the model's groups and the order.
class Attachment {
 public:
  // `options.plan` is set.
  static Result<std::unique_ptr<Attachment>> Create(
      const hoist_attachment_options& options, Renewer::Connect connect,
      Standing::Begin begin);
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;
  ~Attachment();

  Status Stage(uint32_t group, cuda::Stream stream,
               std::chrono::milliseconds turn_deadline, const void** data);
  Status Done(uint32_t group, cuda::Stream stream);
  Status EndPass(bool* changed);
  Status Check();
  Status Renew();
  Status SetBudget(uint64_t bytes);
  Status Reorder(std::vector<uint32_t> order);

  bool forked() const;
  int event_fd() const { return event_.get(); }
  hoist_attachment_info info();
  Result<hoist_plan_info> plan_info();
  hoist_plan_stats stats();
  Result<int> KindOf(uint32_t group);
  const ModelPtr& model() const { return renewer_.first(); }
  // A tensor of today's model, and its group's address.
  struct Placed {
    ModelPtr model;
    const TensorEntry* tensor = nullptr;
    const void* image = nullptr;
  };
  Result<Placed> Place(uint32_t group, uint32_t tensor);

 private:
  using Clock = Renewer::Clock;

  Attachment(const hoist_attachment_options& options, Renewer::Connect connect,
             ModelSource source);

  // Runs `call` on what stands, after a renewal if need be, and again if
  // hoistd's end hit it harmlessly. Counts a stage of `staged`, unless null.
  template <typename Call>
  Status Run(const Call& call, std::chrono::milliseconds patience = {},
             const uint32_t* staged = nullptr);
  // Runs `call` without the lock, while nothing replaces what stands.
  template <typename Call>
  Status Unlocked(const Call& call) HOIST_REQUIRES(mu_);
  // Runs `call` on the last plan, if there is one. Renews nothing.
  template <typename Call>
  Status OnLast(const Call& call);
  // `patience`: for groups that are still staged under an ended plan.
  Status AwaitStanding(std::chrono::milliseconds patience) HOIST_REQUIRES(mu_);
  Status RenewLocked(Clock::time_point until) HOIST_REQUIRES(mu_);
  // The first one's wait begins now.
  Clock::time_point UntilOfWait() HOIST_REQUIRES(mu_);
  // Runs `call` on what stood, without the lock. Others wait for its end.
  template <typename Call>
  void Replace(const Call& call) HOIST_REQUIRES(mu_);
  // Before the plan goes.
  void KeepOrder() HOIST_REQUIRES(mu_);
  bool planned() const HOIST_REQUIRES(mu_) {
    return standing_ != nullptr && standing_->plan != nullptr;
  }
  bool stands() const HOIST_REQUIRES(mu_) { return planned() && !ended_; }
  // Whether the plan stands; else notes its end. Releases the lock meanwhile.
  bool LookAtPlan() HOIST_REQUIRES(mu_);
  void NoteEnd(const Status& why) HOIST_REQUIRES(mu_);
  // The error that a caller must get, once.
  Status Tell() HOIST_REQUIRES(mu_);

  // In the thread of `asks_`. `wake`: hoistd asks to plan again.
  std::optional<std::chrono::milliseconds> Heed(bool wake);
  // 0: it has been idle for so long.
  std::chrono::milliseconds UseLasts(std::chrono::milliseconds idle) const
      HOIST_REQUIRES(mu_);
  void GiveWay() HOIST_REQUIRES(mu_);

  const uint64_t fork_generation_;
  UniqueFd event_;
  Renewer renewer_;
  std::unique_ptr<Asks> asks_;  // nullptr: it does not give way.

  Mutex setting_;  // A budget; taken before `mu_`.
  Mutex mu_;
  CondVar changed_;
  StandingPtr standing_ HOIST_GUARDED_BY(mu_);  // nullptr: nothing stands.
  // As last set, in the first model's numbers, with the residents.
  PlanTerms terms_ HOIST_GUARDED_BY(mu_);
  uint32_t calls_ HOIST_GUARDED_BY(mu_) = 0;  // Under way, on `standing_`.
  std::vector<uint32_t> stages_ HOIST_GUARDED_BY(mu_);  // By group; not done.
  uint64_t staged_ HOIST_GUARDED_BY(mu_) = 0;           // Their sum.
  bool renewing_ HOIST_GUARDED_BY(mu_) = false;
  // If it gives way: the last done, and whether its pass goes on.
  Clock::time_point used_ HOIST_GUARDED_BY(mu_);
  bool in_pass_ HOIST_GUARDED_BY(mu_) = false;
  bool asked_ HOIST_GUARDED_BY(mu_) = false;  // By hoistd, while in use.
  bool ended_ HOIST_GUARDED_BY(mu_) = false;  // The plan of `standing_`.
  Status why_ HOIST_GUARDED_BY(mu_);          // It ended.
  std::optional<Clock::time_point> until_ HOIST_GUARDED_BY(mu_);  // The wait.
  // What makes results since the last check void, and whether a call said so.
  Status void_ HOIST_GUARDED_BY(mu_);
  bool told_ HOIST_GUARDED_BY(mu_) = false;
  uint64_t renewals_ HOIST_GUARDED_BY(mu_) = 0;
  uint64_t generations_ HOIST_GUARDED_BY(mu_) = 0;  // Of earlier plans.
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_ATTACHMENT_ATTACHMENT_H_
