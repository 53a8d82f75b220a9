#ifndef HOIST_DAEMON_ENGINE_MODEL_OPENER_H_
#define HOIST_DAEMON_ENGINE_MODEL_OPENER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/core/requests.h"
#include "daemon/engine/open_files.h"
#include "daemon/errand/errand_run.h"
#include "daemon/io/source_file.h"
#include "daemon/model/model.h"
#include "daemon/model/safetensors.h"
#include "daemon/mover/mover.h"
#include "daemon/terms/ids.h"

namespace hoistd {

struct OpenedModel {
  std::shared_ptr<const ModelSpec> spec;
  std::shared_ptr<const SourceFiles> files;  // As spec->files.
};

// How a model's files are opened. Parked ones need `errand`, and are read on
// errands of `owner` from then on.
struct OpenOptions {
  User owner;
  SourceFileOptions files;
  ErrandRun* errand = nullptr;
};

// Reads the headers of a model's files and builds the model. Blocks on the
// disk. Errors name the file as the caller did. The files are the owner's:
// those that are in `open` already are not opened twice.
//
// Bounds: headers of kMaxHeaderBytes and kMaxTensors tensors a model
//         (ResourceExhausted). Of one owner's models with headers of more than
//         kSmallHeaderBytes one is read at a time, since one of the largest
//         takes more than 1 GiB of memory meanwhile.
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{128} << 20;
inline constexpr uint64_t kSmallHeaderBytes = uint64_t{4} << 20;
absl::StatusOr<OpenedModel> OpenModel(RegisterModelArgs args,
                                      const OpenOptions& options,
                                      OpenFiles& open);
// Whether that needs an errand.
bool HasParked(const RegisterModelArgs& args);

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_MODEL_OPENER_H_
