#ifndef HOIST_DAEMON_ENGINE_MODEL_OPENER_H_
#define HOIST_DAEMON_ENGINE_MODEL_OPENER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/core/requests.h"
#include "daemon/io/open_files.h"
#include "daemon/io/source_file.h"
#include "daemon/io_helper/io_helper.h"
#include "daemon/model/file_header.h"
#include "daemon/model/model.h"
#include "daemon/mover/mover.h"
#include "daemon/types/ids.h"

namespace hoistd {

struct OpenedModel {
  std::shared_ptr<const ModelSpec> spec;
  std::shared_ptr<const SourceFiles> files;  // As spec->files.
};

// How to open a model's files. Parked files need `helper`; from then on I/O
// helpers of `owner` read them.
struct OpenOptions {
  User owner;
  SourceFileOptions files;
  IoHelper* helper = nullptr;
};

// Reads the headers of a model's files and builds the model. Blocks on the
// disk. Errors name a file as the caller did. The files belong to the owner;
// files already in `open` are not opened twice.
//
// Bounds: headers of kMaxHeaderBytes and kMaxTensors tensors per model
//         (ResourceExhausted). Per owner, models with headers of more than
//         kSmallHeaderBytes are read one at a time: the largest take more than
//         1 GiB of memory.
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{128} << 20;
inline constexpr uint64_t kSmallHeaderBytes = uint64_t{4} << 20;
absl::StatusOr<OpenedModel> OpenModel(RegisterModelArgs args,
                                      const OpenOptions& options,
                                      OpenFiles& open);
// Whether any of its files needs a helper.
bool HasParked(const RegisterModelArgs& args);

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_MODEL_OPENER_H_
