// The C API's handles, and the end of its calls.
#ifndef HOIST_CLIENT_SRC_C_API_HANDLES_H_
#define HOIST_CLIENT_SRC_C_API_HANDLES_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "client/src/base/fork_guard.h"
#include "client/src/session/request_checks.h"
#include "client/src/session/session.h"
#include "hoist/hoist_c.h"
#include "hoist/shared/status.h"

struct hoist_error {
  int code;
  std::string message;
};

struct hoist_session {
  std::shared_ptr<hoist::Session> session;
  // Shared by the handles only, not by leases and plans: the last one closes
  // the session.
  std::shared_ptr<void> open;
};

struct hoist_model {
  // Of a publication: perhaps the published group alone.
  hoist::ModelPtr table;
  // The hoistd that numbered the model: another hoistd's numbers mean other
  // weights.
  std::array<uint8_t, 16> instance_id = {};
  const hoist::ModelUses* uses = nullptr;  // Owner of `held`; to compare.
  mutable hoist::Mutex mu = {};
  // nullptr: this handle is done with the model.
  mutable hoist::ModelPtr held HOIST_GUARDED_BY(mu) = {};
  // Describes the other groups.
  std::weak_ptr<hoist::Session> session = {};
  // Once they were asked for. Results point into it.
  mutable hoist::ModelPtr described HOIST_GUARDED_BY(mu) = {};

  // The last table that was asked for.
  hoist::ModelPtr Known() const;
  // The table with all groups, for which hoistd is asked at the first need.
  // FailedPrecondition: that is now, and the session has ended, or this handle
  // is done with the model.
  hoist::Result<hoist::ModelPtr> Whole() const;
  // A table with that group. OutOfRange: there is none.
  hoist::Result<hoist::ModelPtr> With(uint32_t group) const;
};

struct hoist_lease {
  explicit hoist_lease(std::shared_ptr<hoist::Session> session,
                       hoist::HeldModel model, hoist::LeaseGrant grant)
      : lease(std::move(session), std::move(model), std::move(grant)) {}
  hoist::Lease lease;
};

namespace hoist {

// Returns the status's code; makes the error if the caller wants it.
int Finish(const Status& status, hoist_error** error) noexcept;
int FinishOutOfMemory(hoist_error** error) noexcept;

// Runs `body`, which returns a Status; no exception escapes.
template <typename Body>
int Guarded(hoist_error** error, const Body& body) noexcept {
  try {
    return Finish(body(), error);
  } catch (const std::bad_alloc&) {
    return FinishOutOfMemory(error);
  } catch (const std::exception& thrown) {
    // From the standard library: no thread available, a vector too long.
    return Finish(Status(Code::kResourceExhausted, thrown.what()), error);
  }
}

// At most a day: the sum of two never overflows.
inline uint64_t AtMostADay(uint64_t milliseconds) {
  constexpr uint64_t kDay = 24ull * 60 * 60 * 1000;
  return std::min(milliseconds, kDay);
}
inline std::chrono::milliseconds Milliseconds(uint64_t count) {
  return std::chrono::milliseconds(AtMostADay(count));
}

inline cuda::Stream StreamOf(hoist_stream stream) {
  return reinterpret_cast<cuda::Stream>(stream);
}

// Arguments that must not be NULL.
struct Needed {
  const void* argument;
  std::string_view what;
};
inline const Needed* FirstMissing(std::initializer_list<Needed> all) {
  const Needed* const found =
      std::ranges::find(all, nullptr, &Needed::argument);
  return found == all.end() ? nullptr : found;
}
inline Status Check(std::initializer_list<Needed> all) {
  const Needed* const missing = FirstMissing(all);
  return missing == nullptr ? Status() : Missing(missing->what);
}

template <typename Body>
int Guarded(hoist_error** error, std::initializer_list<Needed> needed,
            const Body& body) noexcept {
  return Guarded(error, [&]() -> Status {
    if (const Needed* missing = FirstMissing(needed)) {
      return Missing(missing->what);
    }
    return body();
  });
}

// Calls `body` with the handle's object. FailedPrecondition: the child of a
// fork; the object is the parent's.
template <typename Handle, typename Body>
int With(Handle* handle, std::string_view what, hoist_error** error,
         std::initializer_list<Needed> needed, const Body& body) noexcept {
  return Guarded(error, [&]() -> Status {
    if (handle == nullptr) return Missing(what);
    if (handle->own->forked()) return ForkedStatus();
    if (const Needed* missing = FirstMissing(needed)) {
      return Missing(missing->what);
    }
    return body(*handle->own);
  });
}

// Puts a new object into a handle, after its members `others`.
template <typename Handle, typename Made, typename... Others>
Status Hand(Handle** handle, Result<std::unique_ptr<Made>> made,
            const Others&... others) {
  if (!made.ok()) return made.status();
  *handle = new Handle{others..., std::move(made).value()};
  return Status();
}

// In the child of a fork the handle's object is the parent's, and is not
// touched; see hoist_session_free.
template <typename Handle>
void Free(Handle* handle) noexcept {
  if (handle == nullptr || handle->own->forked()) return;
  (void)Guarded(nullptr, [handle] {
    delete handle;
    return Status();
  });
}

// Copies the part of a sized struct that the caller's version has; nothing if
// NULL. InvalidArgument: no size.
template <typename Sized>
Status ReadSized(const Sized* from, std::string_view name, Sized* to) {
  if (from == nullptr) return Status();
  if (from->struct_size < sizeof(size_t)) {
    return Status(Code::kInvalidArgument,
                  "set struct_size to sizeof(" + std::string(name) + ")");
  }
  std::memcpy(to, from, std::min(from->struct_size, sizeof(Sized)));
  return Status();
}

template <typename Sized>
Status WriteSized(Sized value, Sized* to) {
  const size_t size = to->struct_size;
  if (size < sizeof(size_t)) {
    return Status(Code::kInvalidArgument,
                  "set struct_size to the size of the struct");
  }
  value.struct_size = size;
  std::memcpy(to, &value, std::min(size, sizeof(Sized)));
  return Status();
}

// The options' values, or defaults.
Status ReadConnect(const hoist_connect_options* options,
                   hoist_connect_options* given);
// Connects again and again with copies of these options; `deadline`, unless
// nullopt, in place of their own.
using Connector = std::function<Result<std::shared_ptr<Session>>(
    std::optional<std::chrono::milliseconds> deadline)>;
Connector ConnectorOf(const hoist_connect_options& given);
// The order stays the caller's.
Status ReadPlan(const hoist_plan_options* options, hoist_plan_options* given);
// InvalidArgument: no name, or no path.
Status ReadRegister(const hoist_register_options* options,
                    hoist_register_options* given);

// Checks that the session is alive and has the model's hoistd.
// FailedPrecondition: it has another one.
Status CheckBoth(const hoist_session* session, const hoist_model* model);
// The same, for a call that needs all groups.
Result<ModelPtr> WholeOf(const hoist_session* session,
                         const hoist_model* model);

// `image`: the address of the tensor's image; nullptr: none.
Status DescribeTensor(const TensorEntry& tensor, const void* image,
                      hoist_tensor_info* info);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_C_API_HANDLES_H_
