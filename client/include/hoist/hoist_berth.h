// Berths, for C++: a header of its own, which hoist.h does not include.
#ifndef HOIST_HOIST_BERTH_H_
#define HOIST_HOIST_BERTH_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hoist/hoist.h"

namespace hoist {
inline namespace v0 {

// Addresses of this process for some groups of a model, which are bound to them
// while the berth is full; see hoist_c.h. Move-only; dropped, it is emptied and
// gives the addresses back.
//
//   hoist::Result<hoist::Berth> berth =
//       hoist::Berth::Create(session, model, {0, 1, 2});
//   if (!berth.ok()) return berth.status();
//   hoist::Status filled = berth->Fill(session, model, {0, 1, 2}, 30s);
//   ... kernels that read berth->address(0) ...
//   hoist::Status empty = berth->Empty();
class Berth {
 public:
  explicit Berth(hoist_berth* handle) : handle_(handle) {}  // Owns it.

  // Reserves addresses; nothing is staged. It keeps neither session nor model.
  static Result<Berth> Create(const Session& session, const Model& model,
                              const std::vector<uint32_t>& groups,
                              uint32_t device = 0) {
    hoist_berth* berth = nullptr;
    Status created = internal::Run([&](hoist_error** error) {
      return hoist_berth_create(session.get(), model.get(), groups.data(),
                                groups.size(), device, &berth, error);
    });
    if (!created.ok()) return created;
    return Berth(berth);
  }

  // Stages the groups, and maps each at its address; of a full berth nothing
  // happens. `deadline`: to wait for space, of each group; 0: refuse at once.
  // InvalidArgument: they are not as many as the berth's, or lie otherwise. On
  // any error the berth is empty.
  Status Fill(const Session& session, const Model& model,
              const std::vector<uint32_t>& groups,
              std::chrono::milliseconds deadline) {
    return internal::Run([&](hoist_error** error) {
      return hoist_berth_fill(handle_.get(), session.get(), model.get(),
                              groups.data(), groups.size(),
                              static_cast<uint64_t>(deadline.count()), error);
    });
  }
  // Gives everything back but the addresses; nothing reads any more.
  Status Empty() {
    return internal::Run([&](hoist_error** error) {
      return hoist_berth_empty(handle_.get(), error);
    });
  }
  // Of a group's first byte, by its place among those of the berth; the same
  // for the berth's life. nullptr: the image is empty, or there is none such.
  const void* address(size_t group) const {
    const void* data = nullptr;
    hoist_berth_address(handle_.get(), group, &data, nullptr);
    return data;
  }
  hoist_berth* get() const { return handle_.get(); }  // For the C API.

 private:
  internal::Owned<hoist_berth> handle_;
};

}  // namespace v0
}  // namespace hoist

#endif  // HOIST_HOIST_BERTH_H_
