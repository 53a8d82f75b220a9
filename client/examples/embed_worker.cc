// Sentence embeddings with all-MiniLM-L6-v2 in C++, its weights staged by
// hoist: embed.py's work, by hand-written kernels. For devices whose memory the
// CPU can read (emulated ones).
//
//   embed_worker MODEL_FOLDER [--socket PATH] [--budget BYTES] [--out FILE]
//                [SENTENCE...]
//
// The budget is what may be leased at once: by default 60 % of the model.
// Compares, bit for bit, with the same kernels over weights that lie in this
// process, read from the file. Exit status: 0 if they are equal, 1 if not, 2 on
// an error.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "client/examples/bert.h"
#include "client/examples/wordpiece.h"
#include "hoist/hoist.h"

namespace {

using hoist_example::BertConfig;
using Clock = std::chrono::steady_clock;
using Ids = std::vector<std::vector<int>>;
using Vectors = std::vector<std::vector<float>>;

struct Args {
  std::string folder, socket, out;
  uint64_t budget = 0;
  std::vector<std::string> sentences;
};

const char* const kSentences[] = {
    "The cat sits on the warm windowsill.",
    "A kitten is resting by the sunny window.",
    "Interest rates rose again this quarter.",
    "The central bank raised its key rate.",
    "He tuned the guitar before the concert.",
    "The musician prepared his instrument for the show.",
};

double Milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

int Fail(const char* what, const hoist::Status& status) {
  std::fprintf(stderr, "embed_worker: %s: %s\n", what,
               status.ToString().c_str());
  return 2;
}

bool Parse(int argc, char** argv, Args* args) {
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const bool option = arg.rfind("--", 0) == 0;
    if (option && i + 1 == argc) return false;
    if (arg == "--socket") {
      args->socket = argv[++i];
    } else if (arg == "--budget") {
      args->budget = std::strtoull(argv[++i], nullptr, 10);
    } else if (arg == "--out") {
      args->out = argv[++i];
    } else if (option) {
      return false;
    } else if (args->folder.empty()) {
      args->folder = arg;
    } else {
      args->sentences.push_back(arg);
    }
  }
  if (args->sentences.empty()) {
    args->sentences.assign(std::begin(kSentences), std::end(kSentences));
  }
  return !args->folder.empty();
}

// By name, the elements of a group's or a model's tensors.
using Table = std::map<std::string, const float*>;

hoist_example::Weights Lookup(const Table& table) {
  return [&table](const std::string& name) {
    const auto it = table.find(name);
    if (it != table.end()) return it->second;
    std::fprintf(stderr, "embed_worker: the model has no F32 tensor %s\n",
                 name.c_str());
    std::exit(2);
  };
}

// A tensor's bytes in a safetensors file, found by its name in the header.
bool ReadTensor(std::ifstream& file, const std::string& header,
                const std::string& name, std::vector<float>* out) {
  size_t at = header.find('"' + name + "\":");
  if (at == std::string::npos) return false;
  at = header.find("\"data_offsets\"", at);
  unsigned long long begin = 0, end = 0;
  if (at == std::string::npos ||
      std::sscanf(header.c_str() + at, "\"data_offsets\" : [ %llu , %llu",
                  &begin, &end) != 2) {
    return false;
  }
  out->resize((end - begin) / sizeof(float));
  file.seekg(static_cast<std::streamoff>(8 + header.size() + begin));
  return static_cast<bool>(
      file.read(reinterpret_cast<char*>(out->data()),
                static_cast<std::streamsize>(end - begin)));
}

// The whole model's F32 tensors, read by this process and kept.
bool ReadModel(const std::string& path, const hoist::Model& model,
               std::map<std::string, std::vector<float>>* tensors) {
  std::ifstream file(path, std::ios::binary);
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof(size));
  if (!file || size > (uint64_t{100} << 20)) return false;
  std::string header(size, '\0');
  if (!file.read(header.data(), static_cast<std::streamsize>(size))) {
    return false;
  }
  for (uint32_t g = 0; g < model.group_count(); ++g) {
    for (const hoist::TensorView& tensor : model.tensors(g)) {
      if (tensor.dtype() != hoist::DType::kF32) continue;
      const std::string name(tensor.name());
      if (!ReadTensor(file, header, name, &(*tensors)[name])) return false;
    }
  }
  return true;
}

// One step of the model over one group's weights.
void Step(const BertConfig& config, const Table& table,
          const std::string& group, const Ids& ids,
          hoist_example::States* states) {
  const hoist_example::Weights weights = Lookup(table);
  if (group == "embeddings") {
    *states = hoist_example::Embed(config, weights, ids);
  } else {
    hoist_example::RunLayer(config, weights, group, states);
  }
}

Vectors PoolAll(const BertConfig& config, const hoist_example::States& states) {
  Vectors vectors;
  for (const auto& x : states) {
    vectors.push_back(hoist_example::Pool(config, x));
  }
  return vectors;
}

struct PassCounts {
  int stages = 0;
  int resident = 0;
};

// Group after group: stage, prefetch the next, compute, release.
hoist::Result<Vectors> RunStaged(const BertConfig& config, const Ids& ids,
                                 hoist::Session& session,
                                 const hoist::Model& model,
                                 const std::vector<uint32_t>& order,
                                 PassCounts* counts) {
  hoist_example::States states;
  hoist::StageOptions options;
  options.deadline = std::chrono::seconds(60);
  for (size_t i = 0; i < order.size(); ++i) {
    hoist::Result<hoist::Lease> lease = session.Stage(model, order[i], options);
    if (!lease.ok()) return lease.status();
    hoist::Status next =
        session.Prefetch(model, {order[(i + 1) % order.size()]});
    if (!next.ok()) return next;
    ++counts->stages;
    counts->resident += lease->was_resident() ? 1 : 0;
    Table table;
    for (const hoist::TensorView& tensor : lease->tensors()) {
      if (hoist::Result<const float*> data = tensor.data<float>(); data.ok()) {
        table[std::string(tensor.name())] = *data;
      }
    }
    Step(config, table, std::string(model.group_name(order[i])), ids, &states);
    if (hoist::Status s = lease->Release(); !s.ok()) return s;
  }
  return PoolAll(config, states);
}

// Two passes, the second of which finds what the first has left; its result.
hoist::Result<Vectors> RunPasses(const BertConfig& config, const Ids& ids,
                                 hoist::Session& session,
                                 const hoist::Model& model,
                                 const std::vector<uint32_t>& order) {
  Vectors staged;
  for (int pass = 1; pass <= 2; ++pass) {
    PassCounts counts;
    const auto begin = Clock::now();
    hoist::Result<Vectors> vectors =
        RunStaged(config, ids, session, model, order, &counts);
    if (!vectors.ok()) return vectors.status();
    staged = *std::move(vectors);
    std::printf("pass %d: %.1f ms; %d of %d stages were resident\n", pass,
                Milliseconds(Clock::now() - begin), counts.resident,
                counts.stages);
  }
  return staged;
}

// The same over weights of this process; empty if they cannot be read.
Vectors RunResident(const BertConfig& config, const Ids& ids, const Args& args,
                    const hoist::Model& model) {
  std::map<std::string, std::vector<float>> own;
  if (!ReadModel(args.folder + "/model.safetensors", model, &own)) return {};
  Table table;
  for (const auto& [name, values] : own) table[name] = values.data();
  hoist_example::States states;
  for (const std::string& group : hoist_example::GroupNames(config)) {
    Step(config, table, group, ids, &states);
  }
  return PoolAll(config, states);
}

bool SameBits(const Vectors& a, const Vectors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) !=
            0) {
      return false;
    }
  }
  return true;
}

bool Write(const std::string& path, const Vectors& vectors) {
  std::ofstream out(path);
  out.precision(9);
  for (const auto& vector : vectors) {
    for (size_t i = 0; i < vector.size(); ++i) {
      out << (i > 0 ? " " : "") << vector[i];
    }
    out << "\n";
  }
  return static_cast<bool>(out.flush());
}

// 60 % of the model: it cannot lie on the device as a whole.
uint64_t DefaultBudget(const std::string& folder) {
  std::error_code error;
  const auto bytes =
      std::filesystem::file_size(folder + "/model.safetensors", error);
  return error ? 0 : bytes / 10 * 6;
}

int Run(const Args& args) {
  const auto words = hoist_example::WordPiece::Load(args.folder + "/vocab.txt");
  if (!words.has_value()) {
    std::fprintf(stderr, "embed_worker: no vocabulary in %s\n",
                 args.folder.c_str());
    return 2;
  }
  Ids ids;
  for (const std::string& text : args.sentences) {
    ids.push_back(words->Encode(text));
  }
  hoist::ConnectOptions options;
  options.socket_path = args.socket;
  options.client_name = "embed_worker";
  options.device_budget_bytes =
      args.budget > 0 ? args.budget : DefaultBudget(args.folder);
  options.connect_deadline = std::chrono::seconds(10);
  hoist::Result<hoist::Session> session = hoist::Session::Connect(options);
  if (!session.ok()) return Fail("connect", session.status());
  if (session->devices().front().kind != HOIST_DEVICE_EMULATED) {
    std::fprintf(stderr,
                 "embed_worker: its kernels run on the CPU, and cannot "
                 "read a GPU's memory\n");
    return 2;
  }
  hoist::Result<hoist::Model> model =
      session->RegisterModel({"minilm", args.folder});
  if (!model.ok()) return Fail("register", model.status());

  const BertConfig config;
  std::vector<uint32_t> order;
  for (const std::string& name : hoist_example::GroupNames(config)) {
    hoist::Result<uint32_t> group = model->FindGroup(name);
    if (!group.ok()) return Fail("find a group", group.status());
    order.push_back(*group);
  }
  if (hoist::Status s = session->SetOrder(*model, order); !s.ok()) {
    return Fail("set the order", s);
  }
  hoist::Result<Vectors> staged =
      RunPasses(config, ids, *session, *model, order);
  if (!staged.ok()) return Fail("run a pass", staged.status());
  const bool same = SameBits(*staged, RunResident(config, ids, args, *model));
  std::printf("%s  equal to resident weights, bit for bit\n",
              same ? "ok  " : "FAIL");
  if (!args.out.empty() && !Write(args.out, *staged)) return 2;
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Args args;
  if (!Parse(argc, argv, &args)) {
    std::fprintf(stderr,
                 "usage: embed_worker MODEL_FOLDER [--socket PATH] "
                 "[--budget BYTES] [--out FILE] [SENTENCE...]\n");
    return 2;
  }
  return Run(args);
}
