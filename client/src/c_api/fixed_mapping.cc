// The C API's fixed mappings.
#include "client/src/in_place/fixed_mapping.h"

#include "client/src/c_api/handles.h"

struct hoist_fixed_mapping {
  std::unique_ptr<hoist::FixedMapping> own;
};

using hoist::Code;
using hoist::Guarded;
using hoist::Missing;
using hoist::Status;

int hoist_fixed_mapping_create(hoist_session* session, const hoist_model* model,
                               const uint32_t* groups, size_t group_count,
                               uint32_t device, hoist_fixed_mapping** mapping,
                               hoist_error** error) {
  return Guarded(error, {{mapping, "mapping"}}, [&]() -> Status {
    if (groups == nullptr || group_count == 0) return Missing("groups");
    auto table = hoist::WholeOf(session, model);
    if (!table.ok()) return table.status();
    return hoist::Hand(
        mapping, hoist::FixedMapping::Create(*session->session, **table,
                                             {groups, group_count}, device));
  });
}

int hoist_fixed_mapping_fill(hoist_fixed_mapping* mapping,
                             hoist_session* session, const hoist_model* model,
                             const uint32_t* groups, size_t group_count,
                             uint64_t deadline_ms, hoist_error** error) {
  return hoist::With(mapping, "mapping", error, {{groups, "groups"}},
                     [&](hoist::FixedMapping& own) -> Status {
                       auto table = hoist::WholeOf(session, model);
                       if (!table.ok()) return table.status();
                       return own.Fill(session->session, *table,
                                       {groups, group_count},
                                       hoist::Milliseconds(deadline_ms));
                     });
}

int hoist_fixed_mapping_empty(hoist_fixed_mapping* mapping,
                              hoist_error** error) {
  return hoist::With(mapping, "mapping", error, {},
                     [](hoist::FixedMapping& own) { return own.Empty(); });
}

int hoist_fixed_mapping_address(const hoist_fixed_mapping* mapping,
                                size_t group, const void** data,
                                hoist_error** error) {
  return Guarded(
      error, {{mapping, "mapping"}, {data, "data"}}, [&]() -> Status {
        const std::optional<const void*> address =
            mapping->own->AddressOf(group);
        if (!address.has_value()) {
          return Status(Code::kOutOfRange, "no group " + std::to_string(group));
        }
        *data = *address;
        return Status();
      });
}

void hoist_fixed_mapping_free(hoist_fixed_mapping* mapping) {
  hoist::Free(mapping);
}
