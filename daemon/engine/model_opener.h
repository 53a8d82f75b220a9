#ifndef HOIST_DAEMON_ENGINE_MODEL_OPENER_H_
#define HOIST_DAEMON_ENGINE_MODEL_OPENER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/core/model.h"
#include "daemon/core/requests.h"
#include "daemon/io/source_file.h"
#include "daemon/mover/mover.h"

namespace hoistd {

struct OpenedModel {
  std::shared_ptr<const ModelSpec> spec;
  std::shared_ptr<const SourceFiles> files;  // As spec->files.
};

// Reads the headers of a model's files and builds the model. Blocks on the
// disk. Errors name the file as the caller did.
absl::StatusOr<OpenedModel> OpenModel(RegisterModelArgs args,
                                      const SourceFileOptions& options);

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_MODEL_OPENER_H_
