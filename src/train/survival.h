#pragma once

#include <exception>
#include <map>
#include <optional>
#include <vector>

#include "src/io/folder_claim.h"
#include "src/job/membership.h"
#include "src/step/state_copy.h"
#include "src/step/verifier.h"
#include "src/train/replica.h"
#include "src/train/run_record.h"
#include "src/train/training_inputs.h"

namespace annulus {

// A rank's progress. From `claimed` on, files in the run's folder belong to this job.
enum class RunStage : std::uint64_t { starting, claimed, running };

struct RunStages {
  RunStage least, furthest;
};

// Returns the stages of the survivors: their first exchange after Membership::agree(). If one is not running, all start
// the run anew. Collective. Throws Error.
RunStages exchange_stages(const World& world, RunStage own);

// Thrown if ranks were lost and some survivors were not running yet.
struct StartAnew : std::exception {
  const char* what() const noexcept override { return "ranks were lost before the run began on all ranks"; }
};

// Keeps a run going when ranks are lost (--survive).
//
// A loss interrupts a step anywhere: some ranks may have updated some buckets, others not. So every rank has a copy of
// its state in memory, from a moment when all ranks had completed the same step. After a loss, the survivors go
// back to the last step after which all of them have the state, in the copy or still in the parameters, and compute
// from there on what the lost ranks would have computed. With --shards, the results are the same bits.
//
// If the state is not copied within steps (Step::copied_within_steps), copies are made between steps, by all ranks
// together; since a loss may interrupt that, each has two. Likewise with --verify, where a copy counts only when all
// ranks have made the same. But a step may do without a rank that has no part of the state: then the others complete
// the step, and repeat nothing.
//
// Copies are as rare as they must be to take kCopyShare of the time: the longer a copy takes, the more steps are
// repeated after a loss.
class Survival {
 public:
  static constexpr double kCopyShare = 0.004;

  // A rank is excluded if bits flip there again within this number of steps.
  static constexpr std::uint64_t kProbation = 1000;

  // `world`: the run's, which shrinks. `claim`: shared by all ranks, on the run's folder. `verifier`: null without
  // --verify. All references must outlive this.
  Survival(Membership& membership, World& world, const TrainingInputs& inputs, Replica& replica, RunRecord& record,
           RunState& state, const FolderClaim& claim, Verifier* verifier);

  bool wants_copy() const;  // it is time for the next one
  // To be called before each step: copies the state if that is due. Collective.
  void begin_step();
  // To be called after each step. `copy`: a rank wanted one, or the run must not go back behind this point.
  void end_step(bool copy) { due_ = copy && !within_steps_; }
  void answer_requests();  // on rank 0: requests from `annulus control`

  // To be called when an Error has interrupted the run: waits until the ranks that are left agree, and goes back to the
  // last step that they share. Returns false if no rank was lost. Collective over the ranks that are left. Throws
  // Error, or StartAnew.
  bool recover();
  bool recovered() const { return recovered_; }  // the run has gone back
  // To be called when the ranks have differed: goes back to the last copy, which was the same on all of them; but
  // excludes a rank whose bits have flipped before. Throws `difference` if there is no such copy, or if the same
  // difference comes back and it is unknown which rank is wrong. Collective. Throws Error.
  void repeat_after(const ReplicasDiffer& difference);
  // Whether ranks were lost and the others have their whole state, that after the last step: they have completed it
  // without them. Then recover() only shares out the work anew.
  bool regrouped() const { return regrouped_; }

 private:
  struct Saved {
    RunState state;
    std::optional<EpochResult> epoch;
    GradientNoise noise;
  };
  struct Copy {
    StateCopy parameters;
    std::optional<Saved> saved;  // none if the copy is not complete, or of a step that is repeated
    std::uint64_t step() const;
  };

  // REQUIRES: the parameters follow `state`'s step.
  void copy();
  bool regroup();
  bool agree(std::uint64_t completed_section, bool meets);
  void note_dispensable();
  void rebuild(const std::string& when);
  void exclude(int rank_in_job);
  std::uint64_t common_step() const;
  void go_back();
  void lead();
  void agree_on_epoch();
  void report(std::span<LostRank> losses);

  Membership& membership_;
  World& world_;
  const TrainingInputs& inputs_;
  Replica& replica_;
  RunRecord& record_;
  RunState& state_;
  const FolderClaim& claim_;
  Verifier* const verifier_;
  const bool within_steps_;       // copies are taken
  bool leads_;                    // is or was rank 0
  std::vector<int> dispensable_;  // ranks of the job
  std::size_t reported_;          // losses
  bool recovered_ = false;        // see recovered()
  bool agreed_ = false;           // since the last recovery
  bool regrouped_ = false;        // see regrouped()
  std::uint64_t reached_ = 0;     // the last step before the loss
  std::vector<Copy> copies_;
  std::size_t newest_ = 0;
  std::map<int, std::uint64_t> flipped_;  // the last step in which a rank's bits flipped
  std::optional<std::uint64_t> unnamed_;  // the last step in which an unknown rank's bits flipped
  bool due_ = false;                      // a copy, before the next step
  double copied_at_ = 0, copy_seconds_ = 0;
  double answered_at_ = 0;
};

}  // namespace annulus
