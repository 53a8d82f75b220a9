#include "daemon/model/source_tensor.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/base/status.h"
#include "daemon/model/file_header.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

// The place of each name in the files' order.
using Places = absl::flat_hash_map<absl::string_view, size_t>;

uint64_t RunsOf(const JoinedPart& part) {
  return std::max(uint64_t{1}, part.count);
}

absl::Status Bad(const JoinedTensor& joined, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("joined tensor ", Quoted(joined.name), ": ", why));
}

// Adds the runs that hold `bytes` bytes from `offset` on.
void AppendBytes(const SourceTensor& from, uint64_t offset, uint64_t bytes,
                 SourceTensor& to) {
  const uint64_t end = offset + bytes;
  for (const SourceRun& run : from.runs) {
    const uint64_t begin_here = std::max(offset, run.image_offset);
    const uint64_t end_here = std::min(end, run.image_end());
    if (begin_here >= end_here) continue;
    const SheetRange here = {run.from.file,
                             run.from.offset + (begin_here - run.image_offset),
                             end_here - begin_here};
    AppendRun({here, to.bytes + (begin_here - offset)}, to.runs);
  }
  to.bytes += bytes;
}

// From the first byte of a part to its last.
uint64_t SpanOf(const JoinedPart& part) {
  return (RunsOf(part) - 1) * part.stride + part.bytes;
}

void AppendPart(const SourceTensor& from, const JoinedPart& part,
                SourceTensor& to) {
  const uint64_t runs = RunsOf(part);
  for (uint64_t i = 0; i < runs; ++i) {
    AppendBytes(from, part.offset + i * part.stride, part.bytes, to);
  }
  if (runs < 2) return;
  SourceTensor whole;
  AppendBytes(from, part.offset, SpanOf(part), whole);
  for (const SourceRun& run : whole.runs) {
    to.reaches.push_back(run.from);
  }
}

// Of a part whose size is known.
absl::Status CheckRuns(const JoinedTensor& joined, const JoinedPart& part,
                       const SourceTensor& from) {
  if (part.bytes == 0 || part.stride < part.bytes) {
    return Bad(joined,
               absl::StrCat("part ", Quoted(part.tensor), ": ", part.count,
                            " runs of ", part.bytes, " bytes that begin every ",
                            part.stride, " overlap, or are empty"));
  }
  const uint64_t rest = from.bytes - part.offset - part.bytes;
  if (part.count - 1 > rest / part.stride) {
    return Bad(joined,
               absl::StrCat("part ", Quoted(part.tensor), " has ", from.bytes,
                            " bytes; ", part.count, " runs that begin every ",
                            part.stride, " bytes do not fit behind offset ",
                            part.offset));
  }
  return absl::OkStatus();
}

absl::Status CheckPart(const JoinedTensor& joined, const JoinedPart& part,
                       const SourceTensor& from) {
  if (part.offset > from.bytes || part.bytes > from.bytes - part.offset) {
    return Bad(joined, absl::StrCat("part ", Quoted(part.tensor), " has ",
                                    from.bytes, " bytes; ", part.bytes,
                                    " were asked for at offset ", part.offset));
  }
  if (part.count > 1) {
    HOIST_RETURN_IF_ERROR(CheckRuns(joined, part, from));
  }
  const uint64_t element = std::max(
      uint64_t{1}, static_cast<uint64_t>(hoist::BitsOf(from.dtype)) / 8);
  const uint64_t step = part.count > 1 ? part.stride : 0;
  if (part.offset % element != 0 || part.bytes % element != 0 ||
      step % element != 0) {
    return Bad(joined, absl::StrCat("part ", Quoted(part.tensor), ": ",
                                    part.bytes, " bytes at offset ",
                                    part.offset, step == 0 ? "" : ", every ",
                                    step == 0 ? "" : absl::StrCat(step),
                                    " cut an element of ", element, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SourceTensor> Join(const JoinedTensor& joined,
                                  const std::vector<SourceTensor>& tensors,
                                  const Places& places) {
  if (joined.parts.empty()) return Bad(joined, "has no parts");
  SourceTensor made;
  made.name = joined.name;
  made.shape = joined.shape;
  made.joined = true;
  for (const JoinedPart& part : joined.parts) {
    const auto found = places.find(part.tensor);
    if (found == places.end()) {
      return Bad(joined, absl::StrCat("part ", Quoted(part.tensor),
                                      " is not in the files"));
    }
    const SourceTensor& from = tensors[found->second];
    if (&part != &joined.parts.front() && from.dtype != made.dtype) {
      return Bad(joined, absl::StrCat("part ", Quoted(part.tensor),
                                      " is of another type than the first"));
    }
    const bool first = &part == &joined.parts.front();
    if (first) made.block_type = from.block_type;
    // Cleared once, it differs from a later part's, or neither has one.
    if (made.block_type != from.block_type) made.block_type.clear();
    made.dtype = from.dtype;
    JoinedPart sized = part;
    if (part.bytes == 0 && part.count < 2 && part.offset <= from.bytes) {
      sized.bytes = from.bytes - part.offset;
    }
    HOIST_RETURN_IF_ERROR(CheckPart(joined, sized, from));
    // Neither can overflow: the runs lie apart, within a tensor.
    if (RunsOf(sized) * sized.bytes > hoist::kMaxImageBytes - made.bytes) {
      return Bad(joined, absl::StrCat("is larger than ", hoist::kMaxImageBytes,
                                      " bytes"));
    }
    AppendPart(from, sized, made);
  }
  const std::optional<uint64_t> want =
      hoist::ContiguousBytes(made.dtype, made.shape);
  if (want != made.bytes) {
    return Bad(
        joined,
        absl::StrCat("its parts have ", made.bytes, " bytes; its shape ",
                     want.has_value() ? absl::StrCat("needs ", *want)
                                      : std::string("is none of its type")));
  }
  return made;
}

}  // namespace

void AppendRun(const SourceRun& run, std::vector<SourceRun>& runs) {
  if (run.from.bytes == 0) return;
  if (!runs.empty()) {
    SourceRun& last = runs.back();
    const uint64_t end = last.image_end();
    const uint64_t on = run.image_offset - last.image_offset;
    if (last.from.file == run.from.file && run.image_offset >= end &&
        run.image_offset - end < hoist::kTensorAlignment &&
        last.from.offset + on == run.from.offset) {
      last.from.bytes = on + run.from.bytes;
      return;
    }
  }
  runs.push_back(run);
}

absl::StatusOr<std::vector<SourceTensor>> JoinTensors(
    std::vector<SourceTensor> tensors,
    const std::vector<JoinedTensor>& joined) {
  if (joined.empty()) return tensors;
  Places places;
  for (size_t i = 0; i < tensors.size(); ++i) places[tensors[i].name] = i;
  std::vector<std::vector<SourceTensor>> instead(tensors.size());
  std::vector<bool> is_part(tensors.size());
  absl::flat_hash_set<absl::string_view> names;
  uint64_t runs = 0;
  for (const JoinedTensor& one : joined) {
    for (const JoinedPart& part : one.parts) {
      if (RunsOf(part) > kMaxJoinedRuns - runs) {
        return Bad(one, absl::StrCat("makes it more than ", kMaxJoinedRuns,
                                     " runs of the files in one model"));
      }
      runs += RunsOf(part);
    }
    if (places.contains(one.name)) {
      return Bad(one, "the files have a tensor of that name; use another");
    }
    if (!names.insert(one.name).second) return Bad(one, "is there twice");
    HOIST_ASSIGN_OR_RETURN(SourceTensor made, Join(one, tensors, places));
    for (const JoinedPart& part : one.parts)
      is_part[places[part.tensor]] = true;
    instead[places[one.parts.front().tensor]].push_back(std::move(made));
  }
  std::vector<SourceTensor> all;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_part[i]) all.push_back(std::move(tensors[i]));
    std::move(instead[i].begin(), instead[i].end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace hoistd
