// A worker with a plan over the fake daemon's model "deep".
#ifndef HOIST_TESTS_UNIT_CLIENT_PLAN_WORKER_H_
#define HOIST_TESTS_UNIT_CLIENT_PLAN_WORKER_H_

#include <cstdint>
#include <initializer_list>

#include "hoist/hoist.h"
#include "tests/unit/client/fake_daemon.h"

namespace hoist_test {

inline hoist::Session ConnectTo(const FakeDaemon& daemon) {
  hoist::ConnectOptions options;
  options.socket_path = daemon.path();
  return *hoist::Session::Connect(options);
}

struct PlanWorker {
  PlanWorker(const FakeDaemon& daemon, const hoist::PlanOptions& options)
      : session(ConnectTo(daemon)),
        model(*session.DescribeModel("deep")),
        plan(*session.SetPlan(model, options)) {}
  PlanWorker(const FakeDaemon& daemon, std::initializer_list<uint32_t> order)
      : PlanWorker(daemon, hoist::PlanOptions{.order = order}) {}

  // Stages the group and marks it done.
  hoist::Status Use(uint32_t group) {
    if (auto data = plan.Stage(group); !data.ok()) return data.status();
    return plan.Done(group);
  }

  hoist::Session session;
  hoist::Model model;
  hoist::Plan plan;
};

}  // namespace hoist_test

#endif  // HOIST_TESTS_UNIT_CLIENT_PLAN_WORKER_H_
