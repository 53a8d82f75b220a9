// What becomes of hoist/torch.h's modules when hoistd dies under hoist-keeper,
// and the next one goes on with the session but not with the plan. `hoistd` is
// the keeper here.
#include <hoist/torch.h>
#include <torch/torch.h>

#include <cinttypes>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "../../../shared/include/hoist/shared/lane_layout.h"
#include "check.h"
#include "hoistd.h"
#include "tensors.h"

namespace {

namespace nn = torch::nn;
namespace ht = hoist::torch;
using namespace hoist_check;  // NOLINT
using hoist::Code;

constexpr int kLayers = 6, kWidth = 64;

pid_t HoistdOfKeeper() {
  const std::string pid = std::to_string(hoistd);
  std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
  pid_t child = 0;
  children >> child;
  return child;
}

void KillAndAwaitTheNext() {
  const pid_t before = HoistdOfKeeper();
  EXPECT(before > 0 && kill(before, SIGKILL) == 0);
  while (HoistdOfKeeper() == before || HoistdOfKeeper() == 0) {
    std::this_thread::yield();
  }
  while (!TryToConnect().ok()) std::this_thread::yield();
}

// As a hoistd of another release leaves them: the next one goes on without.
int SpoilLanes() {
  int spoiled = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    if (line.find("/memfd:hoist-lane") == std::string::npos ||
        std::sscanf(line.c_str(), "%" SCNxPTR "-", &begin) != 1) {
      continue;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    auto& header = *reinterpret_cast<hoist::lane::Header*>(begin);
    EXPECT(header.magic == hoist::lane::kMagic);
    header.adoption.store(hoist::lane::kAdoption + 1);
    ++spoiled;
  }
  return spoiled;
}

nn::Sequential MakeNet(uint64_t seed) { return Linears(seed, kLayers, kWidth); }

// Half of it streams.
struct World {
  explicit World(hoist::Session& session, uint64_t seed)
      : plain(MakeNet(seed)), net(MakeNet(seed)) {
    ht::AttachOptions options;
    options.groups = ht::Groups::kLeaf;
    options.name = "kept-" + std::to_string(seed);
    options.plan.budget_bytes = kLayers * (kWidth + 1) * kWidth * 4 / 2;
    attached.emplace(Take(ht::Attach(*net, session, options)));
    x = torch::rand({4, kWidth}).to(attached->device());
    plain->to(attached->device());
    expected = plain->forward(x);
  }
  hoist::Status Pass() {
    auto y = attached->Run(*net, x);
    if (!y.ok()) return y.status();
    EXPECT(SameBits(*y, expected));
    return attached->EndPass();
  }

  nn::Sequential plain, net;
  Tensor x, expected;
  std::optional<ht::Attached> attached;
};

TEST(APlanThatEndedAloneBetweenPassesIsMadeAnew) {
  hoist::Session session = Connect();
  World world(session, 1);
  Ok(world.Pass());
  EXPECT(SpoilLanes() == 1);
  KillAndAwaitTheNext();
  PassAgain(world);
  Ok(world.Pass());
  Ok(session.Check());
  // And one whose lane is as it was goes on.
  KillAndAwaitTheNext();
  Ok(world.Pass());
  Ok(world.attached->Detach());
}

// On a GPU, whose results are void.
TEST(APlanThatEndedAloneInAPassIsOneErrorAtMost) {
  hoist::Session session = Connect();
  World world(session, 2);
  Ok(world.Pass());
  hoist::Status hit;
  Tensor x = world.x;
  int layer = 0;
  for (nn::AnyModule& element : *world.net) {
    auto use = world.attached->Use(*element.ptr());
    if (!use.ok()) {
      hit = use.status();
      break;
    }
    x = element.forward<Tensor>(x);
    if (layer++ == 1) {
      EXPECT(SpoilLanes() == 1);
      KillAndAwaitTheNext();
    }
    hit = use->End();
    if (!hit.ok()) break;
  }
  if (world.attached->device().is_cpu()) {
    Ok(hit);
    EXPECT(SameBits(x, world.expected));
  } else {
    EXPECT(hit.code() == Code::kUnavailable);
    EXPECT(Says(hit.message(), "run the pass again"));
    EXPECT(world.attached->Check().code() == Code::kUnavailable);
  }
  Ok(world.attached->Check());
  Ok(world.Pass());
  Ok(session.Check());
  Ok(world.attached->Detach());
}

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
