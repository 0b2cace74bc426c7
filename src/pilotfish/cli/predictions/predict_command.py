"""Implements predict: simulates the pool many times from its current state to estimate when a run finishes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from pilotfish.cli import completions
from pilotfish.cli.predictions.lookahead import RECORD, about, clock, find_unfinished, notes, number, progress_of
from pilotfish.cli.shared_options import json_option, old_option, pool_option, run_argument, samples_option
from pilotfish.cli.terminal.screen import Column, Screen, duration, plural
from pilotfish.client.offline_pool import OfflinePool

if TYPE_CHECKING:
    from pilotfish.core.state import Run
    from pilotfish.sim.projections.finish_estimate import FinishEstimate
    from pilotfish.sim.projections.prediction_record import PredictionRecord

RESULTS_HINT = "See how long its tasks took: pilotfish results {}"
SHOWN = 20
"""Maximum number of recorded predictions to show. The newest are shown."""
PARTS = {
    "waiting_s": "queue wait",
    "behind_s": "other runs first",
    "starting_s": "start-up",
    "staging_s": "staging",
    "execution_s": "execution",
}
Interval = tuple[float, float]
MIN_SHOWN_S = 0.001
"""A part of the time that is shorter than this is not printed."""


@click.command()
@run_argument(completions.unfinished)
@click.option("--accuracy", is_flag=True, help="Show the accuracy of earlier predictions.")
@old_option("--record", "--accuracy", is_flag=True)
@samples_option
@pool_option
@json_option
def predict(run: str | None, accuracy: bool, samples: int | None, pool: str, as_json: bool) -> None:
    """Estimate when a run finishes and where the time goes.

    The pool is simulated many times from its current state, with learned task times, link speeds and queue waits. The real pool
    continues meanwhile.
    """
    from pilotfish.sim.projections.prediction_record import Prediction, PredictionRecord

    screen = Screen.of()
    offline, snapshot = OfflinePool.snapshot(pool)
    calibration = PredictionRecord(offline.directory / RECORD)
    calibration.settle(offline.state, offline.ended)
    if accuracy:
        calibration.save()
        _show_record(screen, calibration, as_json)
        return
    from pilotfish.sim.projections.finish_estimate import estimate_finish

    hint = "See the accuracy of earlier predictions: pilotfish predict --accuracy" if calibration.predictions else RESULTS_HINT
    found = find_unfinished(offline.state, run, hint)
    estimate = estimate_finish(snapshot, found.id, samples=samples or 0, on_progress=progress_of(screen, as_json))[0]
    factor = calibration.factor()
    low, high = estimate.interval(factor)
    if not estimate.stuck:
        prediction = Prediction(snapshot.now, found.uid, found.id, found.unfinished, estimate.median_s, low, high, factor)
        calibration.predictions.append(prediction)
    calibration.save()
    answer = _answer(offline, found, estimate, (low, high), factor, len(calibration.tested))
    if as_json:
        screen.json(answer)
    else:
        _show(screen, offline, found, answer, estimate, (low, high))


def _answer(offline: OfflinePool, run: Run, estimate: FinishEstimate, interval: Interval, factor: float, tested: int) -> dict[str, Any]:
    median = estimate.median_s
    return {
        "run": run.id,
        "at": offline.now,
        "left": run.unfinished,
        "tasks": len(run.tasks),
        "median_s": number(median),
        "low_s": number(interval[0]),
        "high_s": number(interval[1]),
        "end_at": number(offline.now + median),
        "deadline": run.options.deadline or None,
        "in_time": estimate.chance_to_end_by(run.options.deadline - offline.now) if run.options.deadline else None,
        "parts": {name: number(seconds) for name, seconds in asdict(estimate.parts).items()},
        "replicas": len(estimate.ends_s),
        "factor": round(factor, 3),
        "tested": tested,
        "guessed": estimate.guessed,
        "stuck": estimate.stuck,
        "notes": notes(offline, run, estimate),
    }


def _show(screen: Screen, offline: OfflinePool, run: Run, answer: dict[str, Any], estimate: FinishEstimate, interval: Interval) -> None:
    median, now = estimate.median_s, offline.now
    if answer["median_s"] is None:
        screen.line(f"Run {run.id} will not finish in its current state.")
    else:
        low, high = interval
        latest = f"{clock(now + high, now)} ({about(low)} to {about(high)})" if answer["high_s"] is not None else "never"
        between = f"{clock(now + low, now)} to {latest}"
        when = f"finish at about {clock(now + median, now)}, in {about(median)}"
        if answer["guessed"]:
            screen.line(f"Run {run.id} may {when}: a rough guess until some of its tasks have ended.")
            screen.line(f"Perhaps from {between}.")
        else:
            screen.line(f"Run {run.id} will {when}.")
            screen.line(f"80 % interval: {between}.")
        screen.line()
        samples = f"{len(estimate.ends_s):,}"
        if answer["factor"] != 1.0:
            samples += f"; interval scaled by {answer['factor']:g} after {plural(answer['tested'], 'earlier prediction')}"
        screen.fields(
            [
                ("tasks left", f"{run.unfinished:,} of {plural(len(run.tasks), 'task')}"),
                *_deadline(answer, median, now),
                *((label, about(seconds)) for name, label in PARTS.items() if (seconds := answer["parts"][name]) >= MIN_SHOWN_S),
                ("tail", f"{about(estimate.parts.tail_s)} from the time when the first core is idle"),
                ("samples", samples),
            ]
        )
    for note in answer["notes"]:
        screen.line(f"Note: {note}.")


def _deadline(answer: dict[str, Any], median: float, now: float) -> list[tuple[str, str]]:
    if answer["deadline"] is None:
        return []
    late_s = now + median - answer["deadline"]
    verdict = f"late by about {about(late_s)}" if late_s > 0 else f"in time, {about(-late_s)} before it"
    sure = "if this guess holds" if answer["guessed"] else f"in time in {answer['in_time']:.0%} of the samples"
    return [("deadline", f"{clock(answer['deadline'], now)}: {verdict}; {sure}")]


RECORD_COLUMNS = (
    Column("RUN", lambda prediction: prediction.run, right=True),
    Column("TASKS LEFT", lambda prediction: f"{prediction.left:,}", right=True),
    Column("PREDICTED", lambda prediction: about(prediction.median_s), right=True),
    Column("80 % INTERVAL", lambda prediction: f"{about(prediction.low_s)} to {about(prediction.high_s)}"),
    Column("ACTUAL", lambda prediction: duration(prediction.took_s) if prediction.took_s else "unfinished", right=True),
    Column("INSIDE", lambda prediction: "" if not prediction.took_s else "yes" if prediction.held else "no"),
)


def _show_record(screen: Screen, calibration: PredictionRecord, as_json: bool) -> None:
    tested = calibration.tested
    errors = sorted(prediction.error for prediction in tested)
    held = sum(prediction.held for prediction in tested)
    if as_json:
        names = ("run", "at", "left", "median_s", "low_s", "high_s")
        rows = [
            {**{name: getattr(prediction, name) for name in names}, "took_s": prediction.took_s or None}
            for prediction in calibration.predictions
        ]
        middle = errors[len(errors) // 2] if errors else None
        screen.json({"predictions": rows, "tested": len(tested), "held": held, "median_error": middle, "factor": calibration.factor()})
        return
    if not calibration.predictions:
        screen.line("There are no predictions yet. Make one while a run is unfinished: pilotfish predict")
        return
    screen.table(RECORD_COLUMNS, calibration.predictions[-SHOWN:])
    if tested:
        screen.line()
        half = f"the median error was {errors[len(errors) // 2]:.0%} of the time left"
        screen.line(f"{held} of {plural(len(tested), 'prediction')} had the finish time inside the 80 % interval; {half}.")
