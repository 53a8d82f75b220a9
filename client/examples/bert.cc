#include "client/examples/bert.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace hoist_example {
namespace {

// Eight sums side by side: the compiler may use vector registers without being
// allowed to change the order of a sum.
float Dot(const float* a, const float* b, int n) {
  std::array<float, 8> sums = {};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int k = 0; k < 8; ++k) sums[k] += a[i + k] * b[i + k];
  }
  float sum = 0;
  for (const float part : sums) sum += part;
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Rows of `x`, `in` wide, times the transposed `weight`, plus `bias`.
std::vector<float> Linear(const std::vector<float>& x, const float* weight,
                          const float* bias, int in, int out) {
  const int rows = static_cast<int>(x.size()) / in;
  std::vector<float> y(static_cast<size_t>(rows) * out);
  for (int o = 0; o < out; ++o) {  // Each weight row is read once.
    for (int r = 0; r < rows; ++r) {
      y[r * out + o] =
          Dot(&x[r * in], weight + static_cast<size_t>(o) * in, in) + bias[o];
    }
  }
  return y;
}

void LayerNorm(const float* weight, const float* bias, float epsilon, int width,
               std::vector<float>* x) {
  for (size_t row = 0; row < x->size(); row += width) {
    float* v = x->data() + row;
    double mean = 0, variance = 0;
    for (int i = 0; i < width; ++i) mean += v[i];
    mean /= width;
    for (int i = 0; i < width; ++i) variance += (v[i] - mean) * (v[i] - mean);
    variance /= width;
    const double scale = 1 / std::sqrt(variance + epsilon);
    for (int i = 0; i < width; ++i) {
      v[i] = static_cast<float>((v[i] - mean) * scale) * weight[i] + bias[i];
    }
  }
}

void Softmax(float* v, int n) {
  const float most = *std::max_element(v, v + n);
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += v[i] = std::exp(v[i] - most);
  for (int i = 0; i < n; ++i) v[i] /= sum;
}

void Add(const std::vector<float>& other, std::vector<float>* x) {
  for (size_t i = 0; i < x->size(); ++i) (*x)[i] += other[i];
}

std::vector<float> Attend(const BertConfig& config, const std::vector<float>& q,
                          const std::vector<float>& k,
                          const std::vector<float>& v) {
  const int width = config.hidden, head = width / config.heads;
  const int tokens = static_cast<int>(q.size()) / width;
  const float scale = 1 / std::sqrt(static_cast<float>(head));
  std::vector<float> mixed(q.size());
  std::vector<float> scores(tokens);
  for (int h = 0; h < config.heads; ++h) {
    for (int t = 0; t < tokens; ++t) {
      const int at = h * head;
      for (int u = 0; u < tokens; ++u) {
        scores[u] = Dot(&q[t * width + at], &k[u * width + at], head) * scale;
      }
      Softmax(scores.data(), tokens);
      for (int u = 0; u < tokens; ++u) {
        for (int i = 0; i < head; ++i) {
          mixed[t * width + at + i] += scores[u] * v[u * width + at + i];
        }
      }
    }
  }
  return mixed;
}

}  // namespace

std::vector<std::string> GroupNames(const BertConfig& config) {
  std::vector<std::string> names = {"embeddings"};
  for (int i = 0; i < config.layers; ++i) {
    names.push_back("encoder.layer." + std::to_string(i));
  }
  return names;
}

States Embed(const BertConfig& config, const Weights& weights,
             const std::vector<std::vector<int>>& sentences) {
  const float* words = weights("embeddings.word_embeddings.weight");
  const float* places = weights("embeddings.position_embeddings.weight");
  const float* type = weights("embeddings.token_type_embeddings.weight");
  const size_t width = config.hidden;
  States states;
  for (const std::vector<int>& ids : sentences) {
    std::vector<float> x(ids.size() * width);
    for (size_t t = 0; t < ids.size(); ++t) {
      for (size_t i = 0; i < width; ++i) {
        x[t * width + i] =
            words[ids[t] * width + i] + type[i] + places[t * width + i];
      }
    }
    LayerNorm(weights("embeddings.LayerNorm.weight"),
              weights("embeddings.LayerNorm.bias"), config.epsilon,
              config.hidden, &x);
    states.push_back(std::move(x));
  }
  return states;
}

void RunLayer(const BertConfig& config, const Weights& weights,
              const std::string& layer, States* states) {
  const auto linear = [&](const std::string& name, const std::vector<float>& x,
                          int in, int out) {
    const std::string at = layer + "." + name;
    return Linear(x, weights(at + ".weight"), weights(at + ".bias"), in, out);
  };
  const auto norm = [&](const std::string& name, std::vector<float>* x) {
    const std::string at = layer + "." + name;
    LayerNorm(weights(at + ".weight"), weights(at + ".bias"), config.epsilon,
              config.hidden, x);
  };
  const int width = config.hidden;
  for (std::vector<float>& x : *states) {
    const std::vector<float> mixed =
        Attend(config, linear("attention.self.query", x, width, width),
               linear("attention.self.key", x, width, width),
               linear("attention.self.value", x, width, width));
    Add(linear("attention.output.dense", mixed, width, width), &x);
    norm("attention.output.LayerNorm", &x);
    std::vector<float> inner =
        linear("intermediate.dense", x, width, config.inner);
    for (float& v : inner) {
      v = 0.5f * v * (1 + std::erf(v * static_cast<float>(M_SQRT1_2)));
    }
    Add(linear("output.dense", inner, config.inner, width), &x);
    norm("output.LayerNorm", &x);
  }
}

std::vector<float> Pool(const BertConfig& config,
                        const std::vector<float>& states) {
  const size_t width = config.hidden;
  std::vector<double> sums(width);
  for (size_t i = 0; i < states.size(); ++i) sums[i % width] += states[i];
  double square = 0;
  for (const double sum : sums) square += sum * sum;
  std::vector<float> out;
  for (const double sum : sums) {
    out.push_back(static_cast<float>(sum / std::sqrt(square)));
  }
  return out;
}

}  // namespace hoist_example
