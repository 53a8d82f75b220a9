#include "daemon/device/vmm_host_memory.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/device/mapped_device.h"

namespace hoistd {

using hoist::cuda::ScopedContext;

absl::StatusOr<std::unique_ptr<VmmHostMemory>> VmmHostMemory::Create(
    const hoist::cuda::Driver& driver, std::vector<hoist::cuda::DeviceId> gpus,
    uint64_t span_bytes) {
  hoist::cuda::Context context = nullptr;
  HOIST_RETURN_IF_ERROR(
      ToAbsl(driver.Check(driver.primary_retain(&context, gpus.front()),
                          "open the first GPU's context")));
  auto memory = absl::WrapUnique(
      new VmmHostMemory(driver, std::move(gpus), context, span_bytes));
  HOIST_RETURN_IF_ERROR(memory->Reserve());
  if (absl::Status s = memory->Probe(); !s.ok()) {
    return absl::UnimplementedError(
        absl::StrCat("host memory cannot be shared with GPUs here: ",
                     std::string(s.message())));
  }
  return memory;
}

VmmHostMemory::VmmHostMemory(const hoist::cuda::Driver& driver,
                             std::vector<hoist::cuda::DeviceId> gpus,
                             hoist::cuda::Context context, uint64_t span_bytes)
    : driver_(driver),
      gpus_(std::move(gpus)),
      context_(context),
      span_bytes_(span_bytes) {
  for (const hoist::cuda::DeviceId gpu : gpus_) {
    int node = 0;
    // Below 0: the system has one alone.
    if (driver_.device_attribute(&node, hoist::cuda::kHostNumaId, gpu) !=
            hoist::cuda::kSuccess ||
        node < 0) {
      node = 0;
    }
    if (std::find(nodes_.begin(), nodes_.end(), node) == nodes_.end()) {
      nodes_.push_back(node);
    }
  }
}

VmmHostMemory::~VmmHostMemory() {
  {
    const ScopedContext current(driver_, context_);
    if (base_ != 0) driver_.unreserve(base_, span_bytes_);
  }
  driver_.primary_release(gpus_.front());
}

absl::Status VmmHostMemory::Reserve() {
  const ScopedContext current(driver_, context_);
  HOIST_RETURN_IF_ERROR(Check(current.error(), "enter the context"));
  return Check(
      driver_.reserve(&base_, span_bytes_, MappedDevice::kGranularity, 0, 0),
      "reserve addresses");
}

// GPUs may have an attribute that containers and old drivers still refuse.
absl::Status VmmHostMemory::Probe() {
  const SlabSpec probe = {SlabId(0), 0, MappedDevice::kGranularity,
                          Backing::kVmm};
  HOIST_ASSIGN_OR_RETURN(const Fds fds, Place(probe, {}));
  *base() = std::byte{1};
  return Unplace(probe);
}

int VmmHostMemory::NodeOf(const SlabSpec& spec) const {
  return nodes_[spec.id.number() % nodes_.size()];
}

absl::StatusOr<hoist::cuda::Allocation> VmmHostMemory::Make(
    const SlabSpec& spec, Fds& fds) {
  hoist::cuda::AllocationProp prop;
  prop.location = {hoist::cuda::kLocationHostNuma, NodeOf(spec)};
  hoist::cuda::Allocation allocation = 0;
  HOIST_RETURN_IF_ERROR(Check(driver_.create(&allocation, spec.bytes, &prop, 0),
                              "allocate a slab on the host"));
  int fd = -1;
  const absl::Status status = Check(
      driver_.export_handle(&fd, allocation, hoist::cuda::kHandlePosixFd, 0),
      "export a slab on the host");
  if (!status.ok()) {
    driver_.release(allocation);
    return status;
  }
  fds.original = hoist::UniqueFd(fd);
  fcntl(fd, F_SETFD, FD_CLOEXEC);  // Child programs must not inherit it.
  return allocation;
}

absl::StatusOr<SlabMemory::Fds> VmmHostMemory::Place(const SlabSpec& spec,
                                                     hoist::UniqueFd original) {
  const ScopedContext current(driver_, context_);
  HOIST_RETURN_IF_ERROR(Check(current.error(), "enter the context"));
  Fds fds;
  hoist::cuda::Allocation allocation = 0;
  if (original.valid()) {
    fds.original = std::move(original);
    const auto handle = static_cast<intptr_t>(fds.original.get());
    HOIST_RETURN_IF_ERROR(Check(
        driver_.import_handle(&allocation, reinterpret_cast<void*>(handle),
                              hoist::cuda::kHandlePosixFd),
        "import a slab on the host that was kept"));
  } else {
    HOIST_ASSIGN_OR_RETURN(allocation, Make(spec, fds));
  }
  const absl::Status mapped =
      Check(driver_.map(base_ + spec.offset, spec.bytes, 0, allocation, 0),
            "map a slab on the host");
  // The mapping and the descriptor keep the memory alive.
  driver_.release(allocation);
  HOIST_RETURN_IF_ERROR(mapped);
  if (absl::Status s = Open(spec); !s.ok()) {
    driver_.unmap(base_ + spec.offset, spec.bytes);
    return s;
  }
  return fds;
}

absl::Status VmmHostMemory::Open(const SlabSpec& spec) const {
  std::vector<hoist::cuda::AccessDesc> access;
  access.push_back({{hoist::cuda::kLocationHostNuma, NodeOf(spec)},
                    hoist::cuda::kAccessReadWrite});
  for (const hoist::cuda::DeviceId gpu : gpus_) {
    access.push_back(
        {{hoist::cuda::kLocationDevice, gpu}, hoist::cuda::kAccessReadWrite});
  }
  return Check(driver_.set_access(base_ + spec.offset, spec.bytes,
                                  access.data(), access.size()),
               "open a slab on the host");
}

absl::Status VmmHostMemory::Unplace(const SlabSpec& spec) {
  // Where it cannot be entered the driver may unmap all the same.
  const ScopedContext current(driver_, context_);
  return Check(driver_.unmap(base_ + spec.offset, spec.bytes),
               "unmap a slab on the host");
}

// By the CPU, which maps it, at its own rate: no copy engine takes part.
absl::Status VmmHostMemory::Zero(const SlabSpec& spec, int) {
  std::memset(base() + spec.offset, 0, spec.bytes);
  return absl::OkStatus();
}

absl::Status VmmHostMemory::Check(hoist::cuda::Error error,
                                  const char* what) const {
  return ToAbsl(driver_.Check(error, what));
}

}  // namespace hoistd
