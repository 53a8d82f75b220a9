// A transformer whose weights live in hoistd, in C++: LibTorch's own modules,
// a budget of device memory smaller than the weights.
//
//   transformer [--socket PATH] [--width N] [--layers N] [--tokens N]
//               [--passes N] [--budget MIB]
//
// The budget is half of the weights by default. Compares, bit for bit, with the
// same weights in ordinary memory. Exit status: 0 if equal, 1 if not, 2 on an
// error.
#include <hoist/torch.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

namespace nn = torch::nn;
using Clock = std::chrono::steady_clock;

struct Args {
  std::string socket;
  int64_t width = 256, layers = 8, tokens = 32, passes = 4, budget_mib = 0;
};

struct BlockImpl : nn::Module {
  explicit BlockImpl(int64_t width)
      : heads(width / 64),
        norm1(register_module("norm1", nn::LayerNorm(Norm(width)))),
        norm2(register_module("norm2", nn::LayerNorm(Norm(width)))),
        qkv(register_module("qkv", nn::Linear(width, 3 * width))),
        mix(register_module("mix", nn::Linear(width, width))),
        up(register_module("up", nn::Linear(width, 4 * width))),
        down(register_module("down", nn::Linear(4 * width, width))) {}

  static nn::LayerNormOptions Norm(int64_t width) {
    return nn::LayerNormOptions({width});
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto parts = qkv(norm1(x)).chunk(3, -1);
    const auto split = [&](const torch::Tensor& y) {
      return y.view({y.size(0), y.size(1), heads, -1}).transpose(1, 2);
    };
    const torch::Tensor seen = at::scaled_dot_product_attention(
        split(parts[0]), split(parts[1]), split(parts[2]), /*attn_mask=*/{},
        /*dropout_p=*/0.0, /*is_causal=*/true);
    x = x + mix(seen.transpose(1, 2).reshape(x.sizes()));
    return x + down(torch::gelu(up(norm2(x))));
  }

  int64_t heads;
  nn::LayerNorm norm1, norm2;
  nn::Linear qkv, mix, up, down;
};
TORCH_MODULE(Block);

constexpr int64_t kWords = 4096;

struct HeadImpl : nn::Module {
  explicit HeadImpl(const torch::Tensor& words)
      : weight(register_parameter("weight", words)) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return at::linear(x, weight);
  }

  torch::Tensor weight;
};
TORCH_MODULE(Head);

// The head's weight is the embedding's.
struct NetImpl : nn::Module {
  explicit NetImpl(const Args& args)
      : words(register_module("words", nn::Embedding(kWords, args.width))),
        places(
            register_module("places", nn::Embedding(args.tokens, args.width))),
        blocks(register_module("blocks", nn::Sequential())),
        norm(register_module("norm",
                             nn::LayerNorm(BlockImpl::Norm(args.width)))),
        head(register_module("head", Head(words->weight))) {
    for (int64_t i = 0; i < args.layers; ++i) {
      blocks->push_back(Block(args.width));
    }
  }

  nn::Embedding words, places;
  nn::Sequential blocks;
  nn::LayerNorm norm;
  Head head;
};
TORCH_MODULE(Net);

torch::Tensor Places(const torch::Tensor& ids) {
  return torch::arange(ids.size(1), ids.options());
}

torch::Tensor RunResident(NetImpl& net, const torch::Tensor& ids) {
  const torch::Tensor x = net.words(ids) + net.places(Places(ids));
  return net.head(net.norm(net.blocks->forward(x)));
}

// The same, where hoist is told what is used next.
hoist::Result<torch::Tensor> RunStaged(NetImpl& net,
                                       hoist::torch::Attached& attached,
                                       const torch::Tensor& ids) {
  auto words = attached.Forward(net.words, ids);
  if (!words.ok()) return words.status();
  auto places = attached.Forward(net.places, Places(ids));
  if (!places.ok()) return places.status();
  auto x = attached.Run(*net.blocks, *words + *places);
  if (!x.ok()) return x.status();
  x = attached.Forward(net.norm, *x);
  if (!x.ok()) return x.status();
  x = attached.Forward(net.head, *x);
  if (!x.ok()) return x.status();
  if (hoist::Status s = attached.EndPass(); !s.ok()) return s;
  return x;
}

void Wait(c10::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

bool Parse(int argc, char** argv, Args* args) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string arg = argv[i];
    const int64_t number = std::atoll(argv[i + 1]);
    if (arg == "--socket") {
      args->socket = argv[i + 1];
    } else if (arg == "--width") {
      args->width = number;
    } else if (arg == "--layers") {
      args->layers = number;
    } else if (arg == "--tokens") {
      args->tokens = number;
    } else if (arg == "--passes") {
      args->passes = number;
    } else if (arg == "--budget") {
      args->budget_mib = number;
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && args->width >= 64 && args->width % 64 == 0 &&
         args->layers > 0 && args->tokens > 0 && args->passes > 0;
}

int Fail(const char* what, const hoist::Status& status) {
  std::fprintf(stderr, "transformer: %s: %s\n", what,
               status.ToString().c_str());
  return 2;
}

double Mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// What the plan keeps resident needs no scope; true: nor any other bytes.
bool RunWithoutScopes(NetImpl& net, const hoist::torch::Attached& attached,
                      const torch::Tensor& ids, const torch::Tensor& expected) {
  size_t bound = 0;
  for (nn::AnyModule& block : *net.blocks) {
    if (attached.bound(*block.ptr())) ++bound;
  }
  std::printf("%zu of %zu blocks stay where they are and need no scope\n",
              bound, net.blocks->size());
  if (!attached.bound(net)) return true;
  const bool equal = torch::equal(RunResident(net, ids), expected);
  std::printf("a pass without any scope: %s\n", equal ? "equal" : "DIFFERENT");
  return equal;
}

int Run(const Args& args) {
  hoist::ConnectOptions where;
  where.socket_path = args.socket;
  auto session = hoist::Session::Connect(where);
  if (!session.ok()) return Fail("connect", session.status());

  torch::manual_seed(7);
  Net net(args);
  uint64_t bytes = 0;
  for (const torch::Tensor& weight : net->parameters())
    bytes += weight.nbytes();
  bytes -= net->words->weight.nbytes();  // Twice among them.
  const torch::Tensor ids = torch::randint(kWords, {2, args.tokens});

  hoist::torch::AttachOptions options;
  options.plan.budget_bytes = args.budget_mib > 0
                                  ? static_cast<uint64_t>(args.budget_mib) << 20
                                  : bytes / 2;
  options.plan.deadline = std::chrono::seconds(30);
  const auto begin = Clock::now();
  auto attached = hoist::torch::Attach(*net, *session, options);
  if (!attached.ok()) return Fail("attach", attached.status());
  const auto end = Clock::now();
  const hoist_plan_info plan = attached->plan().info();
  std::printf(
      "%.1f MiB in %u groups, budget %.1f MiB on %s: %u streamed; "
      "attached in %.1f ms\n",
      Mib(bytes), attached->model().group_count(), Mib(plan.budget_bytes),
      attached->device().str().c_str(), plan.streamed_count,
      std::chrono::duration<double, std::milli>(end - begin).count());

  // As the seed made it before, in ordinary memory.
  torch::manual_seed(7);
  Net plain(args);
  plain->to(attached->device());
  const torch::Tensor inputs = ids.to(attached->device());
  const torch::Tensor expected = RunResident(*plain, inputs);
  bool equal = true;
  for (int64_t pass = 1; pass <= args.passes; ++pass) {
    Wait(attached->device());
    const auto start = Clock::now();
    auto logits = RunStaged(*net, *attached, inputs);
    if (!logits.ok()) return Fail("pass", logits.status());
    Wait(attached->device());
    if (hoist::Status s = attached->Check(); !s.ok()) return Fail("check", s);
    const bool same = torch::equal(*logits, expected);
    equal = equal && same;
    std::printf(
        "pass %lld: %.1f ms, %s\n", static_cast<long long>(pass),
        std::chrono::duration<double, std::milli>(Clock::now() - start).count(),
        same ? "equal to resident weights" : "DIFFERENT");
  }
  const hoist_plan_stats stats = attached->plan().stats();
  const hoist_plan_info last = attached->plan().info();
  std::printf(
      "resident %.1f MiB, ring %.1f MiB, %.1f MiB streamed a pass; "
      "%llu stages, %llu of residents, %llu ready at once\n",
      Mib(last.resident_bytes), Mib(last.ring_bytes), Mib(last.streamed_bytes),
      static_cast<unsigned long long>(stats.stages),
      static_cast<unsigned long long>(stats.resident_stages),
      static_cast<unsigned long long>(stats.ready_stages));
  equal = RunWithoutScopes(*net, *attached, inputs, expected) && equal;
  if (hoist::Status s = attached->Detach(); !s.ok()) return Fail("detach", s);
  const bool back = torch::equal(net->head->weight, plain->head->weight.cpu());
  std::printf("%s\n", equal && back ? "ok    equal to resident weights, and "
                                      "given back"
                                    : "FAIL  not equal");
  return equal && back ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Args args;
  if (!Parse(argc, argv, &args)) {
    std::fprintf(stderr,
                 "usage: transformer [--socket PATH] [--width N] [--layers N] "
                 "[--tokens N] [--passes N] [--budget MIB]\n");
    return 2;
  }
  const torch::NoGradGuard no_grad;
  return Run(args);
}
