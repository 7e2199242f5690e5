#include "kernels/cuda/ops/update/muon.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/ops/loops/elementwise.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/update/orthogonalize.h"
#include "kernels/matrix_exchange.h"

namespace annulus::cuda {
namespace {

// Writes momenta v for gradients g, and directions u that are not orthogonal yet: Nesterov's momentum.
__global__ void update_momenta(Predecessor previous, float momentum, const std::uint32_t* skip, const float* g,
                               float* v, float* u, std::size_t vectors) {
  await(previous);
  if (skipped(skip)) return;
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const auto gradients = load(g, i);
    auto momenta = load(v, i), directions = gradients;
    for (unsigned k = 0; k < kLanes<float>; ++k) {
      momenta.at[k] = momentum * momenta.at[k] + (1 - momentum) * gradients.at[k];
      directions.at[k] = momentum * momenta.at[k] + (1 - momentum) * gradients.at[k];
    }
    store(momenta, v, i);
    store(directions, u, i);
  }
}

// The order of columns does not matter.
StoredMatrix stored(const UpdateSegment& matrix) {
  const ChannelsLast& layout = channels_last(matrix.tensor);
  const MatrixSize size = matrix_size(matrix.tensor.shape);
  return {layout.outer(), layout.pixels() * layout.channels(), size.rows > size.columns};
}

std::unique_ptr<Orthogonalizer> orthogonalizer_of(const Muon& rule, const std::vector<UpdateSegment>& matrices,
                                                  Context& context) {
  std::vector<StoredMatrix> all;
  for (const UpdateSegment& matrix : matrices) all.push_back(stored(matrix));
  return make_orthogonalizer(rule, all, context);
}

DeviceView slice_of(DeviceView arena, std::size_t place, std::size_t size) {
  return arena.slice(place * sizeof(float), size * sizeof(float));
}

// The arenas, with momenta and directions as states.
struct Arrays {
  Arrays(const Muon& rule, const UpdateArenas& arenas, Context& of)
      : momentum(rule.momentum),
        gradients(arenas.gradients),
        momenta(arenas.states[0]),
        directions(arenas.states[1]),
        context(of) {}

  // `place`: the part's place in the states.
  void update_momenta(const Range& part, std::size_t place) const {
    over_vectors(cuda::update_momenta, part.size() / kLanes<float>, context, momentum, context.skip,
                 data<float>(gradients) + part.begin, data<float>(momenta) + place, data<float>(directions) + place);
  }

  float momentum;
  DeviceView gradients, momenta, directions;
  Context& context;
};

// Computes all directions. This rank has all gradients. Two slices may be updated at the same time: one on the lane,
// and a deferred one on the lane beside it.
class OwnDirections final : public MuonDirections {
 public:
  OwnDirections(const Muon& rule, const UpdateArenas& arenas, std::vector<UpdateSegment> matrices, Context& context)
      : arrays_(rule, arenas, context), matrices_(std::move(matrices)), lane_(context.lane.get()) {
    for (auto& orthogonalizer : orthogonalizers_) orthogonalizer = orthogonalizer_of(rule, matrices_, context);
  }

  void compute(const Range& slice) override {
    Orthogonalizer& orthogonalizer = *orthogonalizers_[arrays_.context.lane.get() == lane_ ? 0 : 1];
    for (const UpdateSegment& matrix : matrices_in(slice, matrices_)) {
      const StoredMatrix one = stored(matrix);
      const DeviceView direction = slice_of(arrays_.directions, matrix.range.begin, one.elements());
      arrays_.update_momenta(matrix.range, matrix.range.begin);
      orthogonalizer.run(direction, direction, one);
    }
  }

 private:
  const Arrays arrays_;
  const std::vector<UpdateSegment> matrices_;
  const cudaStream_t lane_;
  std::unique_ptr<Orthogonalizer> orthogonalizers_[2];  // on the lane, and beside it
};

// Computes directions with other ranks: see MatrixShares.
class SharedDirections final : public MuonDirections {
 public:
  SharedDirections(const Muon& rule, const UpdateArenas& arenas, std::vector<UpdateSegment> matrices, Context& context)
      : arrays_(rule, arenas, context),
        exchange_(*arenas.exchange),
        shares_(arenas, std::move(matrices)),
        orthogonalizer_(orthogonalizer_of(rule, shares_.matrices, context)),
        parts_(exchange_.allocate(shares_.largest_part() * exchange_.ranks() * sizeof(float))) {}

  void compute(const Range& /*all*/) override {
    shares_.for_each_kept([this](const MatrixShares::KeptPart& part) {
      arrays_.update_momenta(part.range, part.place);
      swap(slice_of(arrays_.gradients, part.range.begin, part.range.size()),
           slice_of(arrays_.directions, part.place, part.range.size()), arrays_.context);
    });
    exchange_.gather_gradients(shares_.ranges);
    for (const MatrixShares::Round& round : shares_.rounds) {
      for (const MatrixShares::Owned& owned : round.owners[exchange_.rank()]) {
        const StoredMatrix matrix = stored(shares_.matrices[owned.matrix]);
        orthogonalizer_->run(slice_of(arrays_.gradients, shares_.ranges[owned.matrix].begin, matrix.elements()),
                             slice_of(parts_, exchange_.rank() * round.part + owned.place, matrix.elements()), matrix);
      }
      exchange_.gather(slice_of(parts_, 0, round.part * exchange_.ranks()));
      for (std::size_t rank = 0; rank < exchange_.ranks(); ++rank)
        for (const MatrixShares::Owned& owned : round.owners[rank]) take(owned.matrix, rank * round.part + owned.place);
    }
  }

 private:
  // Copies the directions that this rank needs, and puts the gradients back. `place`: in the parts.
  void take(std::size_t matrix, std::size_t place) const {
    for (const MatrixShares::KeptPart& part : shares_.kept[matrix]) {
      const std::size_t size = part.range.size(), within = part.range.begin - shares_.ranges[matrix].begin;
      const DeviceView to = slice_of(arrays_.directions, part.place, size);
      copy(to, slice_of(arrays_.gradients, part.range.begin, size));
      copy(slice_of(parts_, place + within, size), to);
    }
  }

  void copy(DeviceView from, DeviceView to) const {
    check(cudaMemcpyAsync(to.address, from.address, to.bytes, cudaMemcpyDeviceToDevice, arrays_.context.lane.get()));
  }

  const Arrays arrays_;
  MatrixExchange& exchange_;
  const MatrixShares shares_;
  const std::unique_ptr<Orthogonalizer> orthogonalizer_;
  const DeviceView parts_;  // exchanged, by rank
};

}  // namespace

std::unique_ptr<MuonDirections> make_muon_directions(const Muon& rule, const UpdateArenas& arenas,
                                                     const std::vector<UpdateSegment>& segments, Context& context) {
  if (arenas.exchange == nullptr) return std::make_unique<OwnDirections>(rule, arenas, matrices_of(segments), context);
  return std::make_unique<SharedDirections>(rule, arenas, matrices_of(segments), context);
}

}  // namespace annulus::cuda
