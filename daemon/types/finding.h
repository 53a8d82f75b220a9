#ifndef HOIST_DAEMON_TYPES_FINDING_H_
#define HOIST_DAEMON_TYPES_FINDING_H_

#include <string>

namespace hoistd {

// A finding about something that hoistd depends on.
struct Finding {
  enum class State {
    kGood,
    kDegraded,  // Works, but slower or with fewer guarantees.
  };
  std::string what;  // One to three words.
  State state = State::kGood;
  std::string found;
  std::string cure;  // The remedy, unless kGood.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TYPES_FINDING_H_
