// UTF-8, and printable text: names from others must neither control a terminal
// nor rearrange a line.
#ifndef HOIST_SHARED_PRINTABLE_H_
#define HOIST_SHARED_PRINTABLE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hoist {

struct CodePoint {
  uint32_t value = 0;
  size_t bytes = 0;  // Of its UTF-8; 0: it is invalid.
};

// The first one of `text`, which is not empty. A surrogate is invalid.
CodePoint FirstCodePoint(std::string_view text);

// Bytes of the first code point of `text`; 0 if it is invalid UTF-8 or not
// printable: a control or format character (directions of writing, joiners,
// tags), a line or paragraph separator, a surrogate, a noncharacter or one of
// private use. `text` is not empty.
size_t PrintableLength(std::string_view text);

}  // namespace hoist

#endif  // HOIST_SHARED_PRINTABLE_H_
