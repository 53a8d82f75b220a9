#include "daemon/stream/lane_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "hoist/shared/packet_socket.h"
#include "spdlog/spdlog.h"

namespace hoistd {

namespace lane = hoist::lane;

absl::StatusOr<std::unique_ptr<LaneMemory>> LaneMemory::Create(
    Device& device, uint32_t groups, uint32_t order_length) {
  const size_t bytes = lane::LaneBytes(groups);
  HOIST_ASSIGN_OR_RETURN(hoist::UniqueFd memory,
                         ToAbsl(hoist::CreateMemfd("hoist-lane", bytes)));
  // Prevents the client from removing pages, which would raise SIGBUS here. No
  // seal prevents its writes.
  if (fcntl(memory.get(), F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoToStatus(errno, "seal a lane");
  }
  HOIST_ASSIGN_OR_RETURN(
      hoist::Mapping mapping,
      ToAbsl(hoist::Mapping::OfFd(memory.get(), bytes,
                                  hoist::Mapping::Access::kReadWrite)));
  hoist::UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoToStatus(errno, "make a lane's eventfd");
  auto made = absl::WrapUnique(new LaneMemory(
      device, std::move(memory), std::move(wake), std::move(mapping), groups));
  // A new memfd is zeroed, the initial value of each word.
  lane::Header& header = *new (made->mapping_.data()) lane::Header();
  header.magic = lane::kMagic;
  header.version = lane::kVersion;
  header.bytes = bytes;
  header.groups = groups;
  header.order_length = order_length;
  header.adoption.store(lane::kAdoption);
  HOIST_RETURN_IF_ERROR(made->Register());
  return made;
}

absl::StatusOr<std::unique_ptr<LaneMemory>> LaneMemory::Adopt(
    Device& device, LaneShare found, uint32_t groups, uint32_t order_length) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  struct stat is = {};
  if (fstat(found.memory.get(), &is) != 0 ||
      static_cast<size_t>(is.st_size) < sizeof(lane::Header) ||
      (fcntl(found.memory.get(), F_GET_SEALS) & kSeals) != kSeals) {
    return absl::InvalidArgumentError("what was kept of a lane is none");
  }
  const auto is_bytes = static_cast<size_t>(is.st_size);
  HOIST_ASSIGN_OR_RETURN(
      hoist::Mapping mapping,
      ToAbsl(hoist::Mapping::OfFd(found.memory.get(), is_bytes,
                                  hoist::Mapping::Access::kReadWrite)));
  auto made = absl::WrapUnique(new LaneMemory(device, std::move(found.memory),
                                              std::move(found.wake),
                                              std::move(mapping), groups));
  const lane::Header& header = made->header();
  HOIST_RETURN_IF_ERROR(made->CheckVersion());
  const size_t bytes = lane::LaneBytes(groups);
  if (header.magic != lane::kMagic || is_bytes != bytes ||
      header.bytes != bytes || header.groups != groups ||
      header.order_length != order_length) {
    return absl::InvalidArgumentError(
        "the plan's client wrote in its lane where it must not; make the plan "
        "anew");
  }
  made->adopted_ = true;
  HOIST_RETURN_IF_ERROR(made->Register());
  return made;
}

// Tells the client that a lane cannot be resumed. This precedes any reuse of
// its ring: later results are void.
absl::Status LaneMemory::CheckVersion() {
  const uint32_t version = header().version;
  const uint32_t adoption = header().adoption.load();
  std::string why;
  if (version != lane::kVersion) {
    why = absl::StrCat("its lane is of version ", version,
                       ", and the hoistd that is here now goes on with ",
                       lane::kVersion);
  } else if (adoption != lane::kAdoption) {
    why = absl::StrCat("its lane was left in form ", adoption,
                       ", and the hoistd that is here now goes on with ",
                       lane::kAdoption);
  } else {
    return absl::OkStatus();
  }
  why = absl::StrCat("the plan has ended with the hoistd that made it: ", why,
                     "; make it anew");
  if (header().magic == lane::kMagic && header().fault_code.load() == 0) {
    WriteFault(absl::AbortedError(why));
  }
  return absl::InvalidArgumentError(why);
}

absl::Status LaneMemory::Register() {
  HOIST_RETURN_IF_ERROR(device_.RegisterHost(mapping_.span()));
  registered_ = true;
  return absl::OkStatus();
}

LaneMemory::LaneMemory(Device& device, hoist::UniqueFd memory,
                       hoist::UniqueFd wake, hoist::Mapping mapping,
                       uint32_t groups)
    : device_(device),
      memory_(std::move(memory)),
      wake_(std::move(wake)),
      mapping_(std::move(mapping)),
      groups_(groups),
      sleepers_(device.info().kind == DeviceKind::kEmulated) {}

LaneMemory::~LaneMemory() {
  if (!registered_) return;
  const absl::Status status = device_.UnregisterHost(mapping_.span());
  if (!status.ok()) {
    SPDLOG_WARN("a lane stays registered: {}", status.ToString());
  }
}

absl::StatusOr<LaneShare> LaneMemory::Share() const {
  LaneShare share;
  share.memory = hoist::UniqueFd(fcntl(memory_.get(), F_DUPFD_CLOEXEC, 0));
  share.wake = hoist::UniqueFd(fcntl(wake_.get(), F_DUPFD_CLOEXEC, 0));
  if (!share.memory.valid() || !share.wake.valid()) {
    return ErrnoToStatus(errno, "pass a lane on");
  }
  return share;
}

lane::Request LaneMemory::ReadRequest(uint32_t count) const {
  const auto* at = reinterpret_cast<const lane::Request*>(
                       mapping_.data() + lane::RequestsOffset(groups_)) +
                   count % lane::kRequests;
  // Reads each field once: the client may change them meanwhile.
  lane::Request request = {};
  request.kind = __atomic_load_n(&at->kind, __ATOMIC_RELAXED);
  request.from = __atomic_load_n(&at->from, __ATOMIC_RELAXED);
  request.to = __atomic_load_n(&at->to, __ATOMIC_RELAXED);
  return request;
}

void LaneMemory::Store(lane::Word& word, uint32_t value) const {
  word.store(value, std::memory_order_seq_cst);
  Wake(word);
}

void LaneMemory::Wake(lane::Word& word) const {
  if (!sleepers_) return;
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void LaneMemory::WriteFault(const absl::Status& fault) {
  lane::Header& at = header();
  const absl::string_view text = fault.message();
  const size_t size = std::min(text.size(), lane::kMaxFaultText - 1);
  std::memcpy(at.fault_text, text.data(), size);
  at.fault_text[size] = 0;
  Store(at.fault_code, static_cast<uint32_t>(fault.code()));
}

}  // namespace hoistd
