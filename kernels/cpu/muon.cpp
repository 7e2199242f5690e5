#include "kernels/cpu/muon.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/host_memory.h"
#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/loops/for_each_element.h"
#include "kernels/cpu/orthogonalize.h"
#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/matrix_exchange.h"

namespace annulus::cpu {
namespace {

std::vector<UpdateSegment> matrices_of(const std::vector<UpdateSegment>& segments) {
  std::vector<UpdateSegment> matrices;
  std::ranges::copy_if(segments, std::back_inserter(matrices),
                       [](const UpdateSegment& segment) { return segment.factors.orthogonalizes; });
  return matrices;
}

// Writes momenta v for gradients g, and directions u that are not orthogonal yet: Nesterov's momentum.
void update_momentum(std::size_t size, float momentum, const float* g, float* v, float* u) {
  for_each_element(size, [=](auto i) {
    v[i] = momentum * v[i] + (1 - momentum) * g[i];
    u[i] = momentum * v[i] + (1 - momentum) * g[i];
  });
}

// Orthogonalizes matrices in the device's layouts.
class LayoutOrthogonalizer {
 public:
  LayoutOrthogonalizer(const Muon& rule, const std::vector<UpdateSegment>& matrices) : orthogonalizer_(rule) {
    std::size_t bytes = 0;
    for (const UpdateSegment& matrix : matrices)
      bytes = std::max(bytes, Scratch::bytes({Adapted::copy(desc(matrix.tensor), plain_layout(matrix.tensor.shape))}));
    scratch_ = allocate_host(bytes);
  }

  // A tensor's slot, in row-major order: in the scratch, unless that is the slot's layout.
  Adapted adapted(const TensorSpec& tensor, DeviceView slot) const {
    Scratch scratch(scratch_.view());
    return {desc(tensor), plain_layout(tensor.shape), slot, scratch};
  }

  // `from` and `to` are slots for the same tensor, and may be equal.
  void run(const Adapted& from, const Adapted& to, const MatrixSize& size) {
    from.load();
    const std::span<float> values = values_of(to, size);
    copy(values_of(from, size), values);
    orthogonalizer_.run(values, size);
    to.store();
  }

 private:
  static std::span<float> values_of(const Adapted& tensor, const MatrixSize& size) {
    return {static_cast<float*>(tensor.wanted().get_data_handle()), size.rows * size.columns};
  }

  Orthogonalizer orthogonalizer_;
  Buffer scratch_;
};

// Computes all directions. This rank has all gradients.
class OwnDirections final : public MuonDirections {
 public:
  OwnDirections(const Muon& rule, const UpdateArenas& arenas, std::vector<UpdateSegment> matrices)
      : momentum_(rule.momentum),
        gradients_(floats(arenas.gradients).data()),
        momenta_(floats(arenas.states[0]).data()),
        directions_(floats(arenas.states[1]).data()),
        matrices_(std::move(matrices)),
        orthogonalizer_(rule, matrices_) {
    for (const UpdateSegment& matrix : matrices_)
      slots_.push_back(orthogonalizer_.adapted(
          matrix.tensor,
          arenas.states[1].slice(matrix.range.begin * sizeof(float), matrix.range.size() * sizeof(float))));
  }

  void compute(const Range& slice) override {
    const auto begin = [](const UpdateSegment& matrix) { return matrix.range.begin; };
    for (auto matrix = std::ranges::lower_bound(matrices_, slice.begin, {}, begin);
         matrix != matrices_.end() && matrix->range.begin < slice.end; ++matrix) {
      const Adapted& slot = slots_[static_cast<std::size_t>(matrix - matrices_.begin())];
      const std::size_t at = matrix->range.begin;
      update_momentum(matrix->range.size(), momentum_, gradients_ + at, momenta_ + at, directions_ + at);
      orthogonalizer_.run(slot, slot, matrix_size(matrix->tensor.shape));
    }
  }

 private:
  const float momentum_;
  const float* const gradients_;
  float *const momenta_, *const directions_;
  const std::vector<UpdateSegment> matrices_;
  LayoutOrthogonalizer orthogonalizer_;
  std::vector<Adapted> slots_;  // for directions
};

// The multiplications of a step, up to a constant factor.
double cost(const UpdateSegment& matrix) {
  const MatrixSize size = matrix_size(matrix.tensor.shape);
  const auto least = static_cast<double>(std::min(size.rows, size.columns));
  const auto most = static_cast<double>(std::max(size.rows, size.columns));
  return least * least * (3 * most + least);
}

// Each matrix has an owner, which orthogonalizes it. A rank updates the momenta for the gradients that it
// keeps, and needs their directions.
//
//    gradients        [ 0 | 1 | 2 ]  rank r updates slice r's momenta, and exchanges gradients for directions
//                     [ all-gather ]  every rank has all directions, and the owners orthogonalize theirs
//    parts in a round [ 0 | 1 | 2 ]  owner r writes a matrix's directions
//                     [ all-gather ]  rank r copies what belongs to slice r
class SharedDirections final : public MuonDirections {
 public:
  SharedDirections(const Muon& rule, const UpdateArenas& arenas, std::vector<UpdateSegment> matrices)
      : momentum_(rule.momentum),
        gradients_(floats(arenas.gradients).data()),
        momenta_(floats(arenas.states[0]).data()),
        directions_(floats(arenas.states[1]).data()),
        exchange_(*arenas.exchange),
        matrices_(std::move(matrices)),
        orthogonalizer_(rule, matrices_) {
    std::vector<double> costs;
    const KeptPlaces places(arenas.kept);
    for (const UpdateSegment& matrix : matrices_) {
      costs.push_back(cost(matrix));
      ranges_.push_back(matrix.range);
      part_ = std::max(part_, matrix.range.size());
      kept_.emplace_back();
      for (const Range& range : kept_parts(arenas, matrix.range))
        kept_.back().push_back({range, places.of(range.begin)});
    }
    shares_ = share_by_cost(costs, exchange_.ranks());
    parts_ = exchange_.allocate(part_ * exchange_.ranks() * sizeof(float));
    for (const std::size_t number : shares_[exchange_.rank()]) {
      const UpdateSegment& matrix = matrices_[number];
      const std::size_t bytes = matrix.range.size() * sizeof(float);
      own_.push_back(
          {orthogonalizer_.adapted(matrix.tensor, arenas.gradients.slice(matrix.range.begin * sizeof(float), bytes)),
           orthogonalizer_.adapted(matrix.tensor, part(exchange_.rank()).slice(0, bytes)),
           matrix_size(matrix.tensor.shape)});
    }
  }

  void compute(const Range& /*all*/) override {
    for_each_kept([this](const KeptPart& part) {
      float *const gradients = gradients_ + part.range.begin, *const directions = directions_ + part.place;
      update_momentum(part.range.size(), momentum_, gradients, momenta_ + part.place, directions);
      std::swap_ranges(gradients, gradients + part.range.size(), directions);
    });
    exchange_.gather_gradients(ranges_);
    const std::size_t rounds = std::ranges::max(shares_, {}, &std::vector<std::size_t>::size).size();
    for (std::size_t round = 0; round < rounds; ++round) {
      if (round < own_.size()) {
        std::ranges::fill(floats(part(exchange_.rank())), 0.0f);  // padding
        orthogonalizer_.run(own_[round].gathered, own_[round].part, own_[round].size);
      }
      exchange_.gather(parts_);
      for (std::size_t rank = 0; rank < shares_.size(); ++rank)
        if (round < shares_[rank].size()) take(shares_[rank][round], floats(part(rank)).data());
    }
  }

 private:
  struct KeptPart {
    Range range;
    std::size_t place;  // in the states
  };
  struct OwnMatrix {
    Adapted gathered, part;
    MatrixSize size;
  };

  template <class Visit>
  void for_each_kept(const Visit& visit) const {
    for (const std::vector<KeptPart>& parts : kept_) std::ranges::for_each(parts, visit);
  }

  DeviceView part(std::size_t rank) const { return parts_.slice(rank * part_ * sizeof(float), part_ * sizeof(float)); }

  // Copies the directions that this rank needs, and puts the gradients back.
  void take(std::size_t matrix, const float* directions) const {
    for (const KeptPart& part : kept_[matrix]) {
      float* const to = directions_ + part.place;
      std::copy_n(to, part.range.size(), gradients_ + part.range.begin);
      std::copy_n(directions + part.range.begin - matrices_[matrix].range.begin, part.range.size(), to);
    }
  }

  const float momentum_;
  float *const gradients_, *const momenta_, *const directions_;
  MatrixExchange& exchange_;
  const std::vector<UpdateSegment> matrices_;
  LayoutOrthogonalizer orthogonalizer_;
  std::vector<Range> ranges_;                     // the matrices
  std::vector<std::vector<KeptPart>> kept_;       // by matrix
  std::vector<std::vector<std::size_t>> shares_;  // by rank: its matrices
  std::size_t part_ = 0;                          // size, in floats
  DeviceView parts_;                              // exchanged, by rank
  std::vector<OwnMatrix> own_;
};

}  // namespace

std::unique_ptr<MuonDirections> make_muon_directions(const Muon& rule, const UpdateArenas& arenas,
                                                     const std::vector<UpdateSegment>& segments) {
  if (arenas.exchange == nullptr) return std::make_unique<OwnDirections>(rule, arenas, matrices_of(segments));
  return std::make_unique<SharedDirections>(rule, arenas, matrices_of(segments));
}

}  // namespace annulus::cpu
