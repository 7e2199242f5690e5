#include "src/onnx/properties.h"

#include <google/protobuf/unknown_field_set.h>
#include <onnx/onnx_pb.h>

namespace annulus {

std::string property(const google::protobuf::Message& message, PropertyField field, const std::string& key) {
  const auto& fields = message.GetReflection()->GetUnknownFields(message);
  onnx::StringStringEntryProto entry;
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& unknown = fields.field(i);
    if (unknown.number() != static_cast<int>(field) ||
        unknown.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED)
      continue;
    if (entry.ParseFromString(unknown.length_delimited()) && entry.key() == key) return entry.value();
  }
  return "";
}

void set_only_property(google::protobuf::Message& message, PropertyField field, const std::string& key,
                       const std::string& value) {
  auto& fields = *message.GetReflection()->MutableUnknownFields(&message);
  fields.Clear();
  if (value.empty()) return;
  onnx::StringStringEntryProto entry;
  entry.set_key(key);
  entry.set_value(value);
  fields.AddLengthDelimited(static_cast<int>(field), entry.SerializeAsString());
}

}  // namespace annulus
