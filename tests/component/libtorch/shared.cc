// A module whose weights Python's worker has in hoistd, too: prints the name of
// the model that it shares, and passes.
//
//   shared SOCKET
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

constexpr int64_t kWidth = 64;

// Weights of its own above a row of blocks.
struct NetImpl : nn::Module {
  NetImpl() {
    scale = register_parameter("scale", torch::arange(kWidth) / kWidth);
    for (int i = 0; i < 4; ++i) {
      nn::Linear one(kWidth, kWidth);
      one->weight.set_data(torch::arange(kWidth * kWidth)
                               .reshape({kWidth, kWidth})
                               .to(at::kFloat) +
                           i);
      one->bias.set_data(torch::arange(kWidth).to(at::kFloat) - i);
      blocks->push_back(one);
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
  const Tensor own = net->blocks[2]->as<nn::Linear>()->weight.clone();
  ht::Attached attached = Take(ht::Attach(*net, session));
  std::printf("%s\n", std::string(attached.model().name()).c_str());
  EXPECT(SameBits(Take(attached.Value("blocks.2.weight")), own));
  Ok(attached.Detach());
  return 0;
}
