// The C API's tensors in place.
#include "client/src/in_place/in_place.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/src/c_api/handles.h"

struct hoist_in_place {
  std::unique_ptr<hoist::InPlace> own;
};

namespace hoist {
namespace {

Result<std::vector<InPlaceTensor>> TensorsOf(const hoist_in_place_tensor* given,
                                             size_t count) {
  std::vector<InPlaceTensor> tensors;
  // The caller's structs may be of an older version, and smaller.
  const auto* at = reinterpret_cast<const std::byte*>(given);
  for (size_t i = 0; i < count; ++i) {
    hoist_in_place_tensor one = {};
    Status s = ReadSized(reinterpret_cast<const hoist_in_place_tensor*>(at),
                         "hoist_in_place_tensor", &one);
    if (!s.ok()) return s;
    if (one.groups == nullptr || one.group_count == 0) return Missing("groups");
    InPlaceTensor& tensor = tensors.emplace_back();
    tensor.groups.assign(one.groups, one.groups + one.group_count);
    tensor.units = std::max(one.units, 1u);
    tensor.first_count = one.first_count;
    tensor.bytes = one.bytes;
    tensor.scratch_bytes = one.scratch_bytes;
    tensor.scratch = one.scratch;
    at += given->struct_size;
  }
  return tensors;
}

}  // namespace
}  // namespace hoist

using hoist::Code;
using hoist::Guarded;
using hoist::InPlace;
using hoist::Missing;
using hoist::Status;
using hoist::With;

int hoist_session_has_in_place(const hoist_session* session,
                               hoist_error** error) {
  return Guarded(error, {{session, "session"}},
                 [&] { return session->session->InPlace().status(); });
}

int hoist_in_place_create(hoist_session* session, const hoist_model* model,
                          const hoist_in_place_tensor* tensors,
                          size_t tensor_count,
                          const hoist_in_place_options* options,
                          hoist_in_place** in_place, hoist_error** error) {
  return Guarded(error, {{in_place, "in_place"}}, [&]() -> Status {
    if (tensors == nullptr || tensor_count == 0) return Missing("tensors");
    hoist_in_place_options given = {};
    Status s = hoist::ReadSized(options, "hoist_in_place_options", &given);
    if (!s.ok()) return s;
    auto table = hoist::WholeOf(session, model);
    if (!table.ok()) return table.status();
    auto wanted = hoist::TensorsOf(tensors, tensor_count);
    if (!wanted.ok()) return wanted.status();
    given.deadline_ms = hoist::AtMostADay(given.deadline_ms);
    return hoist::Hand(in_place,
                       InPlace::Create(session->session, *table,
                                       std::move(wanted).value(), given));
  });
}

void hoist_in_place_free(hoist_in_place* in_place) { hoist::Free(in_place); }

int hoist_in_place_address(const hoist_in_place* in_place, size_t tensor,
                           const void** data, hoist_error** error) {
  return With(in_place, "in_place", error, {{data, "data"}},
              [&](const InPlace& tensors) -> Status {
                const void* const address = tensors.AddressOf(tensor);
                if (address == nullptr) {
                  return Status(Code::kOutOfRange,
                                "no tensor " + std::to_string(tensor));
                }
                *data = address;
                return Status();
              });
}

int hoist_in_place_begin(hoist_in_place* in_place, hoist_stream stream,
                         hoist_error** error) {
  return With(in_place, "in_place", error, {}, [&](InPlace& tensors) {
    return tensors.BeginPass(hoist::StreamOf(stream));
  });
}

int hoist_in_place_end(hoist_in_place* in_place, hoist_error** error) {
  return With(in_place, "in_place", error, {}, [&](InPlace& tensors) {
    tensors.EndPass();
    return Status();
  });
}

int hoist_in_place_touch(hoist_in_place* in_place, size_t tensor,
                         const uint32_t* units, const uint32_t* counts,
                         size_t length, hoist_error** error) {
  return With(in_place, "in_place", error, {}, [&](InPlace& tensors) -> Status {
    if (length == 0) return Status();
    if (units == nullptr) return Missing("units");
    if (counts == nullptr) return Missing("counts");
    return tensors.Touch(tensor, {units, length}, {counts, length});
  });
}

int hoist_in_place_advance(hoist_in_place* in_place, int wait,
                           hoist_error** error) {
  return With(in_place, "in_place", error, {},
              [&](InPlace& tensors) { return tensors.Advance(wait != 0); });
}

uint32_t hoist_in_place_pending(const hoist_in_place* in_place) {
  if (in_place == nullptr || in_place->own->forked()) return 0;
  return in_place->own->pending();
}

int hoist_in_place_set_budget(hoist_in_place* in_place,
                              uint64_t hot_budget_bytes, hoist_error** error) {
  return With(in_place, "in_place", error, {}, [&](InPlace& tensors) {
    return tensors.SetBudget(hot_budget_bytes);
  });
}

int hoist_in_place_check(const hoist_in_place* in_place, hoist_error** error) {
  return With(in_place, "in_place", error, {},
              [](const InPlace& tensors) { return tensors.Check(); });
}

int hoist_in_place_check_hot(const hoist_in_place* in_place,
                             hoist_error** error) {
  return With(in_place, "in_place", error, {},
              [](const InPlace& tensors) { return tensors.CheckHot(); });
}

int hoist_in_place_get_stats(const hoist_in_place* in_place,
                             hoist_in_place_stats* stats, hoist_error** error) {
  return With(in_place, "in_place", error, {{stats, "stats"}},
              [&](const InPlace& tensors) -> Status {
                const InPlace::Stats counted = tensors.stats();
                hoist_in_place_stats out = {};
                out.bytes = counted.bytes;
                out.hot_budget_bytes = counted.hot_budget_bytes;
                out.hot_bytes = counted.hot_bytes;
                out.piece_count = counted.pieces;
                out.hot_piece_count = counted.hot_pieces;
                out.moves = counted.moves;
                out.touched_hot_bytes =
                    static_cast<uint64_t>(counted.touched_hot_bytes);
                out.touched_cold_bytes =
                    static_cast<uint64_t>(counted.touched_cold_bytes);
                return hoist::WriteSized(out, stats);
              });
}
