// hoist/torch.h's modules between two Attached, and before the first: those
// that have no memory, and those that an Attached left without weights.
#include <hoist/torch.h>
#include <torch/torch.h>

#include <chrono>
#include <map>
#include <optional>
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

constexpr int64_t kLayers = 6, kWidth = 64;
constexpr uint64_t kHalf = kLayers * kWidth * (kWidth + 2) * 4 / 2;

struct LayerImpl : nn::Module {
  LayerImpl(c10::Device device, c10::Device buffers)
      : weight(register_parameter("weight", Made({kWidth, kWidth}, device))),
        bias(register_parameter("bias", Made({kWidth}, device))),
        scale(register_buffer("scale", Made({kWidth}, buffers))) {}
  static Tensor Made(c10::IntArrayRef sizes, c10::Device device) {
    return device.is_meta() ? torch::empty(sizes, device) : torch::rand(sizes);
  }
  Tensor forward(const Tensor& x) {
    return torch::relu(at::linear(x, weight, bias)) * scale;
  }

  Tensor weight, bias, scale;
};
TORCH_MODULE(Layer);

nn::Sequential MakeNet(uint64_t seed, c10::Device device, c10::Device buffers) {
  torch::manual_seed(seed);
  nn::Sequential net;
  for (int64_t i = 0; i < kLayers; ++i) net->push_back(Layer(device, buffers));
  return net;
}
nn::Sequential MakeNet(uint64_t seed, c10::Device device = at::kCPU) {
  return MakeNet(seed, device, device);
}
LayerImpl& LayerOf(nn::Sequential& net, size_t i) {
  return *net[i]->as<Layer>();
}

ht::AttachOptions Options(const std::string& path = "") {
  ht::AttachOptions options;
  options.plan.budget_bytes = kHalf;
  options.plan.deadline = std::chrono::seconds(30);
  options.path = path;
  return options;
}

// All of MakeNet(seed)'s weights and buffers.
std::string ModelFile(uint64_t seed) {
  const nn::Sequential net = MakeNet(seed);
  std::map<std::string, Tensor> tensors;
  for (const auto& item : net->named_parameters()) {
    tensors[item.key()] = item.value();
  }
  for (const auto& item : net->named_buffers()) {
    tensors[item.key()] = item.value();
  }
  const std::string path =
      folder + "/again-" + std::to_string(seed) + ".safetensors";
  WriteModel(path, tensors);
  return path;
}

void EqualPasses(nn::Sequential& net, ht::Attached& attached, uint64_t seed) {
  nn::Sequential plain = MakeNet(seed);
  plain->to(attached.device());
  const Tensor x = torch::rand({4, kWidth}).to(attached.device());
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT(SameBits(Take(attached.Run(*net, x)), plain->forward(x)));
    Ok(attached.EndPass());
  }
}
void EqualWeights(nn::Sequential& net, uint64_t seed) {
  nn::Sequential plain = MakeNet(seed);
  for (const auto& item : plain->named_parameters()) {
    const Tensor found = net->named_parameters()[item.key()];
    EXPECT(found.is_cpu());
    EXPECT(SameBits(found, item.value()));
  }
  for (const auto& item : plain->named_buffers()) {
    EXPECT(SameBits(net->named_buffers()[item.key()], item.value()));
  }
  const Tensor x = torch::rand({4, kWidth});
  EXPECT(SameBits(net->forward(x), plain->forward(x)));
}

TEST(AModuleWithoutMemoryComesFromFiles) {
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(1, at::kMeta);
  const Tensor kept = LayerOf(net, 2).weight;
  const auto* object = kept.unsafeGetTensorImpl();
  ht::AttachOptions options = Options(ModelFile(1));
  ht::Attached attached = Take(ht::Attach(*net, session, options));
  EXPECT(!kept.is_meta());
  EXPECT(Says(Thrown([&] { kept.clone(); }), "is not staged"));
  EqualPasses(net, attached, 1);
  nn::Sequential plain = MakeNet(1);
  EXPECT(SameBits(Take(attached.Value("2.weight")), LayerOf(plain, 2).weight));
  // What it gives back comes from hoistd.
  EXPECT(std::remove(options.path.c_str()) == 0);
  Ok(attached.Detach());
  EqualWeights(net, 1);
  EXPECT(LayerOf(net, 2).weight.unsafeGetTensorImpl() == object);
  // Ordinary ones: they may be written to, and need gradients.
  const torch::AutoGradMode record(true);
  net->forward(torch::rand({4, kWidth})).sum().backward();
  EXPECT(kept.grad().sizes() == kept.sizes());
  const torch::NoGradGuard no_grad;
  kept.zero_();
  EXPECT(kept.sum().item<float>() == 0);
}

TEST(AModuleWithoutMemoryComesFromAModel) {
  hoist::Session session = Connect();
  nn::Sequential source = MakeNet(2), net = MakeNet(2, at::kMeta);
  ht::Attached first = Take(ht::Attach(*source, session, Options()));
  ht::AttachOptions options = Options();
  options.model = std::string(first.model().name());
  // Buffers are their process's own, and not in what was published.
  const hoist::Status lacks = ht::Attach(*net, session, options).status();
  EXPECT(lacks.code() == Code::kNotFound);
  EXPECT(Says(lacks.message(), "scale") && Says(lacks.message(), "meta"));
  net = MakeNet(2, at::kMeta, at::kCPU);
  for (int64_t i = 0; i < kLayers; ++i) {
    LayerOf(net, i).scale.copy_(LayerOf(source, i).scale);
  }
  ht::Attached second = Take(ht::Attach(*net, session, options));
  EqualPasses(net, second, 2);
  Ok(first.Detach());
  Ok(second.Detach());
  EqualWeights(net, 2);
}

TEST(AModuleWithoutMemoryStaysSoOnAnError) {
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(3, at::kMeta);
  const hoist::Status nowhere = ht::Attach(*net, session, Options()).status();
  EXPECT(nowhere.code() == Code::kFailedPrecondition);
  EXPECT(Says(nowhere.message(), "`path` or `model`"));
  ht::AttachOptions options = Options(ModelFile(3));
  options.plan.budget_bytes = 4096;
  EXPECT(ht::Attach(*net, session, options).status().code() ==
         Code::kResourceExhausted);
  for (const Tensor& weight : net->parameters()) EXPECT(weight.is_meta());
  for (const Tensor& buffer : net->buffers()) EXPECT(buffer.is_meta());
  options.plan.budget_bytes = kHalf;
  options.exclude = {"1"};
  ht::Attached attached = Take(ht::Attach(*net, session, options));
  nn::Sequential plain = MakeNet(3);
  EXPECT(SameBits(LayerOf(net, 1).weight, LayerOf(plain, 1).weight));
  EqualPasses(net, attached, 3);
  Ok(attached.Detach());
  EqualWeights(net, 3);
}

TEST(WhatAnAttachedLeftIsAttachedAgain) {
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(5);
  std::optional<ht::Attached> attached(
      Take(ht::Attach(*net, session, Options())));
  EqualPasses(net, *attached, 5);
  attached.reset();
  EXPECT(Says(Thrown([&] { LayerOf(net, 0).weight.clone(); }),
              "attach the module again"));
  EXPECT(LayerOf(net, 0).scale.is_cpu());  // As before.
  ht::Attached again = Take(ht::Attach(*net, session, Options()));
  EqualPasses(net, again, 5);
  Ok(again.Detach());
  EqualWeights(net, 5);
}

TEST(ABufferThatGotOtherMemoryKeepsIt) {
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(16);
  std::optional<ht::Attached> attached(
      Take(ht::Attach(*net, session, Options())));
  const Tensor other = torch::rand({3});
  LayerOf(net, 0).scale.set_data(other);
  attached.reset();
  EXPECT(SameBits(LayerOf(net, 0).scale, other));
}

// An empty tensor lies where the next one does.
TEST(EmptyWeightsComeFromFilesToo) {
  hoist::Session session = Connect();
  const std::map<std::string, Tensor> weights = {
      {"empty", torch::empty({0, 4})},
      {"none", torch::empty({3, 0})},
      {"some", torch::rand({16})}};
  const std::string path = folder + "/again-empty.safetensors";
  WriteModel(path, weights);
  nn::ModuleList list;
  for (const auto& [name, weight] : weights) {
    list->register_parameter(name, torch::zeros_like(weight));
  }
  ht::Attached attached = Take(ht::Attach(*list, session, Options(path)));
  const auto equal = [&] {
    for (const auto& [name, weight] : weights) {
      EXPECT(SameBits(list->named_parameters()[name], weight));
    }
  };
  {
    const auto use = Take(attached.Use(*list));
    equal();
  }
  Ok(attached.Detach());
  equal();
}

TEST(WhatWasLeftAndIsNowPrivateComesFromFiles) {
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(13);
  (void)Take(ht::Attach(*net, session, Options()));
  ht::AttachOptions options = Options(ModelFile(13));
  options.exclude = {"1"};
  ht::Attached again = Take(ht::Attach(*net, session, options));
  LayerOf(net, 1).weight.clone();  // No scope.
  EqualPasses(net, again, 13);
  Ok(again.Detach());
  EqualWeights(net, 13);
}

// Files have them, too; what is written there is read-only.
TEST(WhatAnotherAttachedHasIsLeftToIt) {
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(14);
  ht::AttachOptions all = Options();
  all.plan.budget_bytes = 1 << 20;
  ht::Attached part = Take(ht::Attach(LayerOf(net, 1), session, all));
  ht::AttachOptions options = Options(ModelFile(14));
  options.exclude = {"1"};
  Take(ht::Attach(*net, session, options));  // While it is idle,
  Ok(Take(part.Use(LayerOf(net, 1))).End());
  EXPECT(part.bound(LayerOf(net, 1)));  // and while it is bound.
  ht::Attached whole = Take(ht::Attach(*net, session, options));
  EqualPasses(net, whole, 14);
  Ok(whole.Detach());
  Ok(part.Detach());
  EqualWeights(net, 14);
}

TEST(WhatIsInPlaceStaysThere) {
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(15);
  const std::string path = ModelFile(15);
  auto in_place =
      Take(ht::InPlaceTensors::Open(session, path, {{"1.weight"}, {"1.bias"}}));
  LayerOf(net, 1).weight.set_data(in_place["1.weight"]);
  LayerOf(net, 1).bias.set_data(in_place["1.bias"]);
  const void* const address = LayerOf(net, 1).weight.const_data_ptr();
  ht::AttachOptions options = Options(path);
  options.exclude = {"1.weight", "1.bias"};
  ht::Attached attached = Take(ht::Attach(*net, session, options));
  EXPECT(LayerOf(net, 1).weight.const_data_ptr() == address);
  EqualPasses(net, attached, 15);
  Ok(attached.Detach());
  EXPECT(LayerOf(net, 1).weight.const_data_ptr() == address);
}

// Two views of one memory, and a weight that lies turned.
TEST(WhatWasLeftLiesAsItDid) {
  hoist::Session session = Connect();
  nn::ModuleList list;
  const Tensor whole = torch::rand({8, 16});
  const Tensor kept = whole.clone();
  list->register_parameter("part", whole.slice(0, 2, 6));
  list->register_parameter("other", whole.slice(0, 4, 8));
  list->register_parameter("turned", whole.clone().t());
  ht::AttachOptions options = Options();
  options.plan.budget_bytes = 1 << 20;
  (void)Take(ht::Attach(*list, session, options));
  ht::Attached again = Take(ht::Attach(*list, session, options));
  const auto equal = [&] {
    const auto now = list->named_parameters();
    EXPECT(SameBits(now["part"], kept.slice(0, 2, 6)));
    EXPECT(SameBits(now["other"], kept.slice(0, 4, 8)));
    EXPECT(SameBits(now["turned"], kept.t()));
    EXPECT(now["turned"].strides() == kept.t().strides());
  };
  {
    const auto use = Take(again.Use(*list));
    equal();
  }
  Ok(again.Detach());
  equal();
}

TEST(OneWeightWithBytesOfItsOwnIsNamed) {
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(6);
  (void)Take(ht::Attach(*net, session, Options()));
  LayerOf(net, 3).bias.set_data(torch::rand({kWidth}));
  const hoist::Status refused = ht::Attach(*net, session, Options()).status();
  EXPECT(refused.code() == Code::kFailedPrecondition);
  EXPECT(Says(refused.message(), "3.bias"));
  ht::AttachOptions options = Options();
  options.exclude = {"3.bias"};
  const Tensor bias = LayerOf(net, 3).bias.clone();
  ht::Attached again = Take(ht::Attach(*net, session, options));
  Ok(again.Detach());
  EXPECT(SameBits(LayerOf(net, 3).bias, bias));
  nn::Sequential plain = MakeNet(6);
  EXPECT(SameBits(LayerOf(net, 3).weight, LayerOf(plain, 3).weight));
}

TEST(AClosedSessionsModuleIsAttachedAgain) {
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(7);
  std::optional<ht::Attached> attached(
      Take(ht::Attach(*net, session, Options())));
  session.Close();
  EXPECT(attached->Use(*net[0]).status().code() == Code::kFailedPrecondition);
  hoist::Session other = Connect();
  const hoist::Status refused = ht::Attach(*net, other, Options()).status();
  EXPECT(refused.code() == Code::kFailedPrecondition);
  EXPECT(Says(refused.message(), "detach it first"));
  attached.reset();
  ht::Attached again = Take(ht::Attach(*net, other, Options()));
  EqualPasses(net, again, 7);
  Ok(again.Detach());
  EqualWeights(net, 7);
}

TEST(OneThatWasMovedFromSaysSoAndLeavesTheModuleAlone) {
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(8);
  std::optional<ht::Attached> first(Take(ht::Attach(*net, session, Options())));
  ht::Attached second = std::move(*first);
  const auto refuses = [](const hoist::Status& status) {
    EXPECT(status.code() == Code::kInvalidArgument);
    EXPECT(Says(status.message(), "moved from"));
  };
  refuses(first->Use(*net[0]).status());
  refuses(first->Use("0").status());
  refuses(first->Forward(net[0]->as<Layer>(), torch::rand({1})).status());
  refuses(first->Run(*net, torch::rand({1})).status());
  refuses(first->EndPass());
  refuses(first->SetBudget(kHalf));
  refuses(first->SetOrder({"0"}));
  refuses(first->Check());
  refuses(first->Value("0.weight").status());
  refuses(first->Detach());
  EXPECT(!first->bound(*net));
  first.reset();
  EqualPasses(net, second, 8);
  // What it is given in its place lets go of the other module.
  nn::Sequential other = MakeNet(9);
  second = Take(ht::Attach(*other, session, Options()));
  EXPECT(Says(Thrown([&] { LayerOf(net, 0).weight.clone(); }),
              "attach the module again"));
  EqualPasses(other, second, 9);
  ht::Attached again = Take(ht::Attach(*net, session, Options()));
  EqualPasses(net, again, 8);
}

TEST(OneSessionAttachesAndDetachesMoreThanFits) {
  hoist::Session session = Connect();
  for (uint64_t seed = 0; seed < 9; ++seed) {
    // Of 48 MiB each; the host has 256.
    torch::manual_seed(seed);
    nn::ModuleList list;
    for (int i = 0; i < 3; ++i) list->push_back(nn::Linear(2048, 2048));
    const Tensor own = list[1]->as<nn::Linear>()->weight.clone();
    ht::AttachOptions options = Options();
    options.plan.budget_bytes = 40 << 20;
    options.plan.deadline = std::chrono::seconds(2);
    ht::Attached attached = Take(ht::Attach(*list, session, options));
    EXPECT(SameBits(Take(attached.Value("1.weight")), own));
    if (seed % 3 == 2) continue;  // Dropped.
    Ok(attached.Detach());
    EXPECT(SameBits(list[1]->as<nn::Linear>()->weight, own));
  }
}

// The last ones: they kill hoistd.
TEST(FilesAreFoundAgainAfterHoistdsDeath) {
  nn::Sequential net = MakeNet(10, at::kMeta);
  {
    hoist::Session session = Connect();
    ht::Attached attached =
        Take(ht::Attach(*net, session, Options(ModelFile(10))));
    KillAndStart();
  }
  hoist::Session session = Connect();
  ht::Attached again = Take(ht::Attach(*net, session, Options()));
  EqualPasses(net, again, 10);
  KillAndStart();
  Ok(again.Detach());
  EqualWeights(net, 10);
}

TEST(WhatWasPublishedIsSaidToBeGoneAfterHoistdsDeath) {
  nn::Sequential net = MakeNet(11);
  {
    hoist::Session session = Connect();
    ht::Attached attached = Take(ht::Attach(*net, session, Options()));
    KillAndStart();
  }
  hoist::Session session = Connect();
  const hoist::Status gone = ht::Attach(*net, session, Options()).status();
  EXPECT(gone.code() == Code::kNotFound);
  EXPECT(Says(gone.message(), "give `path` or `model`"));
  // Another worker has them yet.
  nn::Sequential other = MakeNet(11);
  ht::Attached theirs = Take(ht::Attach(*other, session, Options()));
  ht::Attached again = Take(ht::Attach(*net, session, Options()));
  EqualPasses(net, again, 11);
  Ok(theirs.Detach());
  Ok(again.Detach());
  EqualWeights(net, 11);
}

TEST(WhatDetachLostIsAttachedAgain) {
  nn::Sequential net = MakeNet(12);
  hoist::Session session = Connect();
  ht::AttachOptions options = Options();
  options.plan.stage_deadline = std::chrono::milliseconds(100);
  ht::Attached attached = Take(ht::Attach(*net, session, options));
  Kill();
  EXPECT(attached.Detach().code() == Code::kDataLoss);
  Start();
  hoist::Session later = Connect();
  nn::Sequential other = MakeNet(12);
  ht::Attached theirs = Take(ht::Attach(*other, later, Options()));
  ht::Attached again = Take(ht::Attach(*net, later, Options()));
  EqualPasses(net, again, 12);
}

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
