// The session's plans, and hoistd's asks for them.
#ifndef HOIST_CLIENT_SRC_SESSION_LIVE_PLANS_H_
#define HOIST_CLIENT_SRC_SESSION_LIVE_PLANS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "client/src/messages/messages.h"
#include "hoist/c/plan.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// Threads:  thread-safe.
class LivePlans {
 public:
  void Add(uint64_t id);
  void Forget(uint64_t id);
  std::vector<uint64_t> Ids() const;

  // GiveWay: hoistd asks for a plan's memory; ignored if the plan is gone.
  // Wake: it asks for the plans that gave way.
  void Asked(const DaemonAsk& ask);
  // Calls `told` at each later ask, and now if there was one. It must neither
  // block nor call this object; not called after Forget has returned.
  void Watch(uint64_t id, std::function<void()> told);
  // Calls `told` at each later ask to wake, until the owner forgets; as Watch.
  void WatchWakes(const void* owner, std::function<void()> told);
  void ForgetWakes(const void* owner);
  // Readable after each ask to wake; its reader resets it. -1: no descriptor.
  int WakeFd();
  // Sets `asked_to_give_way` and `idle_ms`.
  void Describe(hoist_plan_info* info) const;

 private:
  struct Live {
    std::optional<std::chrono::milliseconds> idle;  // Of the latest ask.
    std::function<void()> told;
  };

  mutable Mutex mu_;
  std::map<uint64_t, Live> live_ HOIST_GUARDED_BY(mu_);
  std::map<const void*, std::function<void()>> sleepers_ HOIST_GUARDED_BY(mu_);
  UniqueFd wake_ HOIST_GUARDED_BY(mu_);  // An eventfd, once it is asked for.
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_SESSION_LIVE_PLANS_H_
