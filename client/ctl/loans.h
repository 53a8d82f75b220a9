// How hoistctl shows device memory that plans have lent, or are asked for.
#ifndef HOIST_CLIENT_CTL_LOANS_H_
#define HOIST_CLIENT_CTL_LOANS_H_

#include <ostream>

#include "google/protobuf/repeated_ptr_field.h"
#include "hoist/v1/admin.pb.h"

namespace hoist::ctl {

// A line each, behind an empty one; nothing if there is none.
void PrintLoans(const google::protobuf::RepeatedPtrField<v1::Loan>& loans,
                std::ostream& out);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_LOANS_H_
