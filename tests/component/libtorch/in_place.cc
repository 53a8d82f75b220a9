// hoist/torch/in_place.h beside one hoistd.
#include <hoist/torch/in_place.h>
#include <hoist/torch/staged.h>
#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "tensors.h"

namespace {

namespace ht = hoist::torch;
using namespace hoist_check;  // NOLINT
using hoist::Code;

constexpr int64_t kExperts = 8, kInner = 1024, kWidth = 512;
constexpr uint64_t kExpert = kInner * kWidth * 4;  // A piece.
const char* const kUp = "layers.0.experts.up";
const char* const kTable = "embed.weight";

// The experts, and a table whose rows are not of whole pages, nor is it.
std::map<std::string, Tensor> Weights() {
  torch::manual_seed(3);
  return {{kUp, torch::rand({kExperts, kInner, kWidth})},
          {kTable, torch::rand({1500, kWidth})},
          {"norm.weight", torch::rand({kWidth})}};
}
// Written at the first call.
const std::string& Path() {
  static const std::string path = [] {
    const std::string file = folder + "/in_place.safetensors";
    WriteModel(file, Weights());
    return file;
  }();
  return path;
}

struct World {
  explicit World(uint64_t budget)
      : weights(Weights()), session(Connect()), tensors(Open(budget)) {}
  std::optional<ht::InPlaceTensors> Open(uint64_t budget) {
    ht::InPlaceTensorsOptions options;
    options.hot_budget_bytes = budget;
    return Take(
        ht::InPlaceTensors::Open(session, Path(), {{kUp}, {kTable}}, options));
  }
  Tensor Expected(const Tensor& chosen) {
    return weights[kUp].index_select(0, chosen).sum(0);
  }
  // One pass that touches these experts.
  Tensor Run(const Tensor& chosen) {
    auto pass = Take(tensors->Begin());
    Ok(tensors->Count(kUp, chosen));
    return (*tensors)[kUp].index_select(0, chosen.to(tensors->device())).sum(0);
  }

  std::map<std::string, Tensor> weights;
  hoist::Session session;
  std::optional<ht::InPlaceTensors> tensors;
};

TEST(AllIsTheFilesAtEveryBudget) {
  for (const uint64_t budget : {uint64_t{0}, 3 * kExpert, 100 * kExpert}) {
    World world(budget);
    for (int i = 0; i < 2; ++i) {
      EXPECT(SameBits((*world.tensors)[kUp], world.weights[kUp]));
      EXPECT(SameBits((*world.tensors)[kTable], world.weights[kTable]));
      Ok(world.tensors->Advance(/*wait=*/true));
    }
    const hoist_in_place_stats stats = world.tensors->stats();
    EXPECT(stats.piece_count == 8 + 2);
    EXPECT(stats.hot_bytes <= budget);
    EXPECT(stats.hot_piece_count ==
           (budget > 10 * kExpert ? 10u : budget / kExpert));
    Ok(world.tensors->Check());
  }
}

TEST(AFailedOpenLeavesNoModel) {
  World world(0);  // Of the same files, under another name.
  ht::InPlaceTensorsOptions options;
  options.name = "undone";
  options.device = 9;
  EXPECT(
      !ht::InPlaceTensors::Open(world.session, Path(), {{kUp}}, options).ok());
  EXPECT(world.session.DescribeModel("undone").status().code() ==
         Code::kNotFound);
}

TEST(WhatIsTouchedMostBecomesHotBetweenPasses) {
  World world(2 * kExpert);
  const Tensor chosen = torch::tensor({6, 1});
  const Tensor expected = world.Expected(chosen);
  uint64_t cold = UINT64_MAX, quiet = 0;
  for (int i = 0; i < 100'000 && quiet < 40; ++i) {
    EXPECT(SameBits(world.Run(chosen), expected));
    const hoist_in_place_stats stats = world.tensors->stats();
    quiet = stats.touched_cold_bytes == cold && stats.touched_hot_bytes > 0
                ? quiet + 1
                : 0;
    cold = stats.touched_cold_bytes;
  }
  EXPECT(quiet == 40);
  EXPECT(world.tensors->stats().hot_bytes == 2 * kExpert);
}

TEST(AnAddressIsOneForGoodAndATensorKeepsIt) {
  World world(3 * kExpert);
  const Tensor up = (*world.tensors)[kUp];
  const void* const address = up.const_data_ptr();
  Ok(world.tensors->SetBudget(0));
  Ok(world.tensors->Advance(true));
  EXPECT((*world.tensors)[kUp].const_data_ptr() == address);
  world.tensors.reset();
  EXPECT(SameBits(up[7].t(), world.weights[kUp][7].t()));
}

TEST(WithinInferenceModeToo) {
  const c10::InferenceMode mode;
  World world(2 * kExpert);
  const Tensor chosen = torch::tensor({2, 3, 99, -1});  // Two are none.
  Ok(world.tensors->Count(kUp, chosen));
  Ok(world.tensors->Advance(true));
  EXPECT(world.tensors->stats().touched_hot_bytes +
             world.tensors->stats().touched_cold_bytes ==
         2 * kExpert);
}

TEST(TwoOfOneProcessShareThePieces) {
  World first(kExpert), second(kExpert);
  EXPECT(SameBits((*first.tensors)[kUp], (*second.tensors)[kUp]));
  first.tensors.reset();
  EXPECT(SameBits((*second.tensors)[kUp], second.weights[kUp]));
}

TEST(TheFilesOtherTensorsAreOfTheSameModel) {
  World world(0);
  const std::string name(world.tensors->model().name());
  auto staged = Take(ht::StagedTensors::Create(
      world.session, Take(world.session.DescribeModel(name)), [&] {
        hoist::PlanOptions plan;
        plan.budget_bytes = 1 << 20;
        plan.order = {Take(world.tensors->model().FindGroup("norm"))};
        return plan;
      }()));
  auto scope = Take(staged.Stage("norm"));
  EXPECT(SameBits(scope["norm.weight"], world.weights["norm.weight"]));
  Ok(scope.End());
}

TEST(WhatCannotBeIsRefusedByName) {
  World world(0);
  const auto refused = [&](const std::vector<ht::TouchedInPart>& wanted,
                           Code code, const std::string& what) {
    ht::InPlaceTensorsOptions options;
    options.name = "other";
    const hoist::Status status =
        ht::InPlaceTensors::Open(world.session, Path(), wanted, options)
            .status();
    return status.code() == code && Says(status.message(), what);
  };
  EXPECT(refused({}, Code::kInvalidArgument, "no tensors"));
  EXPECT(refused({{"nothing"}}, Code::kNotFound, "\"nothing\""));
  EXPECT(refused({{kUp, 3}}, Code::kInvalidArgument, "3 units"));
  EXPECT(refused({{kUp}, {kUp}}, Code::kInvalidArgument, "twice"));
  EXPECT(world.tensors->tensor("nothing").status().code() == Code::kNotFound);
  EXPECT(world.tensors->Count("nothing", torch::tensor({1})).code() ==
         Code::kNotFound);
  EXPECT(world.tensors->Count(kUp, torch::rand({1})).code() ==
         Code::kInvalidArgument);
  EXPECT(Says(Thrown([&] { (void)(*world.tensors)["nothing"]; }), "nothing"));
}

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
