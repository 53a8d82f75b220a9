// A module whose weights Python's worker has in hoistd, too: prints the name of
// the model that it shares, and passes.
//
// libtorch_test.py makes the same module, and runs this beside it.
#include <hoist/torch.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "check.h"
#include "tensors.h"

namespace {

namespace nn = torch::nn;
namespace ht = hoist::torch;
using namespace hoist_check;  // NOLINT

constexpr int64_t kWidth = 2100;

// Weights of its own above a row of blocks that are large: each has parts.
struct NetImpl : nn::Module {
  NetImpl() {
    scale = register_parameter("scale", torch::arange(kWidth) / kWidth);
    for (int i = 0; i < 3; ++i) {
      nn::Sequential block;
      for (int j = 0; j < 2; ++j) {
        nn::Linear one(kWidth, kWidth);
        one->weight.fill_(2 * i + j);
        one->bias.set_data(torch::arange(kWidth).to(at::kFloat) - i);
        block->push_back(one);
      }
      blocks->push_back(block);
    }
    register_module("blocks", blocks);
  }

  Tensor scale;
  nn::ModuleList blocks;
};
TORCH_MODULE(Net);

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const torch::NoGradGuard no_grad;
  hoist::ConnectOptions options;
  options.socket_path = argv[1];
  hoist::Session session = Take(hoist::Session::Connect(options));
  Net net;
  const Tensor own = net->blocks[2]
                         ->as<nn::Sequential>()
                         ->at<nn::LinearImpl>(1)
                         .weight.clone();
  ht::AttachOptions attach;
  attach.plan.budget_bytes = 64 << 20;
  ht::Attached attached = Take(ht::Attach(*net, session, attach));
  EXPECT(attached.model().FindGroup("blocks.2/2").ok());
  std::printf("%s\n", std::string(attached.model().name()).c_str());
  EXPECT(SameBits(Take(attached.Value("blocks.2.1.weight")), own));
  Ok(attached.Detach());
  return 0;
}
