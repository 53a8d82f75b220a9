// Owners for libhoist's C API, whose errors end the bench.
//
// Not hoist.h: its Status and that of hoist/shared, which the CUDA driver's
// table needs, cannot be in one file.
#ifndef HOIST_TESTS_BENCH_CLIENT_H_
#define HOIST_TESTS_BENCH_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hoist/hoist_c.h"

namespace hoist::bench {

template <auto kFree>
struct FreeWith {
  template <typename T>
  void operator()(T* handle) const {
    kFree(handle);
  }
};
using Session = std::unique_ptr<hoist_session, FreeWith<hoist_session_free>>;
using Model = std::unique_ptr<hoist_model, FreeWith<hoist_model_free>>;
using Lease = std::unique_ptr<hoist_lease, FreeWith<hoist_lease_free>>;
using Plan = std::unique_ptr<hoist_plan, FreeWith<hoist_plan_free>>;
using CopyPermit =
    std::unique_ptr<hoist_copy_permit, FreeWith<hoist_copy_permit_free>>;

// Ends the bench unless `code` is HOIST_OK; frees the error.
void RequireOk(int code, hoist_error* error, const std::string& what);

Session Connect(const std::string& socket, const std::string& name);
hoist_device_info DeviceInfo(const Session& session, size_t device = 0);
Model Describe(const Session& session, const std::string& name);

struct PlanWish {
  uint32_t device = 0;
  uint64_t budget_bytes = 0;
  uint32_t weight = 1;
  int32_t priority = 0;
  uint64_t max_bytes_per_second = 0;
  uint64_t deadline_ms = 10'000;  // For space.
};
// All of the model's groups in their order.
Plan MakePlan(const Session& session, const Model& model, const PlanWish& wish);
hoist_plan_info InfoOf(const Plan& plan);
hoist_plan_stats StatsOf(const Plan& plan);
bool IsStreamed(const Plan& plan, uint32_t group);

// `stream`: a CUstream; nullptr on an emulated device.
const void* Stage(const Plan& plan, uint32_t group, void* stream);
void Done(const Plan& plan, uint32_t group, void* stream);
void Check(const Plan& plan);

CopyPermit OpenPermit(const Session& session, uint32_t device, uint32_t weight,
                      int32_t priority);

// The bytes of each of the model's groups.
std::vector<uint64_t> GroupBytes(const Model& model);

// Leases every group of the model, prefetch first.
std::vector<Lease> StageAll(const Session& session, const Model& model);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_CLIENT_H_
