#include "tests/support/faulty_device.h"

#include <utility>

#include "daemon/base/status.h"

namespace hoistd::testing {

class FaultyStream final : public CopyStream {
 public:
  FaultyStream(FaultyDevice& device, std::unique_ptr<CopyStream> stream)
      : device_(device), stream_(std::move(stream)) {}

  absl::Status CopyIn(uint64_t to_offset,
                      std::span<const std::byte> from) override {
    HOIST_RETURN_IF_ERROR(device_.Count(DeviceCall::kCopyIn));
    device_.Note({to_offset, from.size()});
    device_.GateCopies(*stream_);
    return stream_->CopyIn(to_offset, from);
  }
  absl::Status CopyOut(std::span<std::byte> to, uint64_t from_offset) override {
    HOIST_RETURN_IF_ERROR(device_.Count(DeviceCall::kCopyOut));
    return stream_->CopyOut(to, from_offset);
  }
  absl::Status WriteWords(std::span<const WordWrite> words) override {
    HOIST_RETURN_IF_ERROR(device_.Count(DeviceCall::kWriteWords));
    return stream_->WriteWords(words);
  }
  absl::Status Health() override {
    HOIST_RETURN_IF_ERROR(device_.Count(DeviceCall::kHealth));
    return stream_->Health();
  }
  void Then(Done done) override {
    absl::Status fault = device_.Count(DeviceCall::kThen);
    stream_->Then([fault = std::move(fault),
                   done = std::move(done)](absl::Status status) mutable {
      status.Update(fault);
      std::move(done)(std::move(status));
    });
  }

 private:
  FaultyDevice& device_;
  std::unique_ptr<CopyStream> stream_;
};

void FaultyDevice::FailNth(DeviceCall call, int n, absl::Status error) {
  const absl::MutexLock lock(&mu_);
  Fault& fault = faults_[call];
  fault.fail_at = n == 0 ? 0 : fault.calls + n;
  fault.error = std::move(error);
}

void FaultyDevice::FailAll(DeviceCall call, absl::Status error) {
  const absl::MutexLock lock(&mu_);
  faults_[call].fail_at = -1;
  faults_[call].error = std::move(error);
}

int FaultyDevice::calls(DeviceCall call) const {
  const absl::MutexLock lock(&mu_);
  return faults_[call].calls;
}

absl::Status FaultyDevice::Count(DeviceCall call) const {
  const absl::MutexLock lock(&mu_);
  Fault& fault = faults_[call];
  ++fault.calls;
  if (fault.fail_at == -1 || fault.fail_at == fault.calls) return fault.error;
  return absl::OkStatus();
}

void FaultyDevice::HoldCopies() {
  const absl::MutexLock lock(&mu_);
  gated_ = true;
}

void FaultyDevice::LetCopiesGo() {
  const absl::MutexLock lock(&mu_);
  gated_ = false;
}

void FaultyDevice::WaitForCopies(int count) const {
  const absl::MutexLock lock(&mu_);
  const auto enough = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return faults_[DeviceCall::kCopyIn].calls >= count;
  };
  mu_.Await(absl::Condition(&enough));
}

std::vector<FaultyDevice::Copy> FaultyDevice::copies() const {
  const absl::MutexLock lock(&mu_);
  return copies_;
}

void FaultyDevice::Note(const Copy& copy) {
  const absl::MutexLock lock(&mu_);
  copies_.push_back(copy);
}

void FaultyDevice::GateCopies(CopyStream& stream) {
  {
    const absl::MutexLock lock(&mu_);
    if (!gated_) return;
  }
  // Blocks the stream's own thread, which only the emulated device's bears.
  stream.Then([this](const absl::Status&) {
    const absl::MutexLock lock(&mu_);
    const auto open = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return !gated_;
    };
    mu_.Await(absl::Condition(&open));
  });
}

absl::Status FaultyDevice::CreateSlab(const SlabSpec& spec) {
  HOIST_RETURN_IF_ERROR(Count(DeviceCall::kCreateSlab));
  {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&slabs_go_));
  }
  return device_.CreateSlab(spec);
}

void FaultyDevice::HoldSlabs() {
  absl::MutexLock lock(&mu_);
  slabs_go_ = false;
}

void FaultyDevice::LetSlabsGo() {
  absl::MutexLock lock(&mu_);
  slabs_go_ = true;
}

absl::Status FaultyDevice::DestroySlab(SlabId id) {
  HOIST_RETURN_IF_ERROR(Count(DeviceCall::kDestroySlab));
  return device_.DestroySlab(id);
}

absl::Status FaultyDevice::ZeroSlab(SlabId id) {
  HOIST_RETURN_IF_ERROR(Count(DeviceCall::kZeroSlab));
  return device_.ZeroSlab(id);
}

absl::StatusOr<SlabShare> FaultyDevice::Share(SlabId id) const {
  HOIST_RETURN_IF_ERROR(Count(DeviceCall::kShare));
  return device_.Share(id);
}

absl::Status FaultyDevice::RegisterHost(std::span<std::byte> memory) {
  HOIST_RETURN_IF_ERROR(Count(DeviceCall::kRegisterHost));
  return device_.RegisterHost(memory);
}

absl::Status FaultyDevice::UnregisterHost(std::span<std::byte> memory) {
  HOIST_RETURN_IF_ERROR(Count(DeviceCall::kUnregisterHost));
  return device_.UnregisterHost(memory);
}

absl::StatusOr<std::unique_ptr<CopyStream>> FaultyDevice::CreateStream() {
  HOIST_RETURN_IF_ERROR(Count(DeviceCall::kCreateStream));
  HOIST_ASSIGN_OR_RETURN(auto stream, device_.CreateStream());
  return std::make_unique<FaultyStream>(*this, std::move(stream));
}

}  // namespace hoistd::testing
