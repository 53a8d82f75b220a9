// Large blocks of hoist/torch.h's modules are several groups, so that a budget
// pays for a part of each.
//
// The device's pool has 96 MiB, the host's 384.
#include <hoist/torch.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "tensors.h"

namespace {

namespace nn = torch::nn;
namespace ht = hoist::torch;
using namespace hoist_check;  // NOLINT
using hoist::Code;

constexpr int kBlocks = 4, kLayers = 4, kWidth = 1500;
constexpr uint64_t kBlock = kLayers * (kWidth + 1) * kWidth * sizeof(float);

nn::Sequential MakeNet() { return Blocks(kBlocks, kLayers, kWidth); }

// A plain module's outputs, and an equal one that is attached.
struct World {
  explicit World(const ht::AttachOptions& options) {
    attached.emplace(Take(ht::Attach(*net, session, options)));
    x = torch::rand({2, kWidth}).to(attached->device());
    plain->to(attached->device());
    expected = plain->forward(x);
  }
  void Pass() {
    EXPECT(SameBits(Take(attached->Run(*net, x)), expected));
    Ok(attached->EndPass());
  }
  std::vector<std::string> Groups() const {
    std::vector<std::string> names;
    for (uint32_t g = 0; g < attached->model().group_count(); ++g) {
      names.emplace_back(attached->model().group_name(g));
    }
    return names;
  }
  uint64_t Streamed() const { return attached->plan().info().streamed_bytes; }

  hoist::Session session = Connect();
  nn::Sequential plain = MakeNet(), net = MakeNet();
  Tensor x, expected;
  std::optional<ht::Attached> attached;
};

ht::AttachOptions Budget(uint64_t bytes) {
  ht::AttachOptions options;
  options.plan.budget_bytes = bytes;
  return options;
}

TEST(ABudgetKeepsAPartOfEachBlock) {
  constexpr uint64_t kBudget = 11 * kBlock / 4;
  uint64_t streamed = 0;
  {
    World world(Budget(kBudget));
    EXPECT(world.Groups()[0] == "0/1" && world.Groups().size() > kBlocks);
    for (int i = 0; i < 3; ++i) world.Pass();
    streamed = world.Streamed();
    Ok(world.attached->SetBudget(kBlock + kBlock / 4));
    for (int i = 0; i < 3; ++i) world.Pass();
    EXPECT(world.Streamed() > streamed);
    Ok(world.attached->Detach());
    world.net->to(world.x.device());
    EXPECT(SameBits(world.net->forward(world.x), world.expected));
  }
  ht::AttachOptions whole = Budget(kBudget);
  whole.rule = [](const std::string& name, const nn::Module&) {
    return name.empty() ? std::nullopt : std::optional(name);
  };
  World world(whole);
  EXPECT(world.Groups().size() == kBlocks);
  for (int i = 0; i < 3; ++i) world.Pass();
  EXPECT(streamed < world.Streamed());
}

TEST(WithoutABudgetWhatExceedsTheDeviceHasParts) {
  World world({});
  EXPECT(world.Groups().size() > kBlocks);
  for (int i = 0; i < 3; ++i) world.Pass();
}

TEST(AFilesBlocksHaveParts) {
  std::map<std::string, Tensor> tensors;
  for (const auto& item : MakeNet()->named_parameters()) {
    tensors["blocks." + item.key()] = item.value();
  }
  const std::string path = folder + "/parts.safetensors";
  const std::string name = path.substr(path.find_first_not_of('/'));
  WriteModel(path, tensors);
  ht::AttachOptions options = Budget(11 * kBlock / 4);
  options.path = path;
  options.rename = [](const std::string& weight) { return "blocks." + weight; };
  for (int worker = 0; worker < 2; ++worker) {
    World world(options);
    EXPECT(world.attached->model().name() == name + "-parts");
    EXPECT(world.Groups()[0] == "blocks.0/1" &&
           world.Groups().size() > kBlocks);
    for (int i = 0; i < 3; ++i) world.Pass();
    EXPECT(world.Streamed() < kBlocks * kBlock);
    options.plan.budget_bytes = 0;  // Of the whole device, which is less.
  }
  EXPECT(Connect().DescribeModel(name).status().code() == Code::kNotFound);
}

TEST(OrdersAndUsesNameBlocks) {
  ht::AttachOptions options = Budget(2 * kBlock);
  options.order = {"0", "1", "2", "3"};
  World world(options);
  world.Pass();
  Ok(world.attached->SetOrder({"0", "1", "2", "3"}));
  world.Pass();
  {
    const auto use = Take(world.attached->Use("2"));
    const auto& block = world.plain->at<LargeBlockImpl>(2);
    EXPECT(SameBits(Take(world.attached->Value("2.layers.3.weight")),
                    block.layers->at<nn::LinearImpl>(3).weight));
  }
  const auto part = world.attached->Use("2/1");
  EXPECT(part.ok());
  EXPECT(world.attached->SetOrder({"4"}).code() == Code::kNotFound);
}

TEST(AnotherAttachedFindsTheParts) {
  World first(Budget(2 * kBlock));
  first.Pass();
  ht::AttachOptions options = Budget(kBlock + kBlock / 4);
  options.model = std::string(first.attached->model().name());
  Ok(first.attached->SetBudget(kBlock + kBlock / 4));
  World second(options);
  EXPECT(second.Groups() == first.Groups());
  for (int i = 0; i < 3; ++i) {
    first.Pass();
    second.Pass();
  }
}

TEST(ThreadsTakeTurnsOnBlocks) {
  ht::AttachOptions options = Budget(kBlock + kBlock / 4);
  options.turn_deadline = std::chrono::minutes(1);
  World world(options);
  world.Pass();
  std::atomic<int> bad{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 10; ++i) {
        const auto y = world.attached->Run(*world.net, world.x);
        if (!y.ok()) std::printf("%s\n", y.status().ToString().c_str());
        if (!y.ok() || !SameBits(*y, world.expected)) ++bad;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(bad == 0);
  Ok(world.attached->Check());
  // A thread that waits for itself is told after the deadline.
  options.turn_deadline = std::chrono::milliseconds(5);
  world.attached.reset();
  world.attached.emplace(Take(ht::Attach(*world.net, world.session, options)));
  const auto use = Take(world.attached->Use("0"));
  const hoist::Status late = world.attached->Use("1").status();
  EXPECT(late.code() == Code::kDeadlineExceeded);
  EXPECT(Says(late.message(), "larger budget"));
}

TEST(TheLeastBudgetIsABlock) {
  World world(Budget(2 * kBlock));
  const hoist::Status refused = world.attached->SetBudget(kBlock / 2);
  EXPECT(refused.code() == Code::kResourceExhausted);
  EXPECT(Says(refused.message(), "the least that would be enough"));
  world.Pass();
}

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
