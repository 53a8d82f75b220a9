#ifndef HOIST_CLIENT_CTL_MODEL_NAME_H_
#define HOIST_CLIENT_CTL_MODEL_NAME_H_

#include <sys/types.h>

#include <string>

#include "hoist/v1/admin.pb.h"

namespace hoist::ctl {

// As commands take it: another user's is USER:NAME.
std::string NameFor(uid_t asker, const v1::ModelSummary& model);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_MODEL_NAME_H_
