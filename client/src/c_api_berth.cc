// The C API's berths.
#include <span>
#include <utility>

#include "client/src/berth.h"
#include "client/src/c_handles.h"
#include "client/src/fork_guard.h"

struct hoist_berth {
  std::unique_ptr<hoist::Berth> berth;
};

using hoist::Code;
using hoist::Guarded;
using hoist::Missing;
using hoist::Status;

int hoist_berth_create(hoist_session* session, const hoist_model* model,
                       const uint32_t* groups, size_t group_count,
                       uint32_t device, hoist_berth** berth,
                       hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (berth == nullptr) return Missing("berth");
    if (groups == nullptr || group_count == 0) return Missing("groups");
    if (Status s = hoist::CheckBoth(session, model); !s.ok()) return s;
    auto handle = std::make_unique<hoist_berth>();
    auto made = hoist::Berth::Create(*session->session, *model->table,
                                     {groups, group_count}, device);
    if (!made.ok()) return made.status();
    handle->berth = std::move(made).value();
    *berth = handle.release();
    return Status();
  });
}

int hoist_berth_fill(hoist_berth* berth, hoist_session* session,
                     const hoist_model* model, const uint32_t* groups,
                     size_t group_count, uint64_t deadline_ms,
                     hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (berth == nullptr) return Missing("berth");
    if (groups == nullptr) return Missing("groups");
    if (berth->berth->forked()) return hoist::ForkedStatus();
    if (Status s = hoist::CheckBoth(session, model); !s.ok()) return s;
    return berth->berth->Fill(session->session, model->table,
                              {groups, group_count},
                              hoist::Milliseconds(deadline_ms));
  });
}

int hoist_berth_empty(hoist_berth* berth, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (berth == nullptr) return Missing("berth");
    if (berth->berth->forked()) return hoist::ForkedStatus();
    return berth->berth->Empty();
  });
}

int hoist_berth_address(const hoist_berth* berth, size_t group,
                        const void** data, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (berth == nullptr) return Missing("berth");
    if (data == nullptr) return Missing("data");
    const std::optional<const void*> address = berth->berth->AddressOf(group);
    if (!address.has_value()) {
      return Status(Code::kOutOfRange, "no group " + std::to_string(group));
    }
    *data = *address;
    return Status();
  });
}

void hoist_berth_free(hoist_berth* berth) {
  // In the child of a fork all of it is the parent's.
  if (berth == nullptr || berth->berth->forked()) return;
  delete berth;
}
