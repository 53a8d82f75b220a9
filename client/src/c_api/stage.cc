// The C API's staging: leases, prefetch, fetches, order.
#include <memory>
#include <span>
#include <tuple>
#include <utility>

#include "client/src/c_api/handles.h"
#include "client/src/image/fetch.h"

struct hoist_fetch {
  std::unique_ptr<hoist::Fetch> own;
};

namespace hoist {
namespace {

Status CheckGroups(const ModelTable& model, std::span<const uint32_t> groups) {
  for (const uint32_t group : groups) {
    if (Status s = model.CheckGroup(group); !s.ok()) return s;
  }
  return Status();
}

Status DescribeLeased(const Lease& lease, const TensorEntry& tensor,
                      hoist_tensor_info* info) {
  if (Status s = lease.Check(); !s.ok()) return s;
  return DescribeTensor(tensor, lease.grant().address, info);
}

}  // namespace
}  // namespace hoist

using hoist::Code;
using hoist::Guarded;
using hoist::Missing;
using hoist::Status;

int hoist_stage(hoist_session* session, const hoist_model* model,
                uint32_t group, uint32_t device, uint64_t deadline_ms,
                hoist_lease** lease, hoist_error** error) {
  return Guarded(error, {{lease, "lease"}}, [&]() -> Status {
    if (Status s = hoist::CheckBoth(session, model); !s.ok()) return s;
    hoist::Session& on = *session->session;
    auto table = model->With(group);
    if (!table.ok()) return table.status();
    if (Status s = hoist::CheckDevice(on, device); !s.ok()) return s;
    hoist::HeldModel held = {*table, on.Hold(*table)};
    auto grant =
        on.Stage(**table, group, device, hoist::Milliseconds(deadline_ms));
    if (!grant.ok()) return grant.status();
    const uint64_t id = grant->id;
    try {
      *lease = new hoist_lease(session->session, std::move(held),
                               std::move(grant).value());
    } catch (const std::bad_alloc&) {
      on.PostRelease(id);
      throw;
    }
    return Status();
  });
}

int hoist_lease_release(hoist_lease* lease, hoist_error** error) {
  return Guarded(error, {{lease, "lease"}},
                 [&] { return lease->lease.Release(); });
}

// In the child of a fork the lease is the parent's; see hoist_session_free.
void hoist_lease_free(hoist_lease* lease) {
  if (lease == nullptr || lease->lease.session().forked()) return;
  (void)Guarded(nullptr, [lease] {
    delete lease;
    return Status();
  });
}

int hoist_lease_check(const hoist_lease* lease, hoist_error** error) {
  return Guarded(error, {{lease, "lease"}},
                 [&] { return lease->lease.Check(); });
}

const void* hoist_lease_data(const hoist_lease* lease) {
  if (hoist_lease_check(lease, nullptr) != HOIST_OK) return nullptr;
  return lease->lease.grant().address;
}

namespace {

const hoist::LeaseGrant& GrantOf(const hoist_lease* lease) {
  static const auto* const none = new hoist::LeaseGrant;
  return lease == nullptr ? *none : lease->lease.grant();
}

}  // namespace

uint64_t hoist_lease_bytes(const hoist_lease* lease) {
  return GrantOf(lease).image_bytes;
}

uint64_t hoist_lease_id(const hoist_lease* lease) { return GrantOf(lease).id; }

uint32_t hoist_lease_group(const hoist_lease* lease) {
  return GrantOf(lease).group;
}

uint32_t hoist_lease_device(const hoist_lease* lease) {
  return GrantOf(lease).device;
}

int hoist_lease_device_kind(const hoist_lease* lease) {
  if (lease == nullptr) return 0;
  const auto* device = lease->lease.session().FindDevice(GrantOf(lease).device);
  return static_cast<int>(device->kind);
}

int hoist_lease_was_resident(const hoist_lease* lease) {
  return GrantOf(lease).was_resident ? 1 : 0;
}

uint32_t hoist_lease_tensor_count(const hoist_lease* lease) {
  return lease == nullptr
             ? 0
             : static_cast<uint32_t>(lease->lease.group().tensors.size());
}

int hoist_lease_tensor(const hoist_lease* lease, uint32_t tensor,
                       hoist_tensor_info* info, hoist_error** error) {
  return Guarded(error, {{lease, "lease"}, {info, "info"}}, [&]() -> Status {
    auto found = lease->lease.group().Tensor(tensor);
    if (!found.ok()) return found.status();
    return hoist::DescribeLeased(lease->lease, **found, info);
  });
}

int hoist_lease_find_tensor(const hoist_lease* lease, const char* name,
                            hoist_tensor_info* info, hoist_error** error) {
  return Guarded(error, {{lease, "lease"}, {name, "name"}, {info, "info"}},
                 [&]() -> Status {
                   const hoist::TensorEntry* tensor =
                       lease->lease.FindTensor(name);
                   if (tensor == nullptr) {
                     return Status(Code::kNotFound,
                                   "group \"" + lease->lease.group().name +
                                       "\" has no tensor \"" + name + "\"");
                   }
                   return hoist::DescribeLeased(lease->lease, *tensor, info);
                 });
}

int hoist_prefetch(hoist_session* session, const hoist_model* model,
                   const uint32_t* groups, size_t group_count, int tier,
                   uint32_t device, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (groups == nullptr && group_count > 0) return Missing("groups");
    const std::span<const uint32_t> wanted(groups, group_count);
    if (Status s = hoist::CheckBoth(session, model); !s.ok()) return s;
    hoist::Session& on = *session->session;
    if (tier < HOIST_TIER_DEVICE || tier > HOIST_TIER_DISK) {
      return Status(Code::kInvalidArgument,
                    "prefetch goes to HOIST_TIER_DEVICE, HOIST_TIER_HOST or "
                    "HOIST_TIER_DISK");
    }
    if (tier == HOIST_TIER_DEVICE) {
      if (Status s = hoist::CheckDevice(on, device); !s.ok()) return s;
    }
    if (Status s = hoist::CheckGroups(*model->Known(), wanted); !s.ok()) {
      return s;
    }
    on.model_uses().AskedFor(*model->table);
    return on.Prefetch(*model->table, wanted, tier, device);
  });
}

int hoist_set_order(hoist_session* session, const hoist_model* model,
                    const uint32_t* groups, size_t group_count,
                    hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (groups == nullptr && group_count > 0) return Missing("groups");
    const std::span<const uint32_t> order(groups, group_count);
    if (Status s = hoist::CheckBoth(session, model); !s.ok()) return s;
    hoist::Session& on = *session->session;
    if (Status s = hoist::CheckGroups(*model->Known(), order); !s.ok()) {
      return s;
    }
    if (!order.empty()) on.model_uses().AskedFor(*model->table);
    Hoist__V1__SetOrderRequest request = HOIST__V1__SET_ORDER_REQUEST__INIT;
    request.model_id = model->table->facts().id;
    std::tie(request.n_groups, request.groups) = hoist::Items(order);
    return on.CallForNothing(request.base);
  });
}

int hoist_spare(hoist_session* session, uint32_t device, uint64_t bytes,
                uint64_t deadline_ms, hoist_error** error) {
  return Guarded(error, {{session, "session"}}, [&]() -> Status {
    hoist::Session& on = *session->session;
    if (Status s = hoist::CheckDevice(on, device); !s.ok()) return s;
    Hoist__V1__SpareRequest request = HOIST__V1__SPARE_REQUEST__INIT;
    request.device = device;
    request.bytes = bytes;
    request.deadline_ms = deadline_ms;
    Status spared =
        on.CallForNothing(request.base, hoist::Milliseconds(deadline_ms));
    if (spared.code() != Code::kInvalidArgument) return spared;
    return Status(Code::kUnimplemented,
                  "this hoistd leaves no memory to workers; update it (" +
                      spared.message() + ")");
  });
}

int hoist_fetch_start(hoist_session* session, const hoist_model* model,
                      const uint32_t* groups, size_t group_count,
                      uint32_t device, uint64_t deadline_ms,
                      hoist_fetch** fetch, hoist_error** error) {
  return Guarded(error, {{fetch, "fetch"}}, [&]() -> Status {
    if (groups == nullptr && group_count > 0) return Missing("groups");
    const std::span<const uint32_t> wanted(groups, group_count);
    auto table = hoist::WholeOf(session, model);
    if (!table.ok()) return table.status();
    if (Status s = hoist::CheckDevice(*session->session, device); !s.ok()) {
      return s;
    }
    if (Status s = hoist::CheckGroups(**table, wanted); !s.ok()) return s;
    return hoist::Hand(fetch,
                       hoist::Fetch::Start({session->session,
                                            session->session->Hold(*table),
                                            {wanted.begin(), wanted.end()},
                                            device,
                                            hoist::Milliseconds(deadline_ms)}));
  });
}

int hoist_fetch_wait(const hoist_fetch* fetch, uint64_t timeout_ms,
                     size_t* there, hoist_error** error) {
  return hoist::With(fetch, "fetch", error, {}, [&](hoist::Fetch& own) {
    return own.Wait(hoist::Milliseconds(timeout_ms), there);
  });
}

int hoist_fetch_event_fd(const hoist_fetch* fetch) {
  return fetch == nullptr ? -1 : fetch->own->event_fd();
}

void hoist_fetch_cancel(hoist_fetch* fetch) {
  if (fetch == nullptr || fetch->own->forked()) return;
  fetch->own->Cancel();
}

void hoist_fetch_free(hoist_fetch* fetch) { hoist::Free(fetch); }
