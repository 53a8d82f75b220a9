#include "client/src/plan/lane_view.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace hoist {
namespace {

Status MalformedLane(const std::string& what) {
  return Status(Code::kInternal, "hoistd sent a malformed lane: " + what);
}

}  // namespace

Result<LaneView> LaneView::Map(const UniqueFd& memory, uint32_t groups,
                               uint32_t order_length) {
  const size_t bytes = lane::LaneBytes(groups);
  struct stat info;
  if (fstat(memory.get(), &info) != 0) return ErrnoStatus(errno, "a lane");
  if (static_cast<uint64_t>(info.st_size) < bytes) {
    return MalformedLane("it has " + std::to_string(info.st_size) +
                         " bytes, not " + std::to_string(bytes));
  }
  // If the memory shrinks, a read raises SIGBUS.
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return MalformedLane("it is not sealed against shrinking");
  }
  Result<Mapping> mapping =
      Mapping::OfFd(memory.get(), bytes, Mapping::Access::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  LaneView view(std::move(mapping).value(), groups);
  const lane::Header& header = view.header();
  if (header.magic != lane::kMagic) return MalformedLane("it is none");
  if (header.version != lane::kVersion) {
    return Status(
        Code::kFailedPrecondition,
        "hoistd makes lanes of version " + std::to_string(header.version) +
            ", and this libhoist reads " + std::to_string(lane::kVersion) +
            ", so that it can have no plan; update libhoist or "
            "hoistd, whichever is older");
  }
  if (header.bytes != bytes || header.groups != groups ||
      header.order_length != order_length) {
    return MalformedLane("it is for " + std::to_string(header.groups) +
                         " groups and " + std::to_string(header.order_length) +
                         " positions, the plan for " + std::to_string(groups) +
                         " and " + std::to_string(order_length));
  }
  return view;
}

Status LaneView::Fault() const {
  const uint32_t code = header().fault_code.load(std::memory_order_acquire);
  if (code == 0) return Status();
  const char* text = header().fault_text;
  std::string why(text, strnlen(text, lane::kMaxFaultText));
  if (why.empty()) why = "hoistd has ended the plan";
  return Status(code > static_cast<uint32_t>(Code::kUnauthenticated)
                    ? Code::kUnknown
                    : static_cast<Code>(code),
                std::move(why));
}

}  // namespace hoist
