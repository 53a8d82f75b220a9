// A BERT encoder in plain float32, one sentence at a time.
#ifndef HOIST_CLIENT_EXAMPLES_BERT_H_
#define HOIST_CLIENT_EXAMPLES_BERT_H_

#include <functional>
#include <string>
#include <vector>

namespace hoist_example {

struct BertConfig {  // all-MiniLM-L6-v2's config.json.
  int layers = 6;
  int heads = 12;
  int hidden = 384;
  int inner = 1536;
  float epsilon = 1e-12f;
};

// The elements of a tensor; whoever gives it keeps them alive.
using Weights = std::function<const float*(const std::string& name)>;
// A batch of sentences: for each, its tokens' states, row by row.
using States = std::vector<std::vector<float>>;

// "embeddings", then "encoder.layer.<i>": the groups, in the order of use.
std::vector<std::string> GroupNames(const BertConfig& config);

States Embed(const BertConfig& config, const Weights& weights,
             const std::vector<std::vector<int>>& sentences);
void RunLayer(const BertConfig& config, const Weights& weights,
              const std::string& layer, States* states);
// The mean of a sentence's states, of length one.
std::vector<float> Pool(const BertConfig& config,
                        const std::vector<float>& states);

}  // namespace hoist_example

#endif  // HOIST_CLIENT_EXAMPLES_BERT_H_
