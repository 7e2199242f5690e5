#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace annulus {

// Whether a domain's operators are ONNX's own.
inline bool standard_domain(const std::string& domain) {
  return domain.empty() || domain == "ai.onnx";
}

// An ONNX node's attributes, by name. A missing attribute has the given default.
class Attributes {
 public:
  explicit Attributes(const onnx::NodeProto& node) : node_(&node) {}

  bool has(std::string_view name) const { return find(name) != nullptr; }
  std::int64_t whole(std::string_view name, std::int64_t missing) const;
  float real(std::string_view name, float missing) const;
  std::string text(std::string_view name, const std::string& missing) const;
  std::vector<std::int64_t> wholes(std::string_view name) const;  // empty if missing
  std::vector<float> reals(std::string_view name) const;          // empty if missing
  const onnx::TensorProto* tensor(std::string_view name) const;   // null if missing

 private:
  const onnx::AttributeProto* find(std::string_view name) const;

  const onnx::NodeProto* node_;
};

}  // namespace annulus
