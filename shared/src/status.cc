#include "hoist/shared/status.h"

#include <cerrno>
#include <system_error>

namespace hoist {

const char* KnownCodeName(int code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  constexpr int kCount = sizeof(kNames) / sizeof(kNames[0]);
  return code < 0 || code >= kCount ? nullptr : kNames[code];
}

std::string CodeName(Code code) {
  const char* const known = KnownCodeName(static_cast<int>(code));
  return known != nullptr ? known
                          : "CODE_" + std::to_string(static_cast<int>(code));
}

std::string Status::ToString() const {
  return ok() ? "OK" : CodeName(code_) + ": " + message_;
}

namespace {
Code CodeOfErrno(int error) {
  switch (error) {
    case EINVAL:
    case ENAMETOOLONG:
    case EBADF:
    case ENOTDIR:
    case EISDIR:
      return Code::kInvalidArgument;
    case ENOENT:
      return Code::kNotFound;
    case EEXIST:
      return Code::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return Code::kPermissionDenied;
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case EFBIG:
      return Code::kResourceExhausted;
    case EIO:
      return Code::kDataLoss;
    case ENOSYS:
    case EOPNOTSUPP:
      return Code::kUnimplemented;
    case ETIMEDOUT:
      return Code::kDeadlineExceeded;
    case ECONNREFUSED:
    case ECONNRESET:
    case ENOTCONN:
    case EPIPE:
    case EAGAIN:
    case EINTR:
      return Code::kUnavailable;
    default:
      return Code::kInternal;
  }
}
}  // namespace

Status ErrnoStatus(int error, std::string_view what) {
  std::string text =
      std::string(what) + ": " + std::generic_category().message(error);
  if (error == EMFILE) text += "; raise RLIMIT_NOFILE (systemd: LimitNOFILE)";
  if (error == EFBIG) text += "; raise RLIMIT_FSIZE (systemd: LimitFSIZE)";
  if (error == ENFILE) text += "; raise sysctl fs.file-max";
  return Status(CodeOfErrno(error), std::move(text));
}

}  // namespace hoist
