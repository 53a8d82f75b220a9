#ifndef HOIST_DAEMON_TERMS_FINDING_H_
#define HOIST_DAEMON_TERMS_FINDING_H_

#include <string>

namespace hoistd {

// What was found of one thing that hoistd's service depends on.
struct Finding {
  enum class State {
    kGood,
    kDegraded,  // It works, but slower, or keeps less of its promises.
  };
  std::string what;  // "io_uring"; a word or three.
  State state = State::kGood;
  std::string found;
  std::string cure;  // What would do, where it is not good.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TERMS_FINDING_H_
