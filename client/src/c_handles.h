// What the C API's handles are, and how its calls end.
#ifndef HOIST_CLIENT_SRC_C_HANDLES_H_
#define HOIST_CLIENT_SRC_C_HANDLES_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "client/src/session.h"
#include "hoist/hoist_c.h"
#include "hoist/shared/status.h"

struct hoist_error {
  int code;
  std::string message;
};

struct hoist_session {
  std::shared_ptr<hoist::Session> session;
  // Shared by the handles alone, not by leases and plans: closes the session
  // with the last of them.
  std::shared_ptr<void> open;
};

struct hoist_model {
  hoist::ModelPtr table;
  // Of the hoistd that named it: its numbers mean others' weights to another.
  std::array<uint8_t, 16> instance_id = {};
  const hoist::ModelUses* uses = nullptr;  // Of whom `held` is; to compare.
  mutable hoist::Mutex mu = {};
  // nullptr: whoever has this handle is done with the model.
  mutable hoist::ModelPtr held HOIST_GUARDED_BY(mu) = {};
};

struct hoist_lease {
  explicit hoist_lease(std::shared_ptr<hoist::Session> session,
                       hoist::HeldModel model, hoist::LeaseGrant grant)
      : lease(std::move(session), std::move(model), std::move(grant)) {}
  hoist::Lease lease;
};

namespace hoist {

// Ends a call: the status' code, and the error if the caller wants it.
int Finish(const Status& status, hoist_error** error) noexcept;
int FinishOutOfMemory(hoist_error** error) noexcept;

// Runs `body`, which returns a Status; no exception leaves.
template <typename Body>
int Guarded(hoist_error** error, const Body& body) noexcept {
  try {
    return Finish(body(), error);
  } catch (const std::bad_alloc&) {
    return FinishOutOfMemory(error);
  } catch (const std::exception& thrown) {
    // The standard library's: no thread to be had, a vector too long.
    return Finish(Status(Code::kResourceExhausted, thrown.what()), error);
  }
}

// At most a day: no sum of two of them overflows anywhere.
inline std::chrono::milliseconds Milliseconds(uint64_t count) {
  constexpr uint64_t kDay = 24ull * 60 * 60 * 1000;
  return std::chrono::milliseconds(std::min(count, kDay));
}

inline Status Missing(std::string_view what) {
  return Status(Code::kInvalidArgument,
                std::string(what) + " must not be NULL");
}

// Copies as much of a sized struct as its caller's version has. False: it does
// not even say its size.
template <typename Sized>
bool ReadSized(const Sized* from, Sized* to) {
  if (from->struct_size < sizeof(size_t)) return false;
  std::memcpy(to, from, std::min(from->struct_size, sizeof(Sized)));
  return true;
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

// InvalidArgument: hoistd shares a link among no such weights or priorities.
Status CheckShare(uint32_t weight, int32_t priority);

// Whether the session lives, with the hoistd whose model this is.
// FailedPrecondition: with another one.
Status CheckBoth(const hoist_session* session, const hoist_model* model);

// `data` is of the tensor's first element, or nullptr.
Status DescribeTensor(const TensorEntry& tensor, const void* data,
                      hoist_tensor_info* info);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_C_HANDLES_H_
