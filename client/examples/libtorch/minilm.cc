// Sentence embeddings with all-MiniLM-L6-v2's real weights, by LibTorch's
// operators over tensors that hoist stages: a worker written by hand.
//
//   minilm MODEL_FOLDER [--socket PATH] [--passes N] [--budget BYTES]
//
// The budget is 60 % of the model by default. Compares, bit for bit, with the
// same operators over weights that this process read from the file. Exit
// status: 0 if equal, 1 if not, 2 on an error.
#include <hoist/torch/staged.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

using torch::Tensor;
using Clock = std::chrono::steady_clock;
using Table = std::map<std::string, Tensor>;
using Weights = std::function<Tensor(const std::string& name)>;

constexpr int64_t kHeads = 12;
constexpr int kLayers = 6;
constexpr double kEpsilon = 1e-12;

// What WordPiece makes of: "The cat sits on the warm windowsill.", "A kitten is
// resting by the sunny window.", "Interest rates rose again this quarter."
const std::vector<std::vector<int64_t>> kSentences = {
    {101, 1996, 4937, 7719, 2006, 1996, 4010, 3645, 8591, 1012, 102},
    {101, 1037, 18401, 2003, 8345, 2011, 1996, 11559, 3332, 1012, 102},
    {101, 3037, 6165, 3123, 2153, 2023, 4284, 1012, 102}};

Tensor Linear(const Weights& w, const std::string& name, const Tensor& x) {
  return at::linear(x, w(name + ".weight"), w(name + ".bias"));
}
Tensor Norm(const Weights& w, const std::string& name, const Tensor& x) {
  return at::layer_norm(x, {x.size(-1)}, w(name + ".weight"), w(name + ".bias"),
                        kEpsilon);
}

Tensor Embed(const Weights& w, const Tensor& ids) {
  const Tensor x =
      at::embedding(w("embeddings.word_embeddings.weight"), ids) +
      w("embeddings.position_embeddings.weight").narrow(0, 0, ids.size(1)) +
      w("embeddings.token_type_embeddings.weight")[0];
  return Norm(w, "embeddings.LayerNorm", x);
}

Tensor Layer(const Weights& w, const std::string& name, const Tensor& x) {
  const auto heads = [&](const char* which) {
    return Linear(w, name + ".attention.self." + which, x)
        .view({x.size(0), x.size(1), kHeads, -1})
        .transpose(1, 2);
  };
  const Tensor seen = at::scaled_dot_product_attention(
      heads("query"), heads("key"), heads("value"));
  const Tensor mixed = Linear(w, name + ".attention.output.dense",
                              seen.transpose(1, 2).reshape(x.sizes()));
  const Tensor y = Norm(w, name + ".attention.output.LayerNorm", mixed + x);
  const Tensor inner = at::gelu(Linear(w, name + ".intermediate.dense", y));
  return Norm(w, name + ".output.LayerNorm",
              Linear(w, name + ".output.dense", inner) + y);
}

// `step(group, run)` calls run with that group's weights.
template <typename Step>
hoist::Result<Tensor> Encode(const Tensor& ids, const Step& step) {
  Tensor x;
  hoist::Status status =
      step("embeddings", [&](const Weights& w) { x = Embed(w, ids); });
  for (int i = 0; i < kLayers && status.ok(); ++i) {
    const std::string name = "encoder.layer." + std::to_string(i);
    status = step(name, [&](const Weights& w) { x = Layer(w, name, x); });
  }
  if (!status.ok()) return status;
  const Tensor mean = x.mean(1);
  return mean / mean.norm();
}

hoist::Result<std::vector<Tensor>> EncodeAll(
    hoist::torch::StagedTensors& staged) {
  std::vector<Tensor> all;
  for (const std::vector<int64_t>& ids : kSentences) {
    auto one =
        Encode(torch::tensor(ids).unsqueeze(0).to(staged.device()),
               [&](const std::string& group, const auto& run) -> hoist::Status {
                 auto scope = staged.Stage(group);
                 if (!scope.ok()) return scope.status();
                 run([&](const std::string& name) { return (*scope)[name]; });
                 return scope->End();
               });
    if (!one.ok()) return one.status();
    if (hoist::Status s = staged.EndPass(); !s.ok()) return s;
    all.push_back(*one);
  }
  return all;
}

// The F32 tensors of a safetensors file, read by this process.
bool ReadModel(const std::string& path, const hoist::Model& model,
               Table* table) {
  std::ifstream file(path, std::ios::binary);
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof(size));
  if (!file || size > (uint64_t{100} << 20)) return false;
  std::string header(size, '\0');
  if (!file.read(header.data(), static_cast<std::streamsize>(size))) {
    return false;
  }
  for (uint32_t g = 0; g < model.group_count(); ++g) {
    for (const hoist::TensorView& view : model.tensors(g)) {
      if (view.dtype() != hoist::DType::kF32) continue;
      const std::string name(view.name());
      size_t at = header.find('"' + name + "\":");
      if (at != std::string::npos) at = header.find("\"data_offsets\"", at);
      unsigned long long begin = 0, end = 0;
      if (at == std::string::npos ||
          std::sscanf(header.c_str() + at, "\"data_offsets\" : [ %llu , %llu",
                      &begin, &end) != 2) {
        return false;
      }
      Tensor tensor = torch::empty(view.shape());
      if (tensor.nbytes() != end - begin) return false;
      file.seekg(static_cast<std::streamoff>(8 + size + begin));
      if (!file.read(static_cast<char*>(tensor.data_ptr()),
                     static_cast<std::streamsize>(end - begin))) {
        return false;
      }
      table->emplace(name, std::move(tensor));
    }
  }
  return true;
}

int Fail(const char* what, const hoist::Status& status) {
  std::fprintf(stderr, "minilm: %s: %s\n", what, status.ToString().c_str());
  return 2;
}

int Run(const std::string& folder, const std::string& socket, int passes,
        uint64_t budget) {
  hoist::ConnectOptions where;
  where.socket_path = socket;
  auto session = hoist::Session::Connect(where);
  if (!session.ok()) return Fail("connect", session.status());
  auto model = session->RegisterModel({"minilm", folder});
  if (!model.ok()) return Fail("register", model.status());
  Table table;
  if (!ReadModel(folder + "/model.safetensors", *model, &table)) {
    std::fprintf(stderr, "minilm: cannot read the model in %s\n",
                 folder.c_str());
    return 2;
  }
  hoist::PlanOptions options;
  options.budget_bytes = budget > 0 ? budget : model->image_bytes() * 6 / 10;
  options.deadline = std::chrono::seconds(30);
  auto staged =
      hoist::torch::StagedTensors::Create(*session, std::move(*model), options);
  if (!staged.ok()) return Fail("plan", staged.status());
  for (auto& [name, tensor] : table) tensor = tensor.to(staged->device());

  std::vector<Tensor> expected;
  for (const std::vector<int64_t>& ids : kSentences) {
    auto one =
        Encode(torch::tensor(ids).unsqueeze(0).to(staged->device()),
               [&](const std::string&, const auto& run) {
                 run([&](const std::string& name) { return table.at(name); });
                 return hoist::Status();
               });
    if (!one.ok()) return Fail("resident", one.status());
    expected.push_back(*one);
  }
  bool equal = true;
  for (int pass = 1; pass <= passes; ++pass) {
    const auto begin = Clock::now();
    auto found = EncodeAll(*staged);
    if (!found.ok()) return Fail("pass", found.status());
    for (size_t i = 0; i < expected.size(); ++i) {  // Waits for the device.
      equal = equal && torch::equal((*found)[i], expected[i]);
    }
    if (hoist::Status s = staged->Check(); !s.ok()) return Fail("check", s);
    std::printf("%zu sentences: %.1f ms\n", expected.size(),
                std::chrono::duration<double, std::milli>(Clock::now() - begin)
                    .count());
  }
  const auto near = [&](int a, int b) {
    return (expected[a] * expected[b]).sum().item<double>();
  };
  const hoist_plan_info plan = staged->plan().info();
  std::printf("budget %.1f of %.1f MiB on %s: %u groups streamed\n",
              static_cast<double>(plan.budget_bytes) / (1 << 20),
              static_cast<double>(staged->model().image_bytes()) / (1 << 20),
              staged->device().str().c_str(), plan.streamed_count);
  std::printf("cat ~ kitten %.3f, cat ~ interest rates %.3f\n", near(0, 1),
              near(0, 2));
  const bool sense = near(0, 1) > near(0, 2) + 0.3;
  std::printf("%s\n", equal ? "ok    equal to resident weights, bit for bit"
                            : "FAIL  not equal to resident weights");
  return equal && sense ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder, socket;
  int passes = 3;
  uint64_t budget = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const bool more = i + 1 < argc;
    if (arg == "--socket" && more) {
      socket = argv[++i];
    } else if (arg == "--passes" && more) {
      passes = std::atoi(argv[++i]);
    } else if (arg == "--budget" && more) {
      budget = std::strtoull(argv[++i], nullptr, 10);
    } else if (folder.empty() && arg.rfind("--", 0) != 0) {
      folder = arg;
    } else {
      folder.clear();
      break;
    }
  }
  if (folder.empty() || passes < 1) {
    std::fprintf(stderr,
                 "usage: minilm MODEL_FOLDER [--socket PATH] [--passes N] "
                 "[--budget BYTES]\n");
    return 2;
  }
  const torch::NoGradGuard no_grad;
  return Run(folder, socket, passes, budget);
}
