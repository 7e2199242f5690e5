#include "src/train/survival.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "src/io/printable.h"
#include "src/job/signals.h"
#include "src/step/replicas.h"
#include "src/train/control.h"
#include "src/train/training_setup.h"

namespace annulus {
namespace {

constexpr std::uint64_t kNone = UINT64_MAX;  // no step
constexpr double kRequestSeconds = 0.5;      // between looks for requests

}  // namespace

RunStages exchange_stages(const World& world, RunStage own) {
  const std::vector<std::uint64_t> all = world.gather(static_cast<std::uint64_t>(own));
  const auto [least, furthest] = std::ranges::minmax(all);
  return {static_cast<RunStage>(least), static_cast<RunStage>(furthest)};
}

Survival::Survival(Membership& membership, World& world, const TrainingInputs& inputs, Replica& replica,
                   RunRecord& record, RunState& state, const FolderClaim& claim, Verifier* verifier)
    : membership_(membership),
      world_(world),
      inputs_(inputs),
      replica_(replica),
      record_(record),
      state_(state),
      claim_(claim),
      verifier_(verifier),
      within_steps_(replica.step->copied_within_steps()),
      leads_(world.root()),
      reported_(record.result.losses.size()) {
  for (int number = 0; number < (within_steps_ && verifier_ == nullptr ? 1 : 2); ++number)
    copies_.push_back({StateCopy(replica.model, replica.optimizer, replica.step->kept_state()), {}});
  replica.step->hooks.before_update = [this] { copy(); };
  replica.step->hooks.regroup = [this] { return regroup(); };
  note_dispensable();
  copy();
}

std::uint64_t Survival::Copy::step() const {
  return saved ? saved->state.step : kNone;
}

void Survival::begin_step() {
  if (due_) copy();
}

void Survival::copy() {
  const double begun = now_seconds();
  due_ = false;
  if (!within_steps_) {
    replica_.step->finish();
    record_.activity.enter(Activity::Phase::between_steps);
  }
  // A copy that has not been found right is replaced, and not the last that has been.
  if (verifier_ == nullptr || !copies_[newest_].saved || copies_[newest_].step() <= verifier_->sound_until())
    newest_ = (newest_ + 1) % copies_.size();
  Copy& to = copies_[newest_];
  to.saved.reset();
  to.parameters.take();
  if (verifier_ != nullptr) verifier_->compare(to.parameters);
  to.saved = {state_, record_.epoch, record_.noise};
  copied_at_ = now_seconds();
  copy_seconds_ = copied_at_ - begun;
}

bool Survival::wants_copy() const {
  return now_seconds() - copied_at_ > copy_seconds_ / kCopyShare;
}

void Survival::answer_requests() {
  if (now_seconds() - answered_at_ < kRequestSeconds) return;
  answered_at_ = now_seconds();
  std::optional<int> excluded;
  answer_request(inputs_.options.out, [&](int rank) -> std::string {
    if (world_.size() == 1) return fmt::format("only one rank is left");
    for (int member = 0; member < world_.size(); ++member)
      if (world_.rank_in_job(member) == rank) excluded = rank;
    return excluded ? "" : fmt::format("there is no rank {}", rank);
  });
  if (excluded) membership_.exclude(*excluded);
}

bool Survival::regroup() {
  while (true) try {
      return agree(world_.section(), true) && regrouped_;
    } catch (const Error&) {  // another loss
      if (!world_.interrupted()) throw;
    }
}

bool Survival::recover() {
  const TraceSpan span(record_.timeline.run(), "recovery");
  while (true) try {
      if (!agreed_ || world_.interrupted()) {
        const bool whole = replica_.holds_state && replica_.step->between_steps();
        if (!agree(whole ? world_.section() : Membership::kNoSection, false)) return false;
      }
      rebuild("after ranks were lost");
      break;
    } catch (const Error&) {  // another loss: the next turn returns false if it was none
      if (!world_.interrupted()) throw;
    }
  agreed_ = regrouped_ = false;
  recovered_ = true;
  report(std::span(record_.result.losses).subspan(reported_));
  reported_ = record_.result.losses.size();
  return true;
}

void Survival::repeat_after(const ReplicasDiffer& difference) try {
  if (verifier_ == nullptr) throw ReplicasDiffer(difference);
  const std::vector<int>& suspects = difference.suspects();
  const std::uint64_t reached = state_.step;
  replica_.holds_state = false;
  for (Copy& copy : copies_)
    if (copy.saved && copy.step() > difference.sound_until()) copy.saved.reset();
  record_.activity.enter(Activity::Phase::recovering);
  record_.progress.line_anyway(printable(difference.finding()));
  record_.result.flips.push_back({reached, 0, suspects, difference.finding()});
  if (suspects.size() == 1) {
    const auto [last, first_time] = flipped_.try_emplace(suspects.front(), reached);
    if (!first_time && reached < std::exchange(last->second, reached) + kProbation) exclude(suspects.front());
  } else if (std::exchange(unnamed_, reached) >= reached) {
    throw ReplicasDiffer(difference);
  }
  replica_.step->await_all_reduces();
  rebuild("after going back");
  recovered_ = true;
  record_.result.flips.back().repeated_steps = reached - state_.step;
  record_.progress.line_anyway(fmt::format("all ranks repeat what follows step {}", state_.step));
} catch (const ReplicasDiffer&) {
  throw;
} catch (const Error&) {  // a loss
  if (!recover()) throw;
}

// The rank hears of it, and ends itself: that interrupts this rank, which throws Error.
void Survival::exclude(int rank_in_job) {
  const int first = world_.rank_in_job(0);
  if (world_.rank_in_job(world_.rank()) == (first == rank_in_job ? world_.rank_in_job(1) : first))
    membership_.exclude(rank_in_job);
  while (true) world_.barrier();
}

// Waits until the ranks that are left agree who was lost, and continues the all-reduce with them. Returns false if no
// rank was lost. `completed_section`: see Membership::agree(); `meets`: whether this rank is in its last exchange. If
// all are at the same point after it, and those that were lost since the last recovery have taken no state with them,
// they have regrouped.
bool Survival::agree(std::uint64_t completed_section, bool meets) {
  record_.activity.enter(Activity::Phase::recovering);
  if (!agreed_) reached_ = state_.step;
  const auto further = membership_.agree(completed_section);
  if (!further) return false;
  agreed_ = true;
  regrouped_ = false;
  std::vector<LostRank>& losses = record_.result.losses;
  for (const Membership::Loss& loss : *further)
    losses.push_back({loss.rank, loss.host, 0, 0, loss.since, 0, loss.excluded});
  if (exchange_stages(world_, RunStage::running).least != RunStage::running) throw StartAnew();
  if (world_.root()) lead();
  replica_.all_reduce.continue_in(world_);
  const auto same = [this](std::uint64_t number) {
    return std::ranges::count(world_.gather(number), number) == world_.size();
  };
  const bool same_section = same(completed_section), same_place = same(2 * state_.step + (meets ? 1 : 0));
  regrouped_ = completed_section != Membership::kNoSection && same_section && same_place &&
               std::ranges::all_of(std::span(losses).subspan(reported_), [this](const LostRank& loss) {
                 return std::ranges::find(dispensable_, loss.rank) != dispensable_.end();
               });
  return true;
}

// Notes the ranks whose loss leaves the others with the whole state: those that compute, if others serve.
void Survival::note_dispensable() {
  dispensable_.clear();
  const auto workers = static_cast<int>(inputs_.workers());
  for (int rank = 0; rank < workers && workers < world_.size(); ++rank)
    dispensable_.push_back(world_.rank_in_job(rank));
}

void Survival::rebuild(const std::string& when) {
  replica_.holds_state = replica_.holds_state && replica_.step->between_steps() && within_steps_;
  if (verifier_ != nullptr) verifier_->forget();
  if (regrouped_) copy();  // all owners are left, and have their part of the state
  note_dispensable();
  replica_.step->continue_with(step_options(world_, inputs_.options, inputs_.global_batch));
  replica_.ledger.discard();
  go_back();
  check_replicas(world_, replica_.model, replica_.optimizer, when);
  copy();
}

// Returns the last step after which every rank has the state.
std::uint64_t Survival::common_step() const {
  std::vector<std::vector<std::uint64_t>> held;  // by each rank: in copies, and in the parameters
  for (const Copy& copy : copies_) held.push_back(world_.gather(copy.step()));
  held.push_back(world_.gather(replica_.holds_state ? state_.step : kNone));
  const auto have = [&](std::uint64_t step) {
    for (std::size_t rank = 0; rank < held.front().size(); ++rank)
      if (std::ranges::none_of(held, [&](const auto& steps) { return steps[rank] == step; })) return false;
    return true;
  };
  std::uint64_t common = kNone;
  for (const auto& steps : held)
    for (const std::uint64_t step : steps)
      if (step != kNone && (common == kNone || step > common) && have(step)) common = step;
  if (common == kNone) fail("the ranks that are left have no step in common: resume from the last checkpoint");
  return common;
}

// Another loss may have interrupted ranks at different points of the last recovery, or after it, so that only some have
// completed an exchange. From here on, what they exchange must depend only on what they have agreed on.
void Survival::go_back() {
  const std::uint64_t step = common_step();
  if (step != state_.step || !replica_.holds_state) {
    const auto copy = std::ranges::find(copies_, step, &Copy::step);
    copy->parameters.restore();
    state_ = copy->saved->state;
    record_.epoch = copy->saved->epoch;
    record_.noise = copy->saved->noise;
    replica_.holds_state = true;
    newest_ = static_cast<std::size_t>(copy - copies_.begin());
  }
  for (Copy& other : copies_)
    if (other.step() != step) other.saved.reset();
  // Only some ranks may have seen the end of an evaluation.
  world_.broadcast(std::as_writable_bytes(std::span(&state_, 1)));
  RunResult& result = record_.result;
  result.ranks = world_.size();
  std::vector<double> seconds(membership_.ranks_in_job());  // only some may know when the run went on
  for (const LostRank& loss : result.losses) seconds[static_cast<std::size_t>(loss.rank)] = loss.seconds;
  world_.maximum(seconds);
  for (LostRank& loss : result.losses) loss.seconds = seconds[static_cast<std::size_t>(loss.rank)];
  std::erase_if(result.evaluations,
                [&](const EvaluationResult& one) { return one.step > step || (one.step == step && !state_.score); });
  std::erase_if(result.epochs, [&](const EpochResult& one) { return one.epoch > state_.cursor.epoch; });
  agree_on_epoch();
}

// Only some ranks may have closed the epoch whose last step was done, or begun the next one. Rank 0's record counts,
// which it writes.
void Survival::agree_on_epoch() {
  std::uint64_t open = record_.epoch ? record_.epoch->epoch : 0;
  world_.broadcast(std::as_writable_bytes(std::span(&open, 1)));
  if (record_.epoch && record_.epoch->epoch == open) return;
  record_.epoch.reset();
  std::vector<EpochResult>& closed = record_.result.epochs;
  if (closed.empty() || closed.back().epoch != open) return;
  EpochResult& epoch = record_.epoch.emplace(closed.back());
  closed.pop_back();
  epoch.train_loss *= static_cast<double>(epoch.images);  // sums again
  epoch.train_measure *= static_cast<double>(epoch.images);
}

// The first of the ranks that are left writes the run's files.
void Survival::lead() {
  if (std::exchange(leads_, true)) return;
  record_.progress.show_here();
  claim_.sign();
}

void Survival::report(std::span<LostRank> losses) {
  const std::uint64_t repeated = reached_ > state_.step ? reached_ - state_.step : 0;
  for (LostRank& loss : losses) {
    loss.step = state_.step;
    loss.repeated_steps = repeated;
    record_.progress.line_anyway(printable(fmt::format(
        "rank {} on {} {} in step {}: {} rank{} go{} on after step {}", loss.rank, loss.host, loss.fate(), reached_ + 1,
        world_.size(), world_.size() == 1 ? "" : "s", world_.size() == 1 ? "es" : "", state_.step)));
  }
  if (static_cast<std::size_t>(world_.size()) < inputs_.options.survival.min_ranks) {
    record_.progress.line_anyway(fmt::format("fewer ranks than --min-ranks {}", inputs_.options.survival.min_ranks));
    request_stop();
  }
}

}  // namespace annulus
