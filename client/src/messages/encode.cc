#include <cstring>

#include "client/src/messages/messages.h"

namespace hoist {

std::string Pack(uint64_t request_id, const ProtobufCMessage& body) {
  Hoist__V1__ClientMessage message = HOIST__V1__CLIENT_MESSAGE__INIT;
  message.request_id = request_id;
  const auto& known = hoist__v1__client_message__descriptor;
  for (const ProtobufCFieldDescriptor& field :
       std::span(known.fields, known.n_fields)) {
    if (field.descriptor != body.descriptor) continue;
    const ProtobufCMessage* const pointer = &body;
    std::memcpy(reinterpret_cast<char*>(&message) + field.offset, &pointer,
                sizeof(pointer));
    message.body_case =
        static_cast<Hoist__V1__ClientMessage__BodyCase>(field.id);
  }
  std::string bytes(hoist__v1__client_message__get_packed_size(&message), '\0');
  hoist__v1__client_message__pack(&message,
                                  reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes;
}

}  // namespace hoist
