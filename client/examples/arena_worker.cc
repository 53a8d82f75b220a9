// A layered function and its gradient, by the C API's arena: what backward
// needs of each layer is put aside in host memory that hoistd leases, so that
// this process has the activations of one layer at a time.
//
//   arena_worker [--socket PATH] [--layers N] [--width N]
//
// The CPU computes here, and copies, whose uses are over when it says so: it
// passes no stream. A worker of a GPU passes the streams of its copies, and
// nothing else is different.
// Compares, bit for bit, with the same layers whose activations all stay in
// this process. Exit status: 0 if they are equal, 1 if not, 2 on an error.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hoist/hoist_c.h"

namespace {

using Vector = std::vector<float>;

struct Args {
  std::string socket;
  size_t layers = 16;
  size_t width = 65'536;
};

bool Parse(int argc, char** argv, Args* args) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--socket") {
      args->socket = argv[i + 1];
    } else if (name == "--layers") {
      args->layers = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (name == "--width") {
      args->width = std::strtoull(argv[i + 1], nullptr, 10);
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && args->layers > 0 && args->width > 0;
}

// Ends the program if `code` is an error's.
void Check(int code, const char* what, hoist_error* error) {
  if (code == HOIST_OK) return;
  std::fprintf(stderr, "arena_worker: %s: %s: %s\n", what,
               hoist_code_name(code), hoist_error_message(error));
  std::exit(2);
}

// y = tanh(w x), elementwise, each layer with a w of its own.
float WeightOf(size_t layer) {
  return 1.0f + 0.01f * static_cast<float>(layer);
}

void Forward(size_t layer, Vector& x) {
  for (float& v : x) v = std::tanh(WeightOf(layer) * v);
}

// `x`: what went into the layer. `gradient` becomes that of it.
void Backward(size_t layer, const float* x, Vector& gradient) {
  const float w = WeightOf(layer);
  for (size_t i = 0; i < gradient.size(); ++i) {
    const float y = std::tanh(w * x[i]);
    gradient[i] *= w * (1.0f - y * y);
  }
}

Vector InputOf(size_t width) {
  Vector x(width);
  for (size_t i = 0; i < width; ++i) {
    x[i] = static_cast<float>(i) / static_cast<float>(width) - 0.5f;
  }
  return x;
}

// All activations stay here.
Vector GradientWithout(const Args& args) {
  std::vector<Vector> kept;
  Vector x = InputOf(args.width);
  for (size_t layer = 0; layer < args.layers; ++layer) {
    kept.push_back(x);
    Forward(layer, x);
  }
  Vector gradient(args.width, 1.0f);
  for (size_t layer = args.layers; layer-- > 0;) {
    Backward(layer, kept[layer].data(), gradient);
  }
  return gradient;
}

// They are put aside, and come back for as long as their layer needs them.
Vector GradientWith(const Args& args, hoist_arena* arena) {
  hoist_error* error = nullptr;
  const size_t bytes = args.width * sizeof(float);
  std::vector<hoist_arena_block> aside(args.layers);
  Vector x = InputOf(args.width);
  for (size_t layer = 0; layer < args.layers; ++layer) {
    Check(hoist_arena_take(arena, bytes, nullptr, &aside[layer], &error),
          "take a block", error);
    std::memcpy(aside[layer].address, x.data(), bytes);
    Forward(layer, x);
  }
  Vector gradient(args.width, 1.0f);
  for (size_t layer = args.layers; layer-- > 0;) {
    std::memcpy(x.data(), aside[layer].address, bytes);
    Check(hoist_arena_give(arena, aside[layer].address, nullptr, &error),
          "give a block", error);
    Backward(layer, x.data(), gradient);
  }
  return gradient;
}

}  // namespace

int main(int argc, char** argv) {
  Args args;
  if (!Parse(argc, argv, &args)) {
    std::fprintf(
        stderr,
        "usage: arena_worker [--socket PATH] [--layers N] [--width N]\n");
    return 2;
  }
  hoist_error* error = nullptr;
  hoist_connect_options connect = {};
  connect.struct_size = sizeof(connect);
  connect.socket_path = args.socket.c_str();
  connect.connect_deadline_ms = 30'000;
  hoist_session* session = nullptr;
  Check(hoist_connect(&connect, &session, &error), "connect", error);

  hoist_arena_options options = {};
  options.struct_size = sizeof(options);
  options.bytes = args.layers * (args.width * sizeof(float) + 512);
  options.deadline_ms = 10'000;
  hoist_arena* arena = nullptr;
  Check(hoist_arena_open(session, &options, &arena, &error), "open an arena",
        error);
  const bool equal = GradientWith(args, arena) == GradientWithout(args);
  hoist_arena_stats stats = {};
  stats.struct_size = sizeof(stats);
  Check(hoist_arena_get_stats(arena, &stats, &error), "ask for stats", error);
  hoist_arena_close(arena);
  hoist_session_free(session);
  std::printf("%s  gradient through %zu layers, %zu activations put aside\n",
              equal ? "ok  " : "WRONG", args.layers,
              static_cast<size_t>(stats.takes));
  std::printf("at most %zu bytes of %zu in the arena were taken, %zu at last\n",
              static_cast<size_t>(stats.peak_used_bytes),
              static_cast<size_t>(stats.bytes),
              static_cast<size_t>(stats.used_bytes));
  return equal ? 0 : 1;
}
