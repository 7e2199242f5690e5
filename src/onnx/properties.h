#pragma once

#include <google/protobuf/message.h>

#include <string>

// Named properties of an ONNX file's parts. Later format versions have them at more parts than our library knows, which
// keeps them as unknown fields.
namespace annulus {

// The field that has the properties, by the message's kind.
enum class PropertyField { tensor = 16, graph = 16, node = 9, value = 4 };

// Returns a property, or an empty text if there is none.
std::string property(const google::protobuf::Message& message, PropertyField field, const std::string& key);

// Removes all properties. A value that is not empty becomes the only property.
void set_only_property(google::protobuf::Message& message, PropertyField field, const std::string& key,
                       const std::string& value);

}  // namespace annulus
