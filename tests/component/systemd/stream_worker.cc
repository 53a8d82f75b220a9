// A worker in the booted root, that should not notice what hoistd goes through.
//
//   stream_worker FILE   publishes a model, holds a lease on one of its groups
//                        and streams all of them, pass after pass, until
//                        SIGTERM; after each pass FILE has their number
//
// All bytes are compared, and addresses are those of the first pass. The first
// thing that is not as it should be is printed, and ends it with status 1.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hoist/hoist.h"

namespace {

constexpr uint32_t kGroups = 8;
constexpr size_t kGroupBytes = size_t{1} << 20;
constexpr uint64_t kBudget = 4 * kGroupBytes;

volatile std::sig_atomic_t told_to_end = 0;

[[noreturn]] void Fail(const std::string& what) {
  std::printf("%s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

void Require(const hoist::Status& status, const char* what) {
  if (!status.ok()) Fail(std::string(what) + ": " + status.ToString());
}

std::vector<uint8_t> BytesOf(uint32_t group) {
  std::vector<uint8_t> bytes(kGroupBytes);
  uint32_t state = group + 1;
  for (uint8_t& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return bytes;
}

hoist::Model Publish(hoist::Session& session,
                     const std::vector<std::vector<uint8_t>>& bytes) {
  hoist::Result<hoist::Model> model = hoist::Status();
  for (uint32_t group = 0; group < kGroups; ++group) {
    hoist::PublishOptions options;
    options.model = "streamed";
    options.group = "g" + std::to_string(group);
    options.tensors = {{.name = "w",
                        .dtype = hoist::DType::kU8,
                        .shape = {kGroupBytes},
                        .data = bytes[group].data()}};
    model = session.Publish(options);
    Require(model.status(), "publish");
  }
  return std::move(model).value();
}

// One group's turn: its bytes, where they lay before.
void Use(hoist::Plan& plan, uint32_t group, const std::vector<uint8_t>& wanted,
         const void*& address) {
  hoist::Result<const void*> image = plan.Stage(group);
  Require(image.status(), "stage");
  if (address == nullptr) address = *image;
  if (*image != address) Fail("a group has another address");
  const bool same = std::memcmp(*image, wanted.data(), wanted.size()) == 0;
  Require(plan.Done(group), "done");
  if (!same) Fail("group " + std::to_string(group) + " has other bytes");
}

void Stream(const char* file) {
  const int told = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (told < 0) Fail("cannot write to " + std::string(file));
  std::vector<std::vector<uint8_t>> bytes;
  for (uint32_t group = 0; group < kGroups; ++group) {
    bytes.push_back(BytesOf(group));
  }
  hoist::Result<hoist::Session> session = hoist::Session::Connect();
  Require(session.status(), "connect");
  const hoist::Model model = Publish(*session, bytes);
  hoist::Result<hoist::Lease> lease = session->Stage(model, "g0");
  Require(lease.status(), "lease");
  const void* const held = lease->data();
  hoist::PlanOptions options;
  options.budget_bytes = kBudget;
  for (uint32_t group = 0; group < kGroups; ++group) {
    options.order.push_back(group);
  }
  hoist::Result<hoist::Plan> plan = session->SetPlan(model, options);
  Require(plan.status(), "plan");
  std::vector<const void*> addresses(kGroups);
  for (uint64_t pass = 1; told_to_end == 0; ++pass) {
    for (uint32_t group = 0; group < kGroups; ++group) {
      Use(*plan, group, bytes[group], addresses[group]);
    }
    Require(plan->Check(), "the plan");
    Require(lease->Check(), "the lease");
    if (lease->data() != held ||
        std::memcmp(held, bytes[0].data(), kGroupBytes) != 0) {
      Fail("the lease has another address, or other bytes");
    }
    char text[32];
    const int size = std::snprintf(text, sizeof(text), "%020llu\n",
                                   static_cast<unsigned long long>(pass));
    if (pwrite(told, text, static_cast<size_t>(size), 0) != size) {
      Fail("cannot write to " + std::string(file));
    }
  }
  if (plan->info().streamed_bytes == 0) Fail("nothing was streamed");
  Require(lease->Release(), "release");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::signal(SIGTERM, [](int) { told_to_end = 1; });
  Stream(argv[1]);
  return 0;
}
