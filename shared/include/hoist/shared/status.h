// Success or a typed error, in the standard library alone.
//
// `shared/` is linked into workers, which carry their own Abseil or none, so
// absl::Status cannot cross into it. The codes are gRPC's, number for number:
// the daemon converts in one place (daemon/base/status.h).
#ifndef HOIST_SHARED_STATUS_H_
#define HOIST_SHARED_STATUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace hoist {

// gRPC's status codes, by what the caller does next.
enum class Code : int32_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,     // Fix the call.
  kDeadlineExceeded = 4,    // The given deadline has passed.
  kNotFound = 5,            // No such model, group, lease.
  kAlreadyExists = 6,       // The name is taken by something else.
  kPermissionDenied = 7,    // Another uid's model, or an admin's verb.
  kResourceExhausted = 8,   // Free something, or wait.
  kFailedPrecondition = 9,  // Change state first.
  kAborted = 10,            // Lost a race.
  kOutOfRange = 11,
  kUnimplemented = 12,  // Not in this build or on this device.
  kInternal = 13,       // Our bug.
  kUnavailable = 14,    // No daemon, daemon gone, draining: retry.
  kDataLoss = 15,       // The bytes have changed.
  kUnauthenticated = 16,
};

// "INVALID_ARGUMENT" and so on, static; nullptr for an unknown number.
const char* KnownCodeName(int code);
// The same; "CODE_<n>" for an unknown number.
std::string CodeName(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // Ok.
  Status(Code code, std::string message)
      : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // "NOT_FOUND: no model \"x\"", or "OK".
  std::string ToString() const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// `what` and the errno's text, with the matching code.
Status ErrnoStatus(int error, std::string_view what);

// A value, or the error. value() needs ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT
  Result(Status status) : status_(std::move(status)) {}  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  T& operator*() & { return *value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace hoist

#endif  // HOIST_SHARED_STATUS_H_
