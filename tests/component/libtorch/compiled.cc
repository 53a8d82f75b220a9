// What hoist/torch.h does for programs that LibTorch compiled: TorchScript and
// AOTInductor. Says exactly what client/README.md claims of them.
#include <hoist/torch.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "tensors.h"

namespace {

namespace nn = torch::nn;
namespace ht = hoist::torch;
using namespace hoist_check;  // NOLINT
using hoist::Code;

c10::Device Device() {
  const hoist::Session session = Connect();
  return session.devices()[0].kind == HOIST_DEVICE_CUDA ? at::kCUDA : at::kCPU;
}

// Of AOTInductor, for that device: two layers "a" and "b" of kWidth, and the
// ReLU between them. libtorch_test.py makes it.
std::string Package() { return folder + "/pair.pt2"; }

constexpr int64_t kWidth = 64, kLayers = 4;
constexpr uint64_t kLayerBytes = (kWidth + 1) * kWidth * 4;

ht::AttachOptions Budget(uint64_t bytes) {
  ht::AttachOptions options;
  options.groups = ht::Groups::kLeaf;
  options.plan.budget_bytes = bytes;
  options.plan.deadline = std::chrono::seconds(30);
  return options;
}
constexpr uint64_t kSome = kLayerBytes * 5 / 2, kAll = kLayerBytes * 8;

// A script of layers, each of which turns its weight.
torch::jit::Module MakeScript(uint64_t seed) {
  torch::manual_seed(seed);
  torch::jit::Module script("net");
  std::string forward = "def forward(self, x):\n";
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string name = "layer" + std::to_string(i);
    torch::jit::Module layer(name);
    layer.register_parameter("weight", torch::rand({kWidth, kWidth}), false);
    layer.register_parameter("bias", torch::rand({kWidth}), false);
    layer.define(
        "def forward(self, x):\n"
        "  return torch.tanh(torch.matmul(x, self.weight.t()) + self.bias)\n");
    script.register_module(name, layer);
    forward += "  x = self." + name + ".forward(x)\n";
  }
  script.define(forward + "  return x\n");
  script.eval();
  return script;
}

// A torch::nn::Module of the script's own tensor objects, which Attach takes.
std::shared_ptr<nn::Module> Mirror(const torch::jit::Module& script) {
  auto mirror = std::make_shared<nn::Module>();
  for (const auto& item : script.named_parameters(/*recurse=*/false)) {
    mirror->register_parameter(item.name, item.value,
                               item.value.requires_grad());
  }
  for (const auto& item : script.named_buffers(/*recurse=*/false)) {
    mirror->register_buffer(item.name, item.value);
  }
  for (const auto& item : script.named_children()) {
    mirror->register_module(item.name, Mirror(item.value));
  }
  return mirror;
}

Tensor Call(torch::jit::Module& script, const Tensor& x) {
  return script.forward({x}).toTensor();
}

// Whether the interpreter throws for weights that are not staged. Those are on
// the CPU, which torch may find first.
bool Refuses(torch::jit::Module& script, const Tensor& x) {
  try {
    Call(script, x);
  } catch (const std::exception& error) {
    return Says(error.what(), "is not staged") ||
           (x.is_cuda() && Says(error.what(), "on the same device"));
  }
  return false;
}

TEST(AScriptThatFitsRunsAsItIs) {
  hoist::Session session = Connect();
  torch::jit::Module plain = MakeScript(1), script = MakeScript(1);
  const auto mirror = Mirror(script);
  ht::Attached attached = Take(ht::Attach(*mirror, session, Budget(kAll)));
  plain.to(attached.device());
  const Tensor x = torch::rand({4, kWidth}).to(attached.device());
  const Tensor expected = Call(plain, x);
  for (int pass = 0; pass < 3; ++pass) {  // The second one is optimized.
    {
      const auto use = Take(attached.Use(*mirror));
      EXPECT(SameBits(Call(script, x), expected));
    }
    Ok(attached.EndPass());
  }
  Take(attached.Use(*mirror));
  EXPECT(attached.bound(*mirror));
  EXPECT(SameBits(Call(script, x), expected));  // Without a scope.
  Ok(attached.SetBudget(kAll * 2));
  EXPECT(Refuses(script, x));
  Take(attached.Use(*mirror));
  EXPECT(SameBits(Call(script, x), expected));
  Ok(attached.Detach());
  script.to(x.device());
  EXPECT(SameBits(Call(script, x), expected));
}

TEST(AScriptThatStreamsIsCalledByItsParts) {
  hoist::Session session = Connect();
  torch::jit::Module plain = MakeScript(2), script = MakeScript(2);
  const auto mirror = Mirror(script);
  ht::Attached attached = Take(ht::Attach(*mirror, session, Budget(kSome)));
  EXPECT(attached.plan().info().streamed_count > 0);
  plain.to(attached.device());
  const Tensor x = torch::rand({4, kWidth}).to(attached.device());
  const Tensor expected = Call(plain, x);
  for (int pass = 0; pass < 4; ++pass) {
    Tensor y = x;
    for (const auto& item : script.named_children()) {
      const auto use = Take(attached.Use(item.name));
      torch::jit::Module layer = item.value;
      y = Call(layer, y);
    }
    EXPECT(SameBits(y, expected));
    Ok(attached.EndPass());
  }
  // As a whole it needs all of its weights at once, and says what would be
  // enough.
  const hoist::Status refused = attached.Use(*mirror).status();
  EXPECT(refused.code() == Code::kFailedPrecondition);
  EXPECT(Refuses(script, x));
}

// It has the tensors as constants of its graph.
TEST(AFrozenScriptHasNothingToAttach) {
  hoist::Session session = Connect();
  torch::jit::Module plain = MakeScript(3), script = MakeScript(3);
  const auto mirror = Mirror(script);
  const Tensor x = torch::rand({4, kWidth});
  const Tensor expected = Call(plain, x);
  torch::jit::Module frozen = torch::jit::freeze(script);
  EXPECT(frozen.named_parameters().size() == 0);  // Attach has nothing there.
  EXPECT(ht::Attach(*Mirror(frozen), session, Budget(kAll)).status().code() ==
         Code::kInvalidArgument);
  EXPECT(SameBits(Call(frozen, x), expected));
}

// Its constants, with the names that AOTInductor has for them.
std::unordered_map<std::string, Tensor> Constants(
    const ht::StagedTensors::Scope& a, const ht::StagedTensors::Scope& b) {
  std::unordered_map<std::string, Tensor> all;
  for (const auto* scope : {&a, &b}) {
    for (const char* name : {"a.weight", "a.bias", "b.weight", "b.bias"}) {
      auto tensor = scope->tensor(name);
      if (tensor.ok()) all[name] = *tensor;
    }
  }
  return all;
}

struct PairImpl : nn::Module {
  PairImpl()
      : a(register_module("a", nn::Linear(kWidth, kWidth))),
        b(register_module("b", nn::Linear(kWidth, kWidth))) {}
  Tensor forward(const Tensor& x) { return b(torch::relu(a(x))); }

  nn::Linear a, b;
};
TORCH_MODULE(Pair);

// It takes their addresses when it is given them, and copies nothing: so they
// must be there for as long as it runs.
TEST(AnInductorPackageReadsTheTensorsThatItWasGiven) {
  Pair net;
  const c10::Device device = Device();
  net->to(device);
  torch::inductor::AOTIModelPackageLoader loader(Package());
  std::unordered_map<std::string, Tensor> constants;
  for (const auto& item : net->named_parameters()) {
    constants[item.key()] = item.value().detach();
  }
  loader.load_constants(constants, /*use_inactive=*/false,
                        /*check_full_update=*/true, /*user_managed=*/true);
  net->b->bias.add_(1);
  const Tensor x = torch::rand({4, kWidth}).to(device);
  EXPECT(torch::allclose(loader.run({x})[0], net->forward(x), 1e-5, 1e-6));
}

TEST(AnInductorPackageRunsOverResidentsUntilThePlanIsMadeAnew) {
  torch::manual_seed(4);
  hoist::Session session = Connect();
  Pair net;
  const c10::Device device = Device();
  net->to(device);
  torch::inductor::AOTIModelPackageLoader loader(Package());
  const Tensor x = torch::rand({4, kWidth}).to(device);
  const Tensor expected = net->forward(x);
  EXPECT(!torch::allclose(loader.run({x})[0], expected));  // It has its own.
  ht::Attached attached = Take(ht::Attach(*net, session, Budget(kAll)));
  hoist::PlanOptions options;
  options.budget_bytes = kAll;
  options.deadline = std::chrono::seconds(30);
  ht::StagedTensors staged = Take(ht::StagedTensors::Create(
      session,
      Take(session.DescribeModel(std::string(attached.model().name()))),
      options));
  for (int plan = 0; plan < 2; ++plan) {
    {
      const auto a = Take(staged.Stage("a")), b = Take(staged.Stage("b"));
      auto constants = Constants(a, b);
      EXPECT(constants.size() == 4);
      loader.load_constants(constants, /*use_inactive=*/false,
                            /*check_full_update=*/true, /*user_managed=*/true);
    }
    EXPECT(staged.bound(0) && staged.bound(1));
    for (int i = 0; i < 3; ++i) {
      EXPECT(torch::allclose(loader.run({x})[0], expected, 1e-5, 1e-6));
    }
    Ok(staged.SetBudget(kAll * 2));  // Its addresses are void: load again.
  }
}

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
