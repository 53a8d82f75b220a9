// One function of several, for std::visit.
#ifndef HOIST_DAEMON_BASE_OVERLOADED_H_
#define HOIST_DAEMON_BASE_OVERLOADED_H_

namespace hoistd {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_OVERLOADED_H_
