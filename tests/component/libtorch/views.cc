// What becomes of what somebody keeps of a hoisted weight.
#include <hoist/torch.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "check.h"
#include "tensors.h"

namespace {

namespace nn = torch::nn;
namespace ht = hoist::torch;
using namespace hoist_check;  // NOLINT
using hoist::Code;

constexpr int64_t kWidth = 64, kLayers = 6;
constexpr uint64_t kLayerBytes = kWidth * kWidth * 4;

// As many do, it turns its weight once, in its first forward, and keeps that.
struct TurnedImpl : nn::Module {
  TurnedImpl()
      : weight(register_parameter("weight", torch::rand({kWidth, kWidth}))) {}
  Tensor forward(const Tensor& x) {
    if (!turned.defined()) turned = weight.t();
    return torch::matmul(x, turned);
  }

  Tensor weight, turned;
};
TORCH_MODULE(Turned);

nn::Sequential MakeNet(uint64_t seed) {
  torch::manual_seed(seed);
  nn::Sequential net;
  for (int64_t i = 0; i < kLayers; ++i) net->push_back(Turned());
  return net;
}
TurnedImpl& Layer(nn::Sequential& net, int64_t i) {
  return *net[i]->as<Turned>();
}

ht::AttachOptions Budget(uint64_t bytes) {
  ht::AttachOptions options;
  options.plan.budget_bytes = bytes;
  options.plan.deadline = std::chrono::seconds(30);
  return options;
}
constexpr uint64_t kHalf = kLayers * kLayerBytes / 2;
constexpr uint64_t kAll = kLayers * kLayerBytes * 2;

struct World {
  explicit World(uint64_t seed, uint64_t budget)
      : plain(MakeNet(seed)),
        net(MakeNet(seed)),
        session(Connect()),
        attached(Take(ht::Attach(*net, session, Budget(budget)))) {
    x = torch::rand({4, kWidth}).to(attached.device());
    plain->to(attached.device());
    expected = plain->forward(x);
  }
  void Pass() {
    EXPECT(SameBits(Take(attached.Run(*net, x)), expected));
    Ok(attached.EndPass());
  }

  nn::Sequential plain, net;
  hoist::Session session;
  ht::Attached attached;
  Tensor x, expected;
};

// Each of them makes a new plan, with other addresses.
TEST(KeptViewsAreRightUnderEveryPlan) {
  World world(1, kHalf);
  EXPECT(world.attached.plan().info().streamed_count > 0);
  for (int i = 0; i < 3; ++i) world.Pass();
  std::vector<std::string> backwards;
  for (int64_t i = kLayers; i-- > 0;) backwards.push_back(std::to_string(i));
  Ok(world.attached.SetOrder(backwards));
  for (int i = 0; i < 2; ++i) world.Pass();
  for (const uint64_t budget : {kAll, kHalf, kAll}) {
    Ok(world.attached.SetBudget(budget));
    for (int i = 0; i < 2; ++i) world.Pass();
  }
  Ok(world.attached.Check());
}

TEST(AKeptViewThrowsWhileItsWeightIsNotThere) {
  World world(2, kHalf);
  world.Pass();
  int64_t thrown = 0;
  for (int64_t i = 0; i < kLayers; ++i) {
    const Tensor& view = Layer(world.net, i).turned;
    if (world.attached.bound(*world.net[i])) {
      EXPECT(SameBits(view, Layer(world.plain, i).weight.t()));
      continue;
    }
    EXPECT(ShowsNothing(view, std::to_string(i) + ".weight"));
    ++thrown;
    const auto use = Take(world.attached.Use(*world.net[i]));
    EXPECT(SameBits(view, Layer(world.plain, i).weight.t()));
  }
  EXPECT(thrown > 0);
}

TEST(AKeptViewShowsTheModulesOwnMemoryAfterDetach) {
  World world(3, kHalf);
  if (!world.attached.device().is_cpu()) throw LeftOut("weights lie elsewhere");
  // Of a weight that shows nothing.
  const Tensor early = Layer(world.net, 0).weight.t();
  for (int i = 0; i < 2; ++i) world.Pass();
  Ok(world.attached.Detach());
  EXPECT(SameBits(world.net->forward(world.x), world.expected));
  TurnedImpl& first = Layer(world.net, 0);
  first.weight.detach().zero_();
  EXPECT(first.turned.count_nonzero().item<int64_t>() == 0);
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
  EXPECT(early.count_nonzero().item<int64_t>() == 0);
#endif
}

TEST(AKeptViewOfADroppedAttachedThrows) {
  std::optional<World> world(std::in_place, 4, kAll);
  world->Pass();
  nn::Sequential net = world->net;
  const ht::AttachOptions options = [&] {
    ht::AttachOptions again = Budget(kHalf);
    again.model = std::string(world->attached.model().name());
    return again;
  }();
  const Tensor x = world->x, expected = world->expected;
  hoist::Session session = Connect();
  world.reset();
  EXPECT(Says(Thrown([&] { Layer(net, 0).weight.clone(); }), "dropped"));
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
  EXPECT(Says(Thrown([&] { Layer(net, 0).turned.clone(); }), "not staged"));
#endif
  ht::Attached again = Take(ht::Attach(*net, session, options));
  for (int64_t i = 0; i < kLayers; ++i) Layer(net, i).turned = Tensor();
  EXPECT(SameBits(Take(again.Run(*net, x)), expected));
}

// What forward returns of a weight itself.
struct PartsImpl : nn::Module {
  PartsImpl() : weight(register_parameter("weight", torch::rand({16, 256}))) {}
  Tensor forward(int64_t row) { return weight[row]; }

  Tensor weight;
};
TORCH_MODULE(Parts);
struct TwoPartsImpl : nn::Module {
  TwoPartsImpl()
      : weight(register_parameter("weight", torch::rand({16, 256}))) {}
  std::tuple<Tensor, std::vector<Tensor>> forward(int64_t row) {
    return {weight[row], {weight, torch::ones({1})}};
  }

  Tensor weight;
};
TORCH_MODULE(TwoParts);

TEST(WhatForwardReturnsOfAWeightIsACopy) {
  torch::manual_seed(5);
  hoist::Session session = Connect();
  nn::ModuleList list;
  for (int i = 0; i < 4; ++i) list->push_back(Parts());
  list->push_back(TwoParts());
  std::vector<Tensor> weights;
  for (const Tensor& weight : list->parameters()) {
    weights.push_back(weight.detach().clone());
  }
  // Room for one and a half.
  ht::Attached attached =
      Take(ht::Attach(*list, session, Budget(16 * 256 * 4 * 3 / 2)));
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<Tensor> rows;
    for (int i = 0; i < 4; ++i) {
      rows.push_back(Take(attached.Forward(list[i]->as<Parts>(), i)));
    }
    const auto [row, more] = Take(attached.Forward(list[4]->as<TwoParts>(), 7));
    for (int i = 0; i < 4; ++i) EXPECT(SameBits(rows[i], weights[i][i]));
    EXPECT(SameBits(row, weights[4][7]));
    EXPECT(SameBits(more[0], weights[4]));
    Ok(attached.EndPass());
  }
}

// What the plan keeps resident needs no scope.
TEST(ResidentsAreBoundForThePlansLife) {
  World world(6, kAll);
  const auto bound = [&] {
    int64_t count = 0;
    for (int64_t i = 0; i < kLayers; ++i) {
      if (world.attached.bound(*world.net[i])) ++count;
    }
    return count;
  };
  EXPECT(bound() == 0);
  world.Pass();
  world.Pass();
  EXPECT(bound() == kLayers);
  EXPECT(world.attached.bound(*world.net));
  const uint64_t stages = world.attached.plan().stats().stages;
  const void* const address = Layer(world.net, 0).weight.const_data_ptr();
  for (int i = 0; i < 3; ++i) {
    EXPECT(SameBits(world.net->forward(world.x), world.expected));
  }
  EXPECT(world.attached.plan().stats().stages == stages);  // hoist had no part.
  EXPECT(Layer(world.net, 0).weight.const_data_ptr() == address);
  const hoist::Status refused =
      ht::Attach(*world.net, world.session, Budget(kAll)).status();
  EXPECT(refused.code() == Code::kFailedPrecondition);
  EXPECT(Says(refused.message(), "attached already"));
  Ok(world.attached.SetBudget(kHalf));
  EXPECT(bound() == 0);
  world.Pass();
  EXPECT(bound() > 0 && bound() < kLayers);
  Ok(world.attached.Detach());
  EXPECT(bound() == 0);
  world.net->to(world.x.device());
  for (int64_t i = 0; i < kLayers; ++i) Layer(world.net, i).turned = Tensor();
  EXPECT(SameBits(world.net->forward(world.x), world.expected));
}

// Of 640 uses of a module that streams, by threads, none is refused.
TEST(ThreadsTakeTurnsOnOneStreamedModule) {
  nn::Sequential plain = MakeNet(8), net = MakeNet(8);
  hoist::Session session = Connect();
  ht::AttachOptions options = Budget(kHalf);
  options.turn_deadline = std::chrono::minutes(1);
  ht::Attached attached = Take(ht::Attach(*net, session, options));
  plain->to(attached.device());
  const Tensor x = torch::rand({4, kWidth}).to(attached.device());
  const Tensor expected = plain->forward(x);
  EXPECT(SameBits(Take(attached.Run(*net, x)), expected));
  Ok(attached.EndPass());
  EXPECT(attached.plan().info().streamed_count > 1);
  std::atomic<int> bad{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 160 / kLayers; ++i) {
        const auto y = attached.Run(*net, x);
        if (!y.ok() || !SameBits(*y, expected)) ++bad;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(bad == 0);
  Ok(attached.EndPass());
  Ok(attached.Check());
  // A thread that waits for itself is told after the deadline.
  options.turn_deadline = std::chrono::milliseconds(5);
  nn::Sequential two = MakeNet(8);
  ht::Attached other = Take(ht::Attach(*two, session, options));
  std::vector<ht::Attached::Scope> scopes;
  hoist::Status late;
  for (int64_t i = 0; i < kLayers && late.ok(); ++i) {
    auto use = other.Use(*two[i]);
    late = use.ok() ? hoist::Status() : use.status();
    if (use.ok()) scopes.push_back(std::move(*use));
  }
  EXPECT(late.code() == Code::kDeadlineExceeded);
  EXPECT(Says(late.message(), "larger budget"));
}

TEST(TheSessionMayGo) {
  std::optional<hoist::Session> session(Connect());
  nn::Sequential plain = MakeNet(7), net = MakeNet(7);
  ht::Attached attached = Take(ht::Attach(*net, *session, Budget(kHalf)));
  plain->to(attached.device());
  const Tensor x = torch::rand({4, kWidth}).to(attached.device());
  session.reset();
  for (int i = 0; i < 3; ++i) {
    EXPECT(SameBits(Take(attached.Run(*net, x)), plain->forward(x)));
    Ok(attached.EndPass());
  }
  Ok(attached.SetBudget(kAll));
  {
    const auto use = Take(attached.Use(*net));
    const hoist::Status refused = attached.Detach();
    EXPECT(refused.code() == Code::kFailedPrecondition);
    EXPECT(Says(refused.message(), "scopes"));
  }
  Ok(attached.Detach());
  for (int64_t i = 0; i < kLayers; ++i) {
    EXPECT(
        SameBits(Layer(net, i).weight.to(x.device()), Layer(plain, i).weight));
  }
}

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
