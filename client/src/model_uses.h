// Which models a session uses, and when it is done with one.
#ifndef HOIST_CLIENT_SRC_MODEL_USES_H_
#define HOIST_CLIENT_SRC_MODEL_USES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "client/src/model_table.h"
#include "hoist/shared/mutex.h"

namespace hoist {

using ModelPtr = std::shared_ptr<const ModelTable>;

// hoistd takes a session to use a model from when it was told of it until the
// session says that it is done. It is done where somebody here said so since it
// was last asked for, and nothing holds it any more: no other handle, lease,
// plan, host image or fetch. Handles that are dropped without a word leave it
// used, since whoever publishes may keep none.
//
// Threads:  thread-safe; does nothing in the child of a fork. Its lock is held
//           while it says that the session is done, so that no request that may
//           be answered with the model overtakes that.
// Bounds:   an entry for each model that is held, or not done with, and for the
//           kMostDone newest that it is done with: the next hoistd takes it to
//           use older ones until it ends. What is said again is less than a
//           session may have in flight (256).
class ModelUses : public std::enable_shared_from_this<ModelUses> {
 public:
  static constexpr size_t kMostDone = 64;

  // Tells hoistd, and waits for no answer.
  using Say = std::function<void(uint64_t model)>;

  explicit ModelUses(Say say);
  ModelUses(const ModelUses&) = delete;
  ModelUses& operator=(const ModelUses&) = delete;
  // The session is about to go: nothing is said any more.
  void End();

  // The model's table; while the pointer, or a copy of it, lives, the session
  // is not done with the model.
  ModelPtr Hold(ModelPtr table);
  // Whoever holds it says that they are done, before they let go of it.
  void DoneWith(const ModelTable& table);
  // It is asked for, by a request that is not answered with it.
  void AskedFor(const ModelTable& table);
  // Says again what was said: another hoistd goes on with the session, and
  // takes it to use all that it may read.
  void SayAgain();

  // A request that may be answered with a model: the one of that name, or,
  // without a name, any. It ends with this object.
  class Ask {
   public:
    Ask(ModelUses& uses, std::optional<std::string> name);
    Ask(const Ask&) = delete;
    Ask& operator=(const Ask&) = delete;
    ~Ask();

    // It was answered with this one, which is in use from now on.
    ModelPtr Answered(ModelPtr table);

   private:
    ModelUses& uses_;
    const std::optional<std::string> name_;
  };

 private:
  struct Use {
    std::string name;
    uint64_t holders = 0;
    bool done = false;  // Somebody said so, and it was not asked for since.
    bool due = false;   // To be said when an ask has ended.
    bool over() const { return done && holders == 0 && !due; }
  };
  struct Held;

  Use& At(const ModelTable& table) HOIST_REQUIRES(mu_);
  ModelPtr HoldLocked(ModelPtr table) HOIST_REQUIRES(mu_);
  void LetGo(uint64_t model);
  void SayIfDone(uint64_t model, Use& use) HOIST_REQUIRES(mu_);
  void EndAsk(const std::optional<std::string>& name);
  void DropOldest() HOIST_REQUIRES(mu_);

  const uint64_t fork_generation_;
  Mutex mu_;
  Say say_ HOIST_GUARDED_BY(mu_);  // Empty: ended.
  std::map<uint64_t, Use> models_ HOIST_GUARDED_BY(mu_);
  std::multiset<std::optional<std::string>> asks_ HOIST_GUARDED_BY(mu_);
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_MODEL_USES_H_
