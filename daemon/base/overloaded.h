// Combines functions into one overload set, for std::visit.
#ifndef HOIST_DAEMON_BASE_OVERLOADED_H_
#define HOIST_DAEMON_BASE_OVERLOADED_H_

namespace hoistd {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>  // Which Clang 14 does not find by itself.
Overloaded(Functions...)->Overloaded<Functions...>;

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_OVERLOADED_H_
