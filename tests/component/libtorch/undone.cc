// Attaches that fail at each of their steps, and files that the module has no
// place for all of: the module is as it was, and hoistd has no new model.
#include <c10/core/CPUAllocator.h>
#include <hoist/torch.h>
#include <torch/torch.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "hoistd.h"
#include "tensors.h"

namespace {

namespace nn = torch::nn;
namespace ht = hoist::torch;
using namespace hoist_check;  // NOLINT
using hoist::Code;

constexpr int64_t kWidth = 64, kLayers = 4;

// Hoisted weights, private ones, and buffers.
nn::Sequential MakeNet(uint64_t seed) {
  torch::manual_seed(seed);
  nn::Sequential net;
  for (int64_t i = 0; i < kLayers; ++i) {
    net->push_back(nn::Linear(kWidth, kWidth));
    net->push_back(nn::BatchNorm1d(kWidth));
  }
  net->eval();
  return net;
}

ht::AttachOptions Options() {
  ht::AttachOptions options;
  options.plan.budget_bytes = 2 * kWidth * kWidth * 4 + (64 << 10);
  options.plan.deadline = std::chrono::seconds(30);
  options.exclude = {"2"};
  return options;
}

// A file of another net's weights: an attach by path takes the private ones.
std::string WriteNet(const std::string& name, const nn::Sequential& net,
                     std::map<std::string, Tensor> more = {}) {
  for (const auto& item : net->named_parameters())
    more[item.key()] = item.value();
  for (const auto& item : net->named_buffers()) {
    if (item.value().scalar_type() == torch::kFloat) {
      more[item.key()] = item.value();
    }
  }
  const std::string path = folder + "/" + name + ".safetensors";
  WriteModel(path, more);
  return path;
}

// All that a module has, and that it has it still.
class Belongings {
 public:
  explicit Belongings(const nn::Module& module) : module_(module) {
    for (const auto& [name, tensor] : Now()) {
      had_.push_back({name, tensor, RawOf(tensor), tensor.device(),
                      tensor.detach().clone()});
    }
  }

  bool AllThere() const {
    const auto now = Now();
    if (now.size() != had_.size()) return false;
    for (size_t i = 0; i < now.size(); ++i) {
      const Had& had = had_[i];
      if (!now[i].second.is_same(had.tensor) ||
          had.tensor.device() != had.device || RawOf(had.tensor) != had.data ||
          !SameBits(had.tensor, had.value)) {
        return false;
      }
    }
    return true;
  }

 private:
  struct Had {
    std::string name;
    Tensor tensor;
    const void* data;
    c10::Device device;
    Tensor value;
  };

  static const void* RawOf(const Tensor& tensor) {
    return tensor.storage()
        .unsafeGetStorageImpl()
        ->_mutable_data_ptr_no_checks()
        .get();
  }

  std::vector<std::pair<std::string, Tensor>> Now() const {
    std::vector<std::pair<std::string, Tensor>> all;
    for (const auto& item : module_.named_parameters()) {
      all.emplace_back(item.key(), item.value());
    }
    for (const auto& item : module_.named_buffers()) {
      all.emplace_back(item.key(), item.value());
    }
    return all;
  }

  const nn::Module& module_;
  std::vector<Had> had_;
};

// An admin's list uses none of them.
bool HasModel(const std::string& name) {
  return Says(Ctl("models --json"), name);
}
void AwaitItsEnd(const std::string& name) {
  while (HasModel(name)) {
  }
}

// Torch's memory of the CPU, which ends after so many allocations.
class Scarce final : public c10::Allocator {
 public:
  explicit Scarce(int left) : left_(left), real_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this, 255);
  }
  ~Scarce() override { c10::SetCPUAllocator(real_, 255); }

  c10::DataPtr allocate(size_t size) override {
    if (left_-- == 0) {
      throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "no more");
    }
    return real_->allocate(size);
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    real_->copy_data(to, from, size);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return real_->raw_deleter();
  }

 private:
  int left_;
  c10::Allocator* real_;
};

// Fails each allocation of an attach, one after another; returns how many. A
// failed one leaves no model of that name.
int FailEach(const ht::AttachOptions& options, const std::string& name,
             uint64_t seed) {
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(seed);
  const Belongings own(*net);
  for (int at = 0;; ++at) {
    {
      const Scarce scarce(at);
      auto attached = ht::Attach(*net, session, options);
      if (attached.ok()) {
        EXPECT(at > 0);
        return at;
      }
      EXPECT(attached.status().code() == Code::kResourceExhausted);
    }
    EXPECT(own.AllThere());
    AwaitItsEnd(name);
  }
}

TEST(MemoryThatEndsAtAnyStepChangesNothing) {
  ht::AttachOptions options = Options();
  options.path = WriteNet("undone", MakeNet(2));
  // The excluded layer's two, and of each BatchNorm two.
  EXPECT(FailEach(options, "undone.safetensors", 3) >= 2 + 2 * kLayers);
}

// By path; published under a name; published under that of its content.
std::map<std::string, ht::AttachOptions> WaysToMakeOne(uint64_t seed) {
  std::map<std::string, ht::AttachOptions> ways;
  for (const char* name : {"by-path.safetensors", "by-name", "libtorch-"}) {
    ways[name] = Options();
  }
  ways["by-path.safetensors"].path = WriteNet("by-path", MakeNet(seed));
  ways["by-name"].name = "by-name";
  return ways;
}

TEST(ARefusedPlanLeavesNoModel) {
  for (auto& [name, options] : WaysToMakeOne(7)) {
    hoist::Session session = Connect();
    nn::Sequential net = MakeNet(7);
    options.plan.budget_bytes = 1;
    EXPECT(ht::Attach(*net, session, options).status().code() ==
           Code::kResourceExhausted);
    AwaitItsEnd(name);
  }
}

TEST(ARefusedPlanLeavesWhatWasThere) {
  for (auto& [name, options] : WaysToMakeOne(8)) {
    hoist::Session other = Connect();
    nn::Sequential plain = MakeNet(8), net = MakeNet(8), again = MakeNet(8);
    auto there = Take(ht::Attach(*net, other, options));
    {
      hoist::Session session = Connect();
      options.plan.budget_bytes = 1;
      EXPECT(ht::Attach(*again, session, options).status().code() ==
             Code::kResourceExhausted);
    }
    EXPECT(HasModel(name));
    const std::string full(there.model().name());
    Ok(there.Detach());
    EXPECT(SameBits(net->parameters()[0], plain->parameters()[0]));
    // The next way would find the same content.
    Ok(other.Forget(Take(other.DescribeModel(full))));
  }
}

TEST(AFullGpuChangesNothing) {
  if (!torch::cuda::is_available()) throw LeftOut("no GPU");
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(4);
  // 2 GiB, more than what the loop leaves; written before it a small one.
  net->register_buffer("shape", torch::zeros({1 << 29}));
  const ht::AttachOptions options = Options();
  std::vector<Tensor> all;
  try {
    while (true) all.push_back(torch::empty({1 << 28}, torch::kCUDA));
  } catch (const c10::OutOfMemoryError&) {
  }
  const Belongings own(*net);
  EXPECT(ht::Attach(*net, session, options).status().code() ==
         Code::kResourceExhausted);
  EXPECT(own.AllThere());
  all.clear();
  Take(ht::Attach(*net, session, options));
}

TEST(ScalesBesideATakenWeightAreRefused) {
  for (const std::string name :
       {"0.weight_scale", "0.weight.absmax", "0.weight_scale_inv", "0.g_idx",
        "0.quantized.scale"}) {
    nn::Sequential net = MakeNet(5);
    const Belongings own(*net);
    hoist::Session session = Connect();
    ht::AttachOptions options = Options();
    options.path = WriteNet("beside", net, {{name, torch::ones({1})}});
    options.name = "beside-" + name;
    const hoist::Status refused = ht::Attach(*net, session, options).status();
    EXPECT(refused.code() == Code::kUnimplemented);
    EXPECT(Says(refused.message(), name));
    EXPECT(Says(refused.message(), "0.weight"));
    EXPECT(own.AllThere());
  }
}

TEST(WeightsOfOtherModulesInAFileAreNot) {
  nn::Sequential net = MakeNet(6);
  hoist::Session session = Connect();
  ht::AttachOptions options = Options();
  options.path = WriteNet(
      "others", net,
      {{"9.weight", torch::ones({2})}, {"head.scale", torch::ones({2})}});
  Take(ht::Attach(*net, session, options));
}

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
