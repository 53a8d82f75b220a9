// BERT's uncased WordPiece over a vocab.txt. Only ASCII is lowered and split at
// punctuation; other characters are taken as letters (wordpiece.py does more).
#ifndef HOIST_CLIENT_EXAMPLES_WORDPIECE_H_
#define HOIST_CLIENT_EXAMPLES_WORDPIECE_H_

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace hoist_example {

class WordPiece {
 public:
  // nullopt: the file cannot be read, or has no [CLS], [SEP] and [UNK].
  static std::optional<WordPiece> Load(const std::string& vocab_path);

  // The ids of [CLS] text [SEP].
  std::vector<int> Encode(const std::string& text) const;

 private:
  void AppendPieces(const std::string& word, std::vector<int>* ids) const;

  std::unordered_map<std::string, int> ids_;
};

}  // namespace hoist_example

#endif  // HOIST_CLIENT_EXAMPLES_WORDPIECE_H_
