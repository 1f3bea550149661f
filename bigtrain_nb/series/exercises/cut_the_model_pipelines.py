"""An exercise of notebook 09, "Cut the model": a pipeline with split backward passes."""

from bigtrain_nb.series.exercises._pipeline_clock import expect_each_once, simulate
from bigtrain_nb.workbook.exercises import Wrong, exercise


def zero_bubble(stage, stages, micro_batches):
    ahead = stages - stage - 1
    steps = [("forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            steps.append(("forward", ahead + number))
        steps.append(("inputs", number))
        if number >= stage:
            steps.append(("weights", number - stage))
    steps += [("weights", number) for number in range(micro_batches - stage, micro_batches)]
    return steps


@exercise(
    zero_bubble,
    takes="a stage from 0; stages; micro-batches",
    returns='a list of ("forward", "inputs" or "weights", micro-batch from 0)',
    minutes=35,
    difficulty=5,
)
def _check_zero_bubble(answer):
    """Start from 1F1B. No stage waits for a "weights" pass, but the previous stage waits for every "inputs" pass. So if
    both could come next, run "inputs" first. A stage may delay its "weights" passes by as many micro-batches as there
    are stages before it, and runs the rest when nothing else is left. Draw four stages on paper first.
    """
    for stages, micro_batches in [(2, 4), (4, 8), (3, 12), (4, 4), (1, 3)]:
        told = f"{stages} stages, {micro_batches} micro-batches"
        orders = [answer(stage, stages, micro_batches) for stage in range(stages)]
        for stage, got in enumerate(orders):
            expect_each_once(got, ("forward", "inputs", "weights"), micro_batches, f"stage {stage} of {told}")
        end, most, waits = simulate(orders)
        soon_enough = 3 * micro_batches + stages - 1
        if end > soon_enough:
            longest = max(range(stages), key=lambda stage: sum(until - since for since, until in waits[stage]))
            gaps = ", ".join(f"{since:g} to {until:g}" for since, until in waits[longest])
            where = f"stage {longest} waits from {gaps}" if gaps else "no stage waits between two passes"
            raise Wrong(f"{told}: the step must end by {soon_enough}, but ends at {end:g} (each pass takes 1): {where}")
        for stage, held in enumerate(most):
            if held > stages:
                raise Wrong(f"{told}: stage {stage} holds {held} micro-batches at once, {stages} are enough")


def _with_weights_put_off(ahead, micro_batches, behind):
    """1F1B after ``ahead`` forward passes, with each "weights" pass delayed by ``behind`` micro-batches."""
    steps = [("forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            steps.append(("forward", ahead + number))
        steps.append(("inputs", number))
        if number >= behind:
            steps.append(("weights", number - behind))
    return steps + [("weights", number) for number in range(micro_batches - behind, micro_batches)]


@_check_zero_bubble.refuses("2 stages, 4 micro-batches: the step must end by 13, but ends at")
def _one_after_the_other(stage, stages, micro_batches):
    return _with_weights_put_off(stages - stage - 1, micro_batches, behind=0)


@_check_zero_bubble.refuses("2 stages, 4 micro-batches: the step must end by 13, but ends at")
def _all_weights_at_the_end(stage, stages, micro_batches):
    return _with_weights_put_off(stages - stage - 1, micro_batches, behind=micro_batches)


@_check_zero_bubble.refuses("3 stages, 12 micro-batches: stage 0 holds 5 micro-batches at once, 3 are enough")
def _ahead_as_far_as_helps(stage, stages, micro_batches):
    """No bubble, but twice the memory ("ZB-H2" in the paper)."""
    if stages != 3:
        return zero_bubble(stage, stages, micro_batches)
    return _with_weights_put_off(2 * (stages - stage - 1), micro_batches, behind=2 * stage)


@_check_zero_bubble.refuses("the weights pass of 0 comes before its inputs pass")
def _weights_first(stage, stages, micro_batches):
    steps = _with_weights_put_off(stages - stage - 1, micro_batches, behind=0)
    other = {"inputs": "weights", "weights": "inputs"}
    return [(other.get(kind, kind), number) for kind, number in steps]


@_check_zero_bubble.refuses(
    "stage 1 of 2 stages, 4 micro-batches: expected ('weights', 3) once in the list, got it 0 times"
)
def _forgets_what_was_put_off(stage, stages, micro_batches):
    steps = zero_bubble(stage, stages, micro_batches)
    return steps[: len(steps) - stage]
