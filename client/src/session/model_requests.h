// Requests that answer with a model.
#ifndef HOIST_CLIENT_SRC_SESSION_MODEL_REQUESTS_H_
#define HOIST_CLIENT_SRC_SESSION_MODEL_REQUESTS_H_

#include <cstdint>

#include "client/src/session/session.h"
#include "hoist/c/model.h"
#include "hoist/shared/status.h"

namespace hoist {

// hoist_register_model's, hoist_describe_model's and hoist_find_content's
// promises. `options` has its name and path; `name` and `content` are not NULL.
Result<HeldModel> Register(Session& session,
                           const hoist_register_options& options);
Result<HeldModel> Describe(Session& session, const char* name);
Result<HeldModel> FindByContent(Session& session, const uint8_t* content);
// All groups of a model that the caller holds. FailedPrecondition: the model of
// its name is another one by now.
Result<ModelPtr> DescribeHeld(Session& session, const ModelTable& model);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_SESSION_MODEL_REQUESTS_H_
