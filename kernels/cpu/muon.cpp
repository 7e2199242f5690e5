#include "kernels/cpu/muon.h"

#include <algorithm>
#include <utility>

#include "kernels/base/host_memory.h"
#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/loops/for_each_element.h"
#include "kernels/cpu/orthogonalize.h"
#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/matrix_exchange.h"

namespace annulus::cpu {
namespace {

// The arenas, with momenta and directions as states.
struct Arrays {
  Arrays(const Muon& rule, const UpdateArenas& arenas)
      : momentum(rule.momentum),
        gradients(floats(arenas.gradients).data()),
        momenta(floats(arenas.states[0]).data()),
        directions(floats(arenas.states[1]).data()) {}

  // Writes momenta v for gradients g, and directions u that are not orthogonal yet: Nesterov's momentum. `place`: the
  // part's place in the states.
  void update_momenta(const Range& part, std::size_t place) const {
    for_each_element(part.size(), [momentum_ = momentum, g = gradients + part.begin, v = momenta + place,
                                   u = directions + place](auto i) {
      v[i] = momentum_ * v[i] + (1 - momentum_) * g[i];
      u[i] = momentum_ * v[i] + (1 - momentum_) * g[i];
    });
  }

  float momentum;
  float *gradients, *momenta, *directions;
};

// Orthogonalizes matrices in the device's layouts.
class LayoutOrthogonalizer {
 public:
  LayoutOrthogonalizer(const Muon& rule, const std::vector<UpdateSegment>& matrices)
      : orthogonalizer_(make_orthogonalizer(rule)) {
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
    orthogonalizer_->run(values, size);
    to.store();
  }

 private:
  static std::span<float> values_of(const Adapted& tensor, const MatrixSize& size) {
    return {static_cast<float*>(tensor.wanted().get_data_handle()), size.rows * size.columns};
  }

  std::unique_ptr<Orthogonalizer> orthogonalizer_;
  Buffer scratch_;
};

// Computes all directions. This rank has all gradients.
class OwnDirections final : public MuonDirections {
 public:
  OwnDirections(const Muon& rule, const UpdateArenas& arenas, std::vector<UpdateSegment> matrices)
      : arrays_(rule, arenas), matrices_(std::move(matrices)), orthogonalizer_(rule, matrices_) {
    for (const UpdateSegment& matrix : matrices_)
      slots_.push_back(orthogonalizer_.adapted(
          matrix.tensor,
          arenas.states[1].slice(matrix.range.begin * sizeof(float), matrix.range.size() * sizeof(float))));
  }

  void compute(const Range& slice) override {
    for (const UpdateSegment& matrix : matrices_in(slice, matrices_)) {
      const Adapted& slot = slots_[static_cast<std::size_t>(&matrix - matrices_.data())];
      arrays_.update_momenta(matrix.range, matrix.range.begin);
      orthogonalizer_.run(slot, slot, matrix_size(matrix.tensor.shape));
    }
  }

 private:
  const Arrays arrays_;
  const std::vector<UpdateSegment> matrices_;
  LayoutOrthogonalizer orthogonalizer_;
  std::vector<Adapted> slots_;  // for directions
};

// Computes directions with other ranks: see MatrixShares.
class SharedDirections : public MuonDirections {
 protected:
  // Owners take their matrices from `inputs`, which are the gradients or the directions.
  SharedDirections(const Muon& rule, const UpdateArenas& arenas, std::vector<UpdateSegment> matrices, DeviceView inputs)
      : arrays_(rule, arenas),
        exchange_(*arenas.exchange),
        shares_(arenas, std::move(matrices)),
        orthogonalizer_(rule, shares_.matrices),
        parts_(exchange_.allocate(shares_.largest_part() * exchange_.ranks() * sizeof(float))) {
    for (const MatrixShares::Round& round : shares_.rounds) {
      own_.emplace_back();
      for (const MatrixShares::Owned& owned : round.owners[exchange_.rank()]) {
        const UpdateSegment& matrix = shares_.matrices[owned.matrix];
        const std::size_t bytes = matrix.range.size() * sizeof(float);
        const DeviceView to = parts_.slice((exchange_.rank() * round.part + owned.place) * sizeof(float), bytes);
        own_.back().push_back(
            {orthogonalizer_.adapted(matrix.tensor, inputs.slice(matrix.range.begin * sizeof(float), bytes)),
             orthogonalizer_.adapted(matrix.tensor, to), to, matrix_size(matrix.tensor.shape)});
      }
    }
  }

  // Calls take(matrix, directions) for each matrix, in rounds.
  template <class Take>
  void orthogonalize(const Take& take) {
    for (std::size_t number = 0; const MatrixShares::Round& round : shares_.rounds) {
      for (const OwnMatrix& own : own_[number++]) {
        std::ranges::fill(floats(own.slot), 0.0f);  // padding
        orthogonalizer_.run(own.input, own.part, own.size);
      }
      exchange_.gather(parts_.slice(0, round.part * exchange_.ranks() * sizeof(float)));
      for (std::size_t rank = 0; rank < exchange_.ranks(); ++rank)
        for (const MatrixShares::Owned& owned : round.owners[rank])
          take(owned.matrix, floats(parts_).data() + rank * round.part + owned.place);
    }
  }

  const Arrays& arrays() const { return arrays_; }
  const MatrixShares& shares() const { return shares_; }
  MatrixExchange& exchange() { return exchange_; }

 private:
  struct OwnMatrix {
    Adapted input, part;
    DeviceView slot;  // of the part
    MatrixSize size;
  };

  const Arrays arrays_;
  MatrixExchange& exchange_;
  const MatrixShares shares_;
  LayoutOrthogonalizer orthogonalizer_;
  const DeviceView parts_;                   // exchanged, by rank
  std::vector<std::vector<OwnMatrix>> own_;  // by round
};

// Every rank has all gradients, and keeps all states.
class ReplicatedDirections final : public SharedDirections {
 public:
  ReplicatedDirections(const Muon& rule, const UpdateArenas& arenas, std::vector<UpdateSegment> matrices)
      : SharedDirections(rule, arenas, std::move(matrices), arenas.states[1]) {}

  void compute(const Range& /*all*/) override {
    for (const Range& matrix : shares().ranges) arrays().update_momenta(matrix, matrix.begin);
    orthogonalize([this](std::size_t matrix, const float* directions) {
      const Range& range = shares().ranges[matrix];
      std::copy_n(directions, range.size(), arrays().directions + range.begin);
    });
  }
};

// A rank keeps slices, and the memory for other ranks' directions is that for gradients.
class ScatteredDirections final : public SharedDirections {
 public:
  ScatteredDirections(const Muon& rule, const UpdateArenas& arenas, std::vector<UpdateSegment> matrices)
      : SharedDirections(rule, arenas, std::move(matrices), arenas.gradients) {}

  void compute(const Range& /*all*/) override {
    shares().for_each_kept([this](const MatrixShares::KeptPart& part) {
      arrays().update_momenta(part.range, part.place);
      float* const gradients = arrays().gradients + part.range.begin;
      std::swap_ranges(gradients, gradients + part.range.size(), arrays().directions + part.place);
    });
    exchange().gather_gradients(shares().ranges);
    // Copies the directions that this rank needs, and puts the gradients back.
    orthogonalize([this](std::size_t matrix, const float* directions) {
      for (const MatrixShares::KeptPart& part : shares().kept[matrix]) {
        float* const to = arrays().directions + part.place;
        std::copy_n(to, part.range.size(), arrays().gradients + part.range.begin);
        std::copy_n(directions + part.range.begin - shares().ranges[matrix].begin, part.range.size(), to);
      }
    });
  }
};

}  // namespace

std::unique_ptr<MuonDirections> make_muon_directions(const Muon& rule, const UpdateArenas& arenas,
                                                     const std::vector<UpdateSegment>& segments) {
  if (arenas.exchange == nullptr) return std::make_unique<OwnDirections>(rule, arenas, matrices_of(segments));
  if (arenas.kept.empty()) return std::make_unique<ReplicatedDirections>(rule, arenas, matrices_of(segments));
  return std::make_unique<ScatteredDirections>(rule, arenas, matrices_of(segments));
}

}  // namespace annulus::cpu
