// A session's uses of models, and their ends.
#ifndef HOIST_CLIENT_SRC_MODEL_MODEL_USES_H_
#define HOIST_CLIENT_SRC_MODEL_MODEL_USES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/src/messages/model_table.h"
#include "hoist/shared/mutex.h"

namespace hoist {

using ModelPtr = std::shared_ptr<const ModelTable>;

// hoistd counts a session as a user of a model from its first request until its
// report that it is done. A session is done with a model when a caller has
// declared so since the last request, and no other handle, lease, plan, host
// image or fetch holds the model. A dropped handle alone does not end the use:
// a publisher may keep none.
//
// Threads:  thread-safe; does nothing in the child of a fork. It holds no lock
//           while it reports. Whether a report still holds is asked in its turn
//           to be sent, so that no request for the model overtakes it.
// Bounds:   an entry for each model in use, and for the newest kMostDone of the
//           others. The next hoistd counts older ones as used until the
//           session's end. Repeated reports stay below a session's limit in
//           flight (256).
class ModelUses : public std::enable_shared_from_this<ModelUses> {
 public:
  static constexpr size_t kMostDone = 64;

  // Tells hoistd, without waiting for an answer, if `still` says so when no
  // other message can be sent.
  using Say = std::function<void(uint64_t model, bool forget,
                                 const std::function<bool()>& still)>;

  explicit ModelUses(Say say);
  ModelUses(const ModelUses&) = delete;
  ModelUses& operator=(const ModelUses&) = delete;

  // The model's table. A session with a copy of the pointer is not done with
  // the model.
  ModelPtr Hold(ModelPtr table);
  // A holder declares that it is done, before it drops its pointer. `forget`:
  // hoistd is to forget the model, if nobody else uses it, unless this session
  // asks for it before.
  void DoneWith(const ModelTable& table, bool forget = false);
  // A request uses the model, and its answer does not contain it.
  void AskedFor(const ModelTable& table);
  // For the next hoistd: the models in use. nullopt: an answer may be one more.
  std::optional<std::vector<uint64_t>> InUse();
  // Repeats the reports to the next hoistd by `say`. It may not have heard
  // them, and counts all readable models as used by a session that does not
  // know.
  void SayAgain(const Say& say);

  // A request whose answer may be a model: that of `name`, or any without a
  // name. It ends with this object.
  class Ask {
   public:
    Ask(ModelUses& uses, std::optional<std::string> name);
    Ask(const Ask&) = delete;
    Ask& operator=(const Ask&) = delete;
    ~Ask();

    // The answer is this model, in use from now on.
    ModelPtr Answered(ModelPtr table);

   private:
    ModelUses& uses_;
    const std::optional<std::string> name_;
  };

 private:
  struct Use {
    std::string name;
    uint64_t holders = 0;
    bool done = false;    // Declared, and not requested since.
    bool forget = false;  // Declared with it.
    bool due = false;     // To report after an ask.
    void Ask() { done = forget = false; }
    bool over() const { return done && holders == 0 && !due; }
  };
  struct Held;
  struct Report {
    uint64_t model;
    bool forget;
  };

  Use& At(const ModelTable& table) HOIST_REQUIRES(mu_);
  ModelPtr HoldLocked(ModelPtr table) HOIST_REQUIRES(mu_);
  void Release(uint64_t model);
  // Whether hoistd is to hear that it is done with, now; see Use::due.
  bool IsDue(Use& use) HOIST_REQUIRES(mu_);
  void SayAll(const std::vector<Report>& reports, const Say& say)
      HOIST_EXCLUDES(mu_);
  void EndAsk(const std::optional<std::string>& name);
  void DropOldest() HOIST_REQUIRES(mu_);

  const uint64_t fork_generation_;
  const Say say_;
  Mutex mu_;
  std::map<uint64_t, Use> models_ HOIST_GUARDED_BY(mu_);
  std::multiset<std::optional<std::string>> asks_ HOIST_GUARDED_BY(mu_);
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_MODEL_MODEL_USES_H_
