#ifndef HOIST_DAEMON_CORE_ID_SOURCE_H_
#define HOIST_DAEMON_CORE_ID_SOURCE_H_

#include <algorithm>
#include <cstdint>

namespace hoistd {

// Ids of models, sessions, leases, plans and arenas: never reused, not even by
// a successor. Threads: one at a time.
class IdSource {
 public:
  uint64_t Next() { return ++last_; }
  // Later ids are above `last`.
  void Skip(uint64_t last) { last_ = std::max(last_, last); }

 private:
  uint64_t last_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_ID_SOURCE_H_
