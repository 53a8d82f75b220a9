// What becomes of hoist/torch.h's modules when hoistd dies, and is started
// again.
#include <hoist/torch.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>
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

constexpr int kLayers = 6, kWidth = 64;

nn::Sequential MakeNet(uint64_t seed) { return Linears(seed, kLayers, kWidth); }

std::string ModelFile(const nn::Sequential& net) {
  std::map<std::string, Tensor> tensors;
  for (const auto& item : net->named_parameters()) {
    tensors[item.key()] = item.value();
  }
  const std::string path = folder + "/death.safetensors";
  WriteModel(path, tensors);
  return path;
}

// Half of it streams.
ht::AttachOptions Options(std::chrono::milliseconds wait) {
  ht::AttachOptions options;
  options.groups = ht::Groups::kLeaf;
  options.plan.budget_bytes = kLayers * (kWidth + 1) * kWidth * 4 / 2;
  options.plan.deadline = std::chrono::seconds(30);
  options.plan.stage_deadline = wait;
  return options;
}

// A module whose weights are a file's, and what it gives.
struct World {
  explicit World(uint64_t seed, std::chrono::milliseconds wait = {})
      : plain(MakeNet(seed)), net(MakeNet(seed + 1)), options(Options(wait)) {
    options.path = ModelFile(plain);
    options.name = "death-" + std::to_string(seed);
    x = torch::rand({4, kWidth});
    expected = plain->forward(x);
  }
  void AttachTo(hoist::Session& session) {
    attached.emplace(Take(ht::Attach(*net, session, options)));
    x = x.to(attached->device());
    plain->to(attached->device());
    expected = plain->forward(x);
  }
  hoist::Status Pass() {
    auto y = attached->Run(*net, x);
    if (!y.ok()) return y.status();
    EXPECT(SameBits(*y, expected));
    return attached->EndPass();
  }
  void ExpectOwn() {
    for (size_t i = 0; i < plain->parameters().size(); ++i) {
      EXPECT(SameBits(net->parameters()[i], plain->parameters()[i]));
    }
  }

  nn::Sequential plain, net;
  ht::AttachOptions options;
  Tensor x, expected;
  std::optional<ht::Attached> attached;
};

TEST(PassesAfterItAreRightByThemselves) {
  hoist::Session session = Connect();
  World world(1);
  world.AttachTo(session);
  Ok(world.Pass());
  for (int i = 0; i < 3; ++i) {
    KillAndStart();
    PassAgain(world);
    Ok(world.Pass());
  }
  KillAndStart();
  hoist::Status set = world.attached->SetBudget(1 << 20);
  if (!world.attached->device().is_cpu() && !set.ok()) {
    set = world.attached->SetBudget(1 << 20);
  }
  Ok(set);
  EXPECT(world.attached->plan().info().budget_bytes <= (1 << 20));
  Ok(world.Pass());
  Ok(world.attached->Detach());
  world.ExpectOwn();
}

TEST(TheNextHoistdHasPartsOfBlocks) {
  constexpr int kBlocks = 2, kParts = 4, kWide = 1500;
  hoist::Session session = Connect();
  World world(99);
  world.plain = Blocks(kBlocks, kParts, kWide);
  world.net = Blocks(kBlocks, kParts, kWide);
  std::map<std::string, Tensor> tensors;
  for (const auto& item : world.plain->named_parameters()) {
    tensors["blocks." + item.key()] = item.value();
  }
  WriteModel(world.options.path, tensors);
  world.options.rename = [](const std::string& name) {
    return "blocks." + name;
  };
  world.options.groups = ht::Groups::kBlock;
  world.options.plan.budget_bytes = kParts * kWide * kWide * 4 * 5 / 4;
  world.x = torch::rand({4, kWide});
  world.AttachTo(session);
  EXPECT(world.attached->model().group_count() == kBlocks * kParts);
  Ok(world.Pass());
  for (int i = 0; i < 2; ++i) {
    KillAndStart();
    PassAgain(world);
    Ok(world.Pass());
  }
  EXPECT(world.attached->plan().info().streamed_bytes > 0);
  Ok(world.attached->Detach());
  world.ExpectOwn();
}

TEST(ThePassThatIsHitEndsWithOneError) {
  hoist::Session session = Connect();
  World world(3, std::chrono::milliseconds(300));
  world.AttachTo(session);
  Ok(world.Pass());
  for (int at = 0; at < kLayers; at += 2) {
    int layer = 0;
    hoist::Status hit;
    Tensor x = world.x;
    for (nn::AnyModule& element : *world.net) {
      auto use = world.attached->Use(*element.ptr());
      if (!use.ok()) {
        hit = use.status();
        break;
      }
      x = element.forward<Tensor>(x);
      if (layer++ == at) Kill();
      hit = use->End();
      if (!hit.ok()) break;
    }
    if (hit.ok()) hit = world.attached->EndPass();
    // Half of it is there at a time, so that the first pass lacks something.
    // What was there when hoistd died is right, and may have been the rest.
    if (at > 0 && hit.ok()) {
      EXPECT(SameBits(x, world.expected));
    } else {
      EXPECT(hit.code() == Code::kUnavailable);
    }
    Start();
    Ok(world.Pass());
  }
  Ok(world.attached->Detach());
  world.ExpectOwn();
}

TEST(WithoutAHoistdItWaitsAndSaysSo) {
  // However long the session had for its own hoistd.
  hoist::Session session = Connect(/*seconds=*/120);
  World world(5, std::chrono::milliseconds(300));
  world.AttachTo(session);
  Ok(world.Pass());
  Kill();
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) {
    EXPECT(world.Pass().code() == Code::kUnavailable);
  }
  const auto waited = std::chrono::steady_clock::now() - began;
  EXPECT(waited < std::chrono::seconds(60));
  Start();
  Ok(world.Pass());
}

TEST(OtherWeightsAreRefused) {
  hoist::Session session = Connect();
  World world(7);
  world.AttachTo(session);
  Ok(world.Pass());
  ModelFile(MakeNet(99));
  KillAndStart();
  hoist::Status passed = world.Pass();
  if (passed.code() == Code::kUnavailable) passed = world.Pass();
  EXPECT(passed.code() == Code::kDataLoss);
  EXPECT(world.attached->Detach().code() == Code::kDataLoss);
}

// A dropped session ends nothing: the module shares it.
TEST(DetachWorksAfterAClosedSession) {
  hoist::Session session = Connect();
  World world(9);
  world.AttachTo(session);
  Ok(world.Pass());
  session.Close();
  EXPECT(world.Pass().code() == Code::kFailedPrecondition);
  Ok(world.attached->Detach());
  world.ExpectOwn();
}

TEST(ViewsThatWereKeptAreRightUnderTheNextHoistd) {
  World world(23);
  {
    hoist::Session session = Connect();
    world.AttachTo(session);
  }
  Ok(world.Pass());
  std::vector<Tensor> views;
  for (nn::AnyModule& element : *world.net) {
    const auto use = Take(world.attached->Use(*element.ptr()));
    views.push_back(element.get<nn::Linear>()->weight.t());
  }
  for (int i = 0; i < 2; ++i) {
    KillAndStart();
    (void)world.Pass();  // It may be told of the end.
    Ok(world.Pass());
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const auto use =
          Take(world.attached->Use(*world.net[layer]->as<nn::Linear>()));
      EXPECT(SameBits(views[layer],
                      world.plain[layer]->as<nn::Linear>()->weight.t()));
    }
  }
  Ok(world.attached->Detach());
  world.ExpectOwn();
}

TEST(StagedTensorsAreFoundAgainInTheirFiles) {
  hoist::Session session = Connect();
  const nn::Sequential plain = MakeNet(27);
  hoist::RegisterOptions files;
  files.name = "death-staged";
  files.path = ModelFile(plain);
  auto staged = Take(ht::StagedTensors::Create(
      session, Take(session.RegisterModel(files)), Options({}).plan, files));
  const Tensor kept = Take(staged.Stage("0"))["0.weight"].t();
  for (int hoistd = 0; hoistd < 3; ++hoistd) {
    if (hoistd > 0) KillAndStart();
    if (!staged.device().is_cpu()) (void)staged.Stage("0");  // It may tell.
    for (const auto& item : plain->named_parameters()) {
      const auto scope = Take(staged.Stage(item.key().substr(0, 1)));
      EXPECT(SameBits(scope[item.key()].cpu(), item.value()));
      if (item.key() != "0.weight") continue;
      EXPECT(SameBits(kept.cpu(), item.value().t()));
    }
    EXPECT(staged.bound(0) || ShowsNothing(kept, "0.weight"));
    (void)staged.Check();
    Ok(staged.EndPass());
  }
}

// hoistd lives, and gives nothing of it to others before it has let go.
TEST(ASessionThatIsEndedIsMadeAnewByTheNextPass) {
  hoist::Session session = Connect();
  World world(25);
  {
    const torch::NoGradGuard no_grad;  // Graphs keep weights.
    world.AttachTo(session);
    Ok(world.Pass());
    const std::string listed = Ctl("--json sessions");
    const size_t at = listed.rfind("\"id\": \"") + 7;
    const std::string number = listed.substr(at, listed.find('"', at) - at);
    const std::string id = "\"id\": \"" + number + "\"";
    std::string said;
    std::thread ends([&] { said = Ctl("end " + number + " --deadline 60"); });
    while (session.Check().ok()) std::this_thread::yield();
    EXPECT(Says(Ctl("--json sessions"), id));
    PassAgain(world);
    Ok(world.Pass());
    ends.join();
    EXPECT(Says(said, "ended session " + number));
    EXPECT(!Says(Ctl("--json sessions"), id));
  }
  Ok(world.attached->Detach());
  world.ExpectOwn();
}

TEST(DetachWorksWithoutAHoistdAndAttachAgainAfterIt) {
  hoist::Session session = Connect();
  World world(11, std::chrono::milliseconds(300));
  world.AttachTo(session);
  Ok(world.Pass());
  Kill();
  const hoist::Status detached = world.attached->Detach();
  EXPECT(detached.code() == Code::kDataLoss);
  EXPECT(Says(detached.message(), "0.weight"));
  EXPECT(
      Says(Thrown([&] { world.net->parameters()[0].clone(); }), "has ended"));
  EXPECT(world.attached->Detach().code() == Code::kFailedPrecondition);
  Start();
  hoist::Session other = Connect();
  // Where they were, which is in files; or where it is told.
  Take(ht::Attach(*world.net, other, Options({})));
  world.AttachTo(other);
  Ok(world.Pass());
  Ok(world.attached->Detach());
  world.ExpectOwn();
}

TEST(WhatThisProcessStillHasIsNotLost) {
  hoist::Session session = Connect();
  nn::Sequential plain = MakeNet(13), net = MakeNet(13);
  // The storage of one weight is kept.
  const c10::Storage kept = net->parameters()[2].storage();
  ht::Attached attached =
      Take(ht::Attach(*net, session, Options(std::chrono::milliseconds(300))));
  Kill();
  EXPECT(attached.Detach().code() == Code::kDataLoss);
  EXPECT(SameBits(net->parameters()[2], plain->parameters()[2]));
  EXPECT(!Thrown([&] { net->parameters()[3].clone(); }).empty());
  Start();
}

TEST(WeightsThatAreNowhereAreSaidToBe) {
  hoist::Session session = Connect();
  nn::Sequential net = MakeNet(15), again = MakeNet(15);
  const Tensor x = torch::rand({4, kWidth});
  ht::Attached attached = Take(ht::Attach(*net, session, Options({})));
  const Tensor input = x.to(attached.device());
  const Tensor expected = Take(attached.Run(*net, input)).cpu();  // It is done.
  Ok(attached.EndPass());
  KillAndStart();
  auto y = attached.Run(*net, input);
  if (y.status().code() == Code::kUnavailable) y = attached.Run(*net, input);
  EXPECT(y.status().code() == Code::kNotFound);
  // Another that has the same ones brings them back.
  hoist::Session other = Connect();
  ht::Attached helper = Take(ht::Attach(*again, other, Options({})));
  EXPECT(SameBits(Take(attached.Run(*net, input)), expected));
  Ok(attached.Detach());
  Ok(helper.Detach());
  EXPECT(SameBits(net->parameters()[0], again->parameters()[0]));
}

TEST(AModuleWhoseAttachedWasDroppedIsAttachedAgain) {
  hoist::Session session = Connect();
  World world(17);
  world.AttachTo(session);
  EXPECT(ht::Attach(*world.net, session, world.options).status().code() ==
         Code::kFailedPrecondition);  // It is attached.
  world.attached.reset();
  EXPECT(Says(Thrown([&] { world.net->parameters()[0].clone(); }), "dropped"));
  world.AttachTo(session);
  Ok(world.Pass());
  KillAndStart();
  world.attached.reset();  // After its hoistd.
  hoist::Session other = Connect();
  world.AttachTo(other);
  Ok(world.Pass());
  Ok(world.attached->Detach());
  world.ExpectOwn();
}

// As others' need of the memory does.
TEST(ItSleepsAndComesBack) {
  hoist::Session session = Connect();
  World world(21);
  world.options.plan.gives_way = true;
  world.options.plan.budget_bytes = 0;
  world.AttachTo(session);
  Ok(world.Pass());
  EXPECT(!world.attached->bound(*world.net));
  const uint64_t generation = world.attached->plan().Describe().generation;
  const auto asleep = [&] {
    return world.attached->plan().state() == hoist::AttachmentState::kAsleep;
  };
  const auto put_to_sleep = [&] {
    Ctl("sleep " + std::to_string(hoist_session_id(session.get())));
    while (!asleep()) {
      pollfd one = {world.attached->plan().event_fd(), POLLIN, 0};
      EXPECT(poll(&one, 1, 30'000) == 1);
      eventfd_t ignored = 0;
      (void)eventfd_read(one.fd, &ignored);
    }
  };
  put_to_sleep();
  EXPECT(!Thrown([&] { (void)(world.net->parameters()[0] + 1); }).empty());
  Ok(world.Pass());
  EXPECT(!asleep());
  EXPECT(world.attached->plan().Describe().generation > generation);
  Ok(world.attached->Check());
  put_to_sleep();
  KillAndStart();
  Ok(world.Pass());  // Nothing was void: it slept.
  Ok(world.attached->Detach());
  world.ExpectOwn();
}

TEST(ThreadsGoOnTogether) {
  hoist::Session session = Connect();
  World world(19);
  world.options.plan.budget_bytes = 4 << 20;  // No two take turns.
  world.AttachTo(session);
  Ok(world.Pass());
  std::atomic<int> bad{0}, done{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad;
      while (!stop) {
        auto y = world.attached->Run(*world.net, world.x);
        if (y.ok() && SameBits(*y, world.expected)) {
          ++done;
        } else if (y.ok() || y.status().code() != Code::kUnavailable) {
          ++bad;
        }
      }
    });
  }
  for (int i = 0; i < 3; ++i) {
    const int before = done;
    while (done < before + 10 && bad == 0) std::this_thread::yield();
    KillAndStart();
  }
  const int before = done;
  while (done < before + 10 && bad == 0) std::this_thread::yield();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT(bad == 0);
}

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
