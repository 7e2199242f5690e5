#include "kernels/cpu/plan/dnnl_pass.h"

#include <algorithm>
#include <new>

#include "kernels/base/allowed_resources.h"

namespace annulus::cpu {
namespace {

constexpr std::size_t kGeneratedCode = 32 << 20;  // more than a primitive maps for its code

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Runs a first matrix product, because oneDNN generates their code at the first run, which takes 15 to 30 ms.
void generate_matrix_products() {
  constexpr dnnl_dim_t n = 64;
  static const dnnl_status_t done = [] {
    const std::vector<float> a(n * n), b(n * n);
    std::vector<float> c(n * n);
    return dnnl_sgemm('N', 'N', n, n, n, 1, a.data(), n, b.data(), n, 0, c.data(), n);
  }();
  dnnl::error::wrap_c_api(done, "oneDNN cannot multiply matrices");
}

}  // namespace

bool is_reference(std::string_view implementation) {
  return contains(implementation, "ref") || contains(implementation, "simple:any");
}

DnnlPass::DnnlPass(const dnnl::primitive_desc& planned, std::vector<Tensor> tensors)
    : planned_(planned), tensors_(std::move(tensors)) {
  std::erase_if(tensors_, [](const Tensor& tensor) { return tensor.layout.get_size() == 0; });
}

dnnl::memory::desc DnnlPass::wanted(const Tensor& tensor) const {
  return planned_.query_md(dnnl::query::exec_arg_md, tensor.argument);
}

std::size_t DnnlPass::scratch_bytes() const {
  if (!planned_) return 0;
  std::size_t bytes = Scratch::bytes({planned_.scratchpad_desc()});
  for (const Tensor& tensor : tensors_) bytes += Scratch::bytes({Adapted::copy(tensor.layout, wanted(tensor))});
  return bytes;
}

std::vector<std::string> DnnlPass::implementations() const {
  if (!planned_) return {};
  std::vector<std::string> names{planned_.impl_info_str()};
  for (const Tensor& tensor : tensors_) {
    const std::vector<std::string> reorders = Adapted::implementations(tensor.layout, wanted(tensor));
    if (!reorders.empty()) names.push_back(reorders[tensor.written ? 1 : 0]);
  }
  return names;
}

void DnnlPass::bind(const std::vector<DeviceView>& views, DeviceView scratch) {
  if (free_address_space() < kGeneratedCode) throw std::bad_alloc();  // oneDNN would crash
  Scratch rest(scratch);
  Primitive::Arguments arguments;
  read_.clear();
  written_.clear();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    auto& adapted = tensor.written ? written_ : read_;
    adapted.emplace_back(tensor.layout, wanted(tensor), views[i], rest);
    arguments.emplace_back(tensor.argument, adapted.back().wanted());
  }
  primitive_ = {dnnl::primitive(planned_), arguments, rest.take(planned_.scratchpad_desc())};
  if (contains(planned_.impl_info_str(), "gemm:jit")) generate_matrix_products();
}

void DnnlPass::run() const {
  for (const Adapted& tensor : read_) tensor.load();
  primitive_.run();
  for (const Adapted& tensor : written_) tensor.store();
}

std::vector<DeviceView> operands(DeviceView input, DeviceView output, const std::vector<DeviceView>& parameters) {
  std::vector<DeviceView> all{input, output};
  all.insert(all.end(), parameters.begin(), parameters.end());
  return all;
}

std::size_t most_scratch(std::initializer_list<const DnnlPass*> passes) {
  std::size_t most = 0;
  for (const DnnlPass* pass : passes) most = std::max(most, pass->scratch_bytes());
  return most;
}

std::vector<std::string> implementations_of(std::initializer_list<const DnnlPass*> passes) {
  std::vector<std::string> all;
  for (const DnnlPass* pass : passes)
    for (const std::string& name : pass->implementations()) all.push_back(name);
  return all;
}

}  // namespace annulus::cpu
