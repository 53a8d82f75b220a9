// hoist/torch.h's modules beside one hoistd.
#include "check.h"

#include <hoist/torch.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensors.h"

namespace {

namespace nn = torch::nn;
namespace ht = hoist::torch;
using namespace hoist_check;  // NOLINT
using hoist::Code;
using torch::Tensor;

struct BlockImpl : nn::Module {
  explicit BlockImpl(int64_t width)
      : up(register_module("up", nn::Linear(width, 2 * width))),
        norm(register_module("norm", nn::BatchNorm1d(2 * width))),
        down(register_module("down", nn::Linear(2 * width, width))),
        scale(register_parameter("scale", torch::rand({width}))) {}
  Tensor forward(const Tensor& x) {
    return x + down(torch::relu(norm(up(x)))) * scale;
  }

  nn::Linear up;
  nn::BatchNorm1d norm;
  nn::Linear down;
  Tensor scale;
};
TORCH_MODULE(Block);

struct HeadImpl : nn::Module {
  explicit HeadImpl(const Tensor& words)
      : weight(register_parameter("weight", words)) {}
  Tensor forward(const Tensor& x) { return at::linear(x, weight); }

  Tensor weight;
};
TORCH_MODULE(Head);

constexpr int64_t kWidth = 64, kBlocks = 6, kWords = 512;

struct NetImpl : nn::Module {
  NetImpl()
      : words(register_module("words", nn::Embedding(kWords, kWidth))),
        blocks(register_module("blocks", nn::ModuleList())),
        head(register_module("head", Head(words->weight))) {
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(Block(kWidth));
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = words(ids);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x);
  }

  nn::Embedding words;
  nn::ModuleList blocks;
  Head head;
};
TORCH_MODULE(Net);

Net MakeNet(uint64_t seed) {
  torch::manual_seed(seed);
  return Net();
}
Tensor Ids(c10::Device device) {
  return torch::arange(96, torch::kLong).mul(37).remainder(kWords).to(device);
}
// Of the tied net, each byte once; buffers are not hoist's.
uint64_t BytesOf(const Net& net) {
  uint64_t bytes = 0;
  for (const Tensor& weight : net->parameters()) bytes += weight.nbytes();
  return bytes - net->words->weight.nbytes();
}

hoist::Result<Tensor> Pass(NetImpl& net, ht::Attached& attached,
                           const Tensor& ids) {
  auto x = attached.Forward(net.words, ids);
  if (!x.ok()) return x;
  for (const auto& block : *net.blocks) {
    x = attached.Forward(block->as<Block>(), *x);
    if (!x.ok()) return x;
  }
  x = attached.Forward(net.head, *x);
  if (!x.ok()) return x;
  if (hoist::Status s = attached.EndPass(); !s.ok()) return s;
  return x;
}

ht::AttachOptions Budget(uint64_t bytes) {
  ht::AttachOptions options;
  options.plan.budget_bytes = bytes;
  options.plan.deadline = std::chrono::seconds(30);
  return options;
}
uint64_t HalfOf(const Net& net) { return BytesOf(net) / 2 + (64 << 10); }

// Three passes and three after a change of budget, with running statistics.
// Another order than a pass takes costs copies, never a wrong byte; the pass's
// own costs none.
TEST(AnOrderThatIsSetIsNotLearnedAway) {
  hoist::Session session = Connect();
  Net plain = MakeNet(11), net = MakeNet(11);
  ht::Attached attached = Take(ht::Attach(*net, session, Budget(HalfOf(net))));
  plain->to(attached.device());
  const Tensor ids = Ids(attached.device());
  const auto pass = [&] {
    EXPECT(SameBits(Take(Pass(*net, attached, ids)), plain->forward(ids)));
  };
  for (int i = 0; i < 3; ++i) pass();
  const hoist::Model& model = attached.model();
  std::vector<std::string> backwards;
  for (uint32_t g = model.group_count(); g-- > 0;) {
    if (model.group_image_bytes(g) == 0) continue;
    backwards.emplace_back(model.group_name(g));
  }
  EXPECT(attached.SetOrder({"no such group"}).code() == Code::kNotFound);
  pass();
  Ok(attached.SetOrder(backwards));
  for (int i = 0; i < 3; ++i) pass();
  EXPECT(attached.plan().stats().skipped > 0);  // It is not learned away.
  Ok(attached.Check());
}

void EqualUnder(const ht::AttachOptions& options, uint64_t seed) {
  hoist::Session session = Connect();
  Net plain = MakeNet(seed), net = MakeNet(seed);
  ht::Attached attached = Take(ht::Attach(*net, session, options));
  plain->to(attached.device());
  const Tensor ids = Ids(attached.device());
  EXPECT(attached.plan().info().streamed_count > 0);
  uint64_t skipped = 0;
  for (int pass = 0; pass < 6; ++pass) {
    std::optional<c10::InferenceMode> mode;
    if (pass % 2 == 1) mode.emplace();
    if (pass == 3) Ok(attached.SetBudget(BytesOf(net) + (1 << 20)));
    const Tensor expected = plain->forward(ids);
    EXPECT(SameBits(Take(Pass(*net, attached, ids)), expected));
    if (pass == 0) skipped = attached.plan().stats().skipped;
  }
  // The first pass taught the order, the tied head at its end included.
  EXPECT(attached.plan().stats().skipped == skipped);
  EXPECT(attached.plan().stats().unplanned == 0);
  EXPECT(attached.plan().info().streamed_count == 0);
  Ok(attached.Check());
}

TEST(PassesEqualResidentOnesByBlock) {
  EqualUnder(Budget(HalfOf(MakeNet(1))), 1);
}
TEST(PassesEqualResidentOnesByLeaf) {
  ht::AttachOptions options = Budget(HalfOf(MakeNet(2)));
  options.groups = ht::Groups::kLeaf;
  // A block's leaves are staged at once; those must not take turns.
  options.plan.budget_bytes = BytesOf(MakeNet(2)) * 3 / 4;
  EqualUnder(options, 2);
}
TEST(PassesEqualResidentOnesByRule) {
  ht::AttachOptions options = Budget(HalfOf(MakeNet(3)));
  options.rule = [](const std::string& name,
                    const nn::Module&) -> std::optional<std::string> {
    if (name == "blocks.0" || name == "blocks.1") return "first two";
    if (name == "blocks" || name.empty()) return std::nullopt;
    return name;
  };
  EqualUnder(options, 3);
}

TEST(TiesAreOneObjectAndOneCopy) {
  hoist::Session session = Connect();
  Net net = MakeNet(4);
  const uint64_t bytes = BytesOf(net);
  ht::Attached attached = Take(ht::Attach(*net, session, Budget(HalfOf(net))));
  EXPECT(net->head->weight.is_same(net->words->weight));
  // Images are aligned, a little more than the bytes.
  EXPECT(attached.model().image_bytes() < bytes + (64 << 10));
  const auto use = Take(attached.Use(*net->head));
  EXPECT(net->head->weight.data_ptr() == net->words->weight.data_ptr());
}

// Weights that are views of one storage.
struct ViewsImpl : nn::Module {
  ViewsImpl() {
    const Tensor all = torch::rand({16, 64});
    low = register_parameter("low", all.narrow(0, 0, 10).detach());
    high = register_parameter("high", all.narrow(0, 6, 10).detach());
    turned = register_parameter("turned", torch::rand({8, 32}).t());
    twin = register_parameter("twin", turned.detach());
  }
  Tensor low, high, turned, twin;
};

TEST(ViewsAreKeptOnceAndComeBack) {
  hoist::Session session = Connect();
  ViewsImpl views;
  const std::vector<Tensor> tensors = {views.low, views.high, views.turned,
                                       views.twin};
  std::vector<Tensor> before;
  for (const Tensor& tensor : tensors) before.push_back(tensor.clone());
  ht::Attached attached = Take(ht::Attach(views, session, Budget(1 << 20)));
  EXPECT(attached.model().group_count() == 1);
  EXPECT(attached.model().image_bytes() < 16 * 64 * 4 + 8 * 32 * 4 + 4096);
  {
    const auto use = Take(attached.Use(views));
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT(SameBits(tensors[i], before[i]));
    }
    EXPECT(views.turned.stride(0) == 1);
    EXPECT(views.turned.data_ptr() == views.twin.data_ptr());
    EXPECT(views.low.is_alias_of(views.high));
  }
  Ok(attached.Detach());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT(SameBits(tensors[i], before[i]));
  }
  EXPECT(views.low.is_alias_of(views.high));
  EXPECT(views.high.storage_offset() == 6 * 64);
  EXPECT(views.turned.stride(0) == 1);
  EXPECT(views.turned.is_alias_of(views.twin));
  EXPECT(!views.turned.is_alias_of(views.low));
}

TEST(BuffersThatForwardWritesAreKept) {
  hoist::Session session = Connect();
  Net plain = MakeNet(5), net = MakeNet(5);
  ht::Attached attached = Take(ht::Attach(*net, session, Budget(HalfOf(net))));
  plain->to(attached.device());
  const Tensor ids = Ids(attached.device());
  for (int pass = 0; pass < 3; ++pass) {
    plain->forward(ids);
    Take(Pass(*net, attached, ids));
  }
  const auto same = [&] {
    for (const auto& item : plain->named_buffers()) {
      if (!SameBits(item.value(), net->named_buffers()[item.key()])) {
        return false;
      }
    }
    return true;
  };
  EXPECT(same());
  const Tensor count = net->blocks[0]->as<Block>()->norm->num_batches_tracked;
  EXPECT(count.item<int64_t>() == 3);
  Ok(attached.Detach());
  EXPECT(same());
  EXPECT(count.is_cpu());
}

// Every type, and shapes at the edges.
struct OddImpl : nn::Module {
  OddImpl() {
    const Tensor bits = torch::randint(0, 256, {3, 16}, torch::kByte);
    const auto add = [&](const char* name, Tensor tensor) {
      register_parameter(name, std::move(tensor), /*requires_grad=*/false);
    };
    for (const auto type :
         {torch::kByte, torch::kChar, torch::kShort, torch::kInt, torch::kLong,
          torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble,
          torch::kComplexFloat, torch::kComplexDouble, torch::kFloat8_e4m3fn,
          torch::kFloat8_e5m2}) {
      add(c10::toString(type), bits.clone().view(type));
    }
    add("bool", bits.gt(100));
    add("scalar", torch::rand({}));
    add("empty", torch::empty({0, 4}));
    add("odd", torch::rand({7, 3, 1}));
    add("grid", torch::rand({4, 6}).slice(1, 1, 6, 2));
    register_parameter("learned", torch::rand({5}), /*requires_grad=*/true);
  }
};

TEST(DetachGivesBackExactly) {
  hoist::Session session = Connect();
  OddImpl odd;
  struct Was {
    Tensor handle, copy;
    std::vector<int64_t> strides;
    int64_t offset;
    size_t storage;
    bool grad;
  };
  std::vector<Was> all;
  for (const Tensor& t : odd.parameters()) {
    all.push_back({t, t.detach().clone(), t.strides().vec(), t.storage_offset(),
                   t.storage().nbytes(), t.requires_grad()});
  }
  ht::Attached attached = Take(ht::Attach(odd, session, Budget(1 << 20)));
  for (const Was& was : all) {
    EXPECT(was.handle.sizes() == was.copy.sizes());
    EXPECT(was.handle.scalar_type() == was.copy.scalar_type());
    EXPECT(was.handle.strides().vec() == was.strides);
  }
  {
    const auto use = Take(attached.Use(odd));
    for (const Was& was : all) EXPECT(SameBits(was.handle, was.copy));
  }
  Ok(attached.Detach());
  for (const Was& was : all) {
    EXPECT(SameBits(was.handle, was.copy));
    EXPECT(was.handle.strides().vec() == was.strides);
    EXPECT(was.handle.storage_offset() == was.offset);
    EXPECT(was.handle.storage().nbytes() == was.storage);
    EXPECT(was.handle.requires_grad() == was.grad);
    EXPECT(was.handle.is_cpu());
  }
  for (const Was& was : all) was.handle.detach().zero_();
  EXPECT(attached.Use(odd).status().code() == Code::kFailedPrecondition);
  EXPECT(attached.Detach().code() == Code::kFailedPrecondition);
}

TEST(AModuleOnTheGpuComesBackThere) {
  if (!torch::cuda::is_available()) throw LeftOut("no GPU");
  hoist::Session session = Connect();
  Net plain = MakeNet(21), net = MakeNet(21);
  plain->to(torch::kCUDA);
  net->to(torch::kCUDA);
  ht::Attached attached = Take(ht::Attach(*net, session, Budget(HalfOf(net))));
  const Tensor ids = Ids(attached.device());
  plain->to(attached.device());
  EXPECT(SameBits(Take(Pass(*net, attached, ids)), plain->forward(ids)));
  Ok(attached.Detach());
  for (const auto& item : plain->named_parameters()) {
    const Tensor back = net->named_parameters()[item.key()];
    EXPECT(back.is_cuda() && SameBits(back, item.value()));
  }
  EXPECT(net->head->weight.is_alias_of(net->words->weight));
}

TEST(SomebodyElsesViewStaysTied) {
  hoist::Session session = Connect();
  nn::Linear linear(8, 8);
  const Tensor mine = linear->weight.detach();
  const void* address = mine.data_ptr();
  ht::Attached attached = Take(ht::Attach(*linear, session, Budget(1 << 20)));
  EXPECT(mine.data_ptr() == address);
  Ok(attached.Detach());
  EXPECT(linear->weight.data_ptr() == address);
}

TEST(UseOutsideAScopeThrows) {
  hoist::Session session = Connect();
  Net net = MakeNet(6);
  ht::Attached attached = Take(ht::Attach(*net, session, Budget(HalfOf(net))));
  const Tensor ids = Ids(attached.device());
  Take(Pass(*net, attached, ids));
  const auto block = net->blocks[2]->as<Block>();
  const Tensor weight = block->down->weight;
  EXPECT(weight.sizes() == c10::IntArrayRef({kWidth, 2 * kWidth}));
  EXPECT(weight.is_cpu());
  const Tensor x = torch::rand({4, 2 * kWidth});
  const std::string said = Thrown([&] { block->down->forward(x); });
  EXPECT(Says(said, "\"blocks.2.down."));
  EXPECT(Says(said, " is in hoistd"));
  EXPECT(Says(said, "\"blocks.2\" is not staged"));
  for (const std::function<void()>& read : std::vector<std::function<void()>>{
           [&] { weight.sum().item(); }, [&] { weight.clone(); },
           [&] { weight.t().contiguous(); }, [&] { weight.data_ptr(); },
           [&] { (void)weight[0][0].item<float>(); },
           [&] { weight.detach().zero_(); }, [&] { x.mm(weight.t()); },
           [&] { weight.to(torch::kHalf); },
           [&] { net->words->forward(ids.cpu()); }}) {
    EXPECT(Says(Thrown(read), "is not staged"));
  }
  // In another group's scope, too.
  const auto use = Take(attached.Use(*net->blocks[0]));
  EXPECT(Says(Thrown([&] { weight.clone(); }), "is not staged"));
}

TEST(AddressesStayOverAThousandStagings) {
  hoist::Session session = Connect();
  Net net = MakeNet(7);
  ht::Attached attached = Take(ht::Attach(*net, session, Budget(HalfOf(net))));
  const Tensor ids = Ids(attached.device());
  Take(Pass(*net, attached, ids));  // The order is learned by then.
  std::map<int64_t, std::set<const void*>> seen;
  for (int i = 0; i < 1000; ++i) {
    const int64_t block = i % kBlocks;
    const Tensor& weight = net->blocks[block]->as<Block>()->up->weight;
    const auto* object = weight.unsafeGetTensorImpl();
    auto use = Take(attached.Use(*net->blocks[block]));
    seen[block].insert(weight.data_ptr());
    EXPECT(weight.unsafeGetTensorImpl() == object);
    Ok(use.End());
  }
  for (const auto& [block, addresses] : seen) EXPECT(addresses.size() == 1);
  Ok(attached.Check());
}

TEST(ASmallBudgetIsRefusedAndTheModuleAsItWas) {
  hoist::Session session = Connect();
  Net plain = MakeNet(8), net = MakeNet(8);
  const void* address = net->words->weight.data_ptr();
  const hoist::Status refused =
      ht::Attach(*net, session, Budget(4096)).status();
  EXPECT(refused.code() == Code::kResourceExhausted);
  EXPECT(net->words->weight.data_ptr() == address);
  const Tensor ids = Ids(at::kCPU);
  EXPECT(SameBits(net->forward(ids), plain->forward(ids)));
  ht::Attached attached = Take(ht::Attach(*net, session, Budget(HalfOf(net))));
  EXPECT(attached.SetBudget(4096).code() == Code::kResourceExhausted);
  plain->to(attached.device());
  EXPECT(SameBits(Take(Pass(*net, attached, ids.to(attached.device()))),
                  plain->forward(ids.to(attached.device()))));
}

TEST(NoDaemonIsUnavailable) {
  hoist::ConnectOptions options;
  options.socket_path = "/nonexistent/hoistd.sock";
  EXPECT(hoist::Session::Connect(options).status().code() ==
         Code::kUnavailable);
  hoist::Session session = Connect();
  session.Close();
  nn::Linear linear(4, 4);
  const hoist::Status refused = ht::Attach(*linear, session).status();
  EXPECT(refused.code() == Code::kFailedPrecondition);
  EXPECT(linear->forward(torch::rand({1, 4})).defined());
}

TEST(GroupsThatTakeTurnsAreNotStagedAtOnce) {
  hoist::Session session = Connect();
  torch::manual_seed(9);
  nn::ModuleList list;
  for (int i = 0; i < 4; ++i) list->push_back(nn::Linear(128, 128));
  // Room for one group.
  ht::Attached attached = Take(ht::Attach(*list, session, Budget(70 << 10)));
  auto first = Take(attached.Use("0"));
  const hoist::Status refused = attached.Use(*list[1]).status();
  EXPECT(refused.code() == Code::kFailedPrecondition);
  EXPECT(Says(refused.message(), "larger budget"));
  Ok(first.End());
  Take(attached.Use(*list[1]));
}

TEST(BackwardAfterTheScopeThrows) {
  const torch::AutoGradMode record(true);
  hoist::Session session = Connect();
  nn::ModuleList list(nn::Linear(32, 32), nn::Linear(32, 32));
  for (Tensor& weight : list->parameters()) weight.set_requires_grad(false);
  // Room for one.
  ht::Attached attached = Take(ht::Attach(*list, session, Budget(10 << 10)));
  const Tensor x = torch::rand(
      {2, 32}, torch::device(attached.device()).requires_grad(true));
  const Tensor y = Take(attached.Forward(list[0]->as<nn::Linear>(), x)).sum();
  EXPECT(y.requires_grad());
  EXPECT(!Thrown([&] { y.backward(); }).empty());
  const auto again = Take(attached.Use(*list[0]));
  EXPECT(!Thrown([&] { y.backward(); }).empty());
}

TEST(BackwardThroughWhatIsBoundIsRightUntilThePlanIsMadeAnew) {
  const torch::AutoGradMode record(true);
  hoist::Session session = Connect();
  nn::ModuleList list(nn::Linear(32, 32), nn::Linear(32, 32));
  for (Tensor& weight : list->parameters()) weight.set_requires_grad(false);
  const Tensor weight = list[0]->as<nn::Linear>()->weight.clone();
  ht::Attached attached = Take(ht::Attach(*list, session, Budget(1 << 20)));
  const Tensor x = torch::rand(
      {2, 32}, torch::device(attached.device()).requires_grad(true));
  const auto forward = [&] {
    return Take(attached.Forward(list[0]->as<nn::Linear>(), x)).sum();
  };
  forward().backward();
  EXPECT(torch::allclose(x.grad()[1].cpu(), weight.sum(0)));
  const Tensor y = forward();
  Ok(attached.SetBudget(2 << 20));
  EXPECT(!Thrown([&] { y.backward(); }).empty());
}

TEST(ModulesOfInferenceModeWork) {
  const c10::InferenceMode mode;
  EqualUnder(Budget(HalfOf(MakeNet(10))), 10);
}

TEST(EqualWeightsAreOneModelAndOthersAttachByName) {
  hoist::Session session = Connect(), other = Connect();
  Net plain = MakeNet(11), one = MakeNet(11), two = MakeNet(11),
      three = MakeNet(12);
  ht::AttachOptions options = Budget(HalfOf(plain));
  ht::Attached first = Take(ht::Attach(*one, session, options));
  ht::Attached second = Take(ht::Attach(*two, other, options));
  EXPECT(first.model().id() == second.model().id());
  // Its weights are others, which it lets go of; its buffers are as new.
  options.model = std::string(first.model().name());
  ht::Attached third = Take(ht::Attach(*three, other, options));
  EXPECT(third.model().id() == first.model().id());
  plain->to(first.device());
  const Tensor ids = Ids(first.device());
  const Tensor expected = plain->forward(ids);
  EXPECT(SameBits(Take(Pass(*one, first, ids)), expected));
  EXPECT(SameBits(Take(Pass(*two, second, ids)), expected));
  EXPECT(SameBits(Take(Pass(*three, third, ids)), expected));
  Ok(third.Detach());
  EXPECT(three->head->weight.is_same(three->words->weight));
  EXPECT(SameBits(three->words->weight, plain->words->weight));
  nn::Linear stranger(3, 3);
  EXPECT(ht::Attach(*stranger, other, options).status().code() ==
         Code::kNotFound);
}

TEST(WeightsAndBuffersComeFromAFile) {
  Net plain = MakeNet(13), net = MakeNet(14);
  const Tensor ids = Ids(at::kCPU);
  plain->forward(ids);  // So that the statistics say something.
  std::map<std::string, Tensor> tensors;
  for (const auto& item : plain->named_parameters()) {
    if (item.key() == "head.weight") continue;  // Tied: there once.
    tensors["net." + item.key()] = item.value();
  }
  for (const auto& item : plain->named_buffers()) {
    if (item.value().scalar_type() != torch::kFloat) continue;
    tensors["net." + item.key()] = item.value();
  }
  const std::string path = folder + "/check.safetensors";
  WriteModel(path, tensors);
  hoist::Session session = Connect();
  ht::AttachOptions options = Budget(HalfOf(net));
  options.path = path;
  options.name = "check-file";
  options.rename = [](const std::string& name) { return "net." + name; };
  ht::Attached attached = Take(ht::Attach(*net, session, options));
  plain->to(attached.device());
  plain->eval();
  net->eval();
  const Tensor there = ids.to(attached.device());
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT(SameBits(Take(Pass(*net, attached, there)), plain->forward(there)));
  }
  Ok(attached.Detach());
  for (const auto& item : plain->named_parameters()) {
    EXPECT(SameBits(net->named_parameters()[item.key()], item.value()));
  }
}

TEST(ValueIsTheTruth) {
  hoist::Session session = Connect();
  Net plain = MakeNet(15), net = MakeNet(15);
  ht::Attached attached = Take(ht::Attach(*net, session, Budget(HalfOf(net))));
  for (const auto& item : plain->named_parameters()) {
    const Tensor value = Take(attached.Value(item.key()));
    EXPECT(SameBits(value, item.value()));
    EXPECT(value.is_cpu());
  }
  EXPECT(SameBits(Take(attached.Value("blocks.1.norm.running_var")),
                  plain->blocks[1]->as<Block>()->norm->running_var));
  EXPECT(attached.Value("blocks.9.scale").status().code() == Code::kNotFound);
}

TEST(WhatHoistCannotKeepIsRefusedByName) {
  hoist::Session session = Connect();
  nn::ModuleList list(nn::Linear(4, 4), nn::Linear(4, 4));
  list[1]->register_parameter("sparse", torch::eye(4).to_sparse(),
                              /*requires_grad=*/false);
  hoist::Status refused = ht::Attach(*list, session).status();
  EXPECT(refused.code() == Code::kInvalidArgument);
  EXPECT(Says(refused.message(), "\"1.sparse\""));
  ht::AttachOptions options = Budget(1 << 20);
  options.exclude = {"1.sparse"};
  ht::Attached attached = Take(ht::Attach(*list, session, options));
  refused = ht::Attach(*list, session, options).status();
  EXPECT(refused.code() == Code::kFailedPrecondition);
  EXPECT(Says(refused.message(), "attached already"));
}

TEST(ExcludedModulesStayTheProcesssOwn) {
  hoist::Session session = Connect();
  Net plain = MakeNet(16), net = MakeNet(16);
  ht::AttachOptions options = Budget(HalfOf(net));
  options.exclude = {"words", "blocks.1"};
  ht::Attached attached = Take(ht::Attach(*net, session, options));
  EXPECT(attached.model().group_count() == kBlocks - 1);
  EXPECT(SameBits(net->head->weight, plain->head->weight));  // No scope.
  plain->to(attached.device());
  const Tensor ids = Ids(attached.device());
  EXPECT(SameBits(Take(Pass(*net, attached, ids)), plain->forward(ids)));
}

TEST(ARowMayHaveWeightsOfItsOwn) {
  hoist::Session session = Connect();
  nn::ModuleList list(nn::Linear(4, 4), nn::Linear(4, 4));
  const Tensor scale = torch::rand({4});
  list->register_parameter("scale", scale.clone());
  ht::Attached attached = Take(ht::Attach(*list, session, Budget(1 << 20)));
  EXPECT(attached.model().group_count() == 3);
  {
    const auto use = Take(attached.Use(*list));
    EXPECT(SameBits(list->named_parameters()["scale"], scale));
  }
  Ok(attached.Detach());
  EXPECT(SameBits(list->named_parameters()["scale"], scale));
}

TEST(ReadOnlyBuffersMayBeHoisted) {
  hoist::Session session = Connect();
  nn::Linear linear(4, 4);
  const Tensor table = torch::rand({64, 64});
  linear->register_buffer("table", table.clone());
  ht::AttachOptions options = Budget(1 << 20);
  options.hoist_buffer = [](const std::string& name, const Tensor&) {
    return name == "table";
  };
  ht::Attached attached = Take(ht::Attach(*linear, session, options));
  EXPECT(attached.model().image_bytes() >= table.nbytes());
  EXPECT(!Thrown([&] { linear->named_buffers()["table"].clone(); }).empty());
  const auto use = Take(attached.Use(*linear));
  EXPECT(SameBits(linear->named_buffers()["table"], table));
}

TEST(ThreadsShareAModule) {
  hoist::Session session = Connect();
  torch::manual_seed(17);
  nn::Sequential plain, net;
  for (int i = 0; i < 4; ++i) {
    nn::Linear linear(96, 96);
    plain->push_back(linear);
    nn::Linear copy(96, 96);
    copy->weight.set_data(linear->weight.clone());
    copy->bias.set_data(linear->bias.clone());
    net->push_back(copy);
  }
  // All resident: no two threads' groups take turns.
  ht::Attached attached = Take(ht::Attach(*net, session, Budget(4 << 20)));
  plain->to(attached.device());
  const Tensor x = torch::rand({8, 96}).to(attached.device());
  const Tensor expected = plain->forward(x);
  std::atomic<int> bad{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 50; ++i) {
        auto y = attached.Run(*net, x);
        if (!y.ok() || !SameBits(*y, expected)) ++bad;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(bad == 0);
}

TEST(AModuleIsUsedByAnyOfItsNames) {
  hoist::Session session = Connect();
  nn::Linear linear(4, 4);
  nn::Module both;
  for (const char* name : {"a", "b"}) both.register_module(name, linear);
  ht::Attached attached = Take(ht::Attach(both, session, Budget(1 << 20)));
  for (const char* name : {"a", "b"}) Take(attached.Use(name));
}

TEST(HandWrittenWorkersStageByName) {
  hoist::Session session = Connect();
  Net plain = MakeNet(18), net = MakeNet(18);
  ht::Attached attached = Take(ht::Attach(*net, session, Budget(HalfOf(net))));
  hoist::PlanOptions options;
  options.budget_bytes = HalfOf(plain);
  options.deadline = std::chrono::seconds(30);
  hoist::Session other = Connect();
  ht::StagedTensors staged = Take(ht::StagedTensors::Create(
      other, Take(other.DescribeModel(std::string(attached.model().name()))),
      options));
  const std::string name = "blocks.3.up.weight";
  const Tensor& expected = plain->blocks[3]->as<Block>()->up->weight;
  std::set<const void*> objects;
  for (int pass = 0; pass < 3; ++pass) {
    for (uint32_t g = 0; g < staged.model().group_count(); ++g) {
      auto scope = Take(staged.Stage(g));
      if (staged.model().group_name(g) != "blocks.3") continue;
      EXPECT(SameBits(scope[name], expected));
      EXPECT(scope[name].device() == staged.device());
      if (pass > 0) objects.insert(scope[name].unsafeGetTensorImpl());
      EXPECT(scope.tensor("none").status().code() == Code::kNotFound);
      EXPECT(Says(Thrown([&] { scope["none"]; }), "none"));
      Ok(scope.End());
      EXPECT(scope.tensor(name).status().code() == Code::kFailedPrecondition);
    }
    Ok(staged.EndPass());
  }
  EXPECT(objects.size() == 1);
  EXPECT(staged.Stage("none").status().code() == Code::kNotFound);
  EXPECT(staged.Stage(1000).status().code() == Code::kOutOfRange);
  Ok(staged.Check());
}

TEST(StrangersAndBadOptionsAreRefused) {
  hoist::Session session = Connect();
  Net net = MakeNet(19);
  nn::Linear stranger(2, 2);
  ht::AttachOptions options = Budget(HalfOf(net));
  options.order = {"no such group"};
  EXPECT(ht::Attach(*net, session, options).status().code() == Code::kNotFound);
  options.order.clear();
  options.path = "/nonexistent/model.safetensors";
  EXPECT(!ht::Attach(*net, session, options).ok());
  options.model = "both";
  EXPECT(ht::Attach(*net, session, options).status().code() ==
         Code::kInvalidArgument);
  ht::Attached attached = Take(ht::Attach(*net, session, Budget(HalfOf(net))));
  EXPECT(attached.Use(*stranger).status().code() == Code::kNotFound);
  EXPECT(attached.Use("blocks.77").status().code() == Code::kNotFound);
  // What has no weights of its own needs none.
  nn::Sequential mixed(nn::ReLU(), nn::Linear(4, 4), nn::Linear(4, 4));
  ht::Attached other = Take(ht::Attach(*mixed, session, Budget(1 << 20)));
  Take(other.Run(*mixed, torch::rand({1, 4}).to(other.device())));
}

// The last one: hoistd stays dead.
TEST(HoistdsDeathIsAnError) {
  hoist::Session session = Connect();
  Net net = MakeNet(20);
  ht::AttachOptions options = Budget(HalfOf(net));
  options.plan.stage_deadline = std::chrono::seconds(2);  // It waits so long.
  ht::Attached attached = Take(ht::Attach(*net, session, options));
  const Tensor ids = Ids(attached.device());
  Take(Pass(*net, attached, ids));
  Ok(Take(attached.Use(*net->words)).End());
  EXPECT(kill(hoistd, SIGKILL) == 0);
  while (session.Check().ok()) std::this_thread::yield();
  EXPECT(Pass(*net, attached, ids).status().code() == Code::kUnavailable);
  EXPECT(attached.Check().ok() == attached.device().is_cpu());
  const Tensor& streamed = net->blocks[3]->as<Block>()->up->weight;
  EXPECT(Says(Thrown([&] { streamed.clone(); }), "is not staged"));
  // A resident one is bound, and its bytes are mapped here.
  EXPECT(SameBits(net->words->weight, MakeNet(20)->words->weight));
  EXPECT(attached.Detach().code() == Code::kDataLoss);  // Nobody has them.
  EXPECT(Says(Thrown([&] { streamed.clone(); }), "has ended"));
  EXPECT(Says(Thrown([&] { net->words->weight.clone(); }), "has ended"));
}

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
