#include "client/examples/wordpiece.h"

#include <fstream>

namespace hoist_example {
namespace {

bool IsSpace(unsigned char c) { return c <= ' '; }
bool IsPunctuation(unsigned char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') ||
         (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char raw : text) {
    const auto c = static_cast<unsigned char>(raw);
    if (IsSpace(c) || IsPunctuation(c)) {
      if (!words.back().empty()) words.emplace_back();
      if (IsPunctuation(c)) {
        words.back() = raw;
        words.emplace_back();
      }
      continue;
    }
    words.back() += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : raw;
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

}  // namespace

std::optional<WordPiece> WordPiece::Load(const std::string& vocab_path) {
  std::ifstream file(vocab_path);
  WordPiece made;
  std::string token;
  for (int id = 0; std::getline(file, token); ++id) made.ids_[token] = id;
  for (const char* needed : {"[CLS]", "[SEP]", "[UNK]"}) {
    if (made.ids_.count(needed) == 0) return std::nullopt;
  }
  return made;
}

std::vector<int> WordPiece::Encode(const std::string& text) const {
  std::vector<int> ids = {ids_.at("[CLS]")};
  for (const std::string& word : Words(text)) AppendPieces(word, &ids);
  ids.push_back(ids_.at("[SEP]"));
  return ids;
}

void WordPiece::AppendPieces(const std::string& word,
                             std::vector<int>* ids) const {
  const size_t before = ids->size();
  size_t start = 0;
  while (start < word.size()) {
    size_t end = word.size();
    for (; end > start; --end) {
      const std::string piece =
          (start > 0 ? "##" : "") + word.substr(start, end - start);
      if (const auto it = ids_.find(piece); it != ids_.end()) {
        ids->push_back(it->second);
        break;
      }
    }
    if (end == start) {  // No piece fits: the whole word is unknown.
      ids->resize(before);
      ids->push_back(ids_.at("[UNK]"));
      return;
    }
    start = end;
  }
}

}  // namespace hoist_example
