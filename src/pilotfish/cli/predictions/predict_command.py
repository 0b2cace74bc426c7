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

SHOWN = 20
"""Maximum recorded predictions shown, the latest ones."""
PARTS = {
    "waiting_s": "waiting for workers",
    "behind_s": "behind other runs",
    "starting_s": "starting",
    "staging_s": "staging",
    "execution_s": "execution",
}
Band = tuple[float, float]
LEAST_S = 0.001
"""Minimum seconds of a part to be printed."""


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
    seen, moment = OfflinePool.snapshot(pool)
    calibration = PredictionRecord(seen.directory / RECORD)
    calibration.settle(seen.state, seen.ended)
    if accuracy:
        calibration.save()
        _show_record(screen, calibration, as_json)
        return
    from pilotfish.sim.projections.finish_estimate import estimate_finish

    found = find_unfinished(seen.state, run)
    foresight = estimate_finish(moment, found.id, samples=samples or 0, on_progress=progress_of(screen, as_json))[0]
    factor = calibration.factor()
    low, high = foresight.interval(factor)
    median = foresight.median_s
    if not foresight.stuck:
        calibration.predictions.append(Prediction(moment.now, found.uid, found.id, found.unfinished, median, low, high, factor))
    calibration.save()
    answer = _answer(seen, found, foresight, (low, high), factor, len(calibration.tested))
    if as_json:
        screen.json(answer)
    else:
        _show(screen, seen, found, answer, foresight, (low, high))


def _answer(seen: OfflinePool, run: Run, foresight: FinishEstimate, band: Band, factor: float, tested: int) -> dict[str, Any]:
    median = foresight.median_s
    return {
        "run": run.id,
        "at": seen.now,
        "left": run.unfinished,
        "tasks": len(run.tasks),
        "median_s": number(median),
        "low_s": number(band[0]),
        "high_s": number(band[1]),
        "end_at": number(seen.now + median),
        "deadline": run.options.deadline or None,
        "in_time": foresight.chance_to_end_by(run.options.deadline - seen.now) if run.options.deadline else None,
        "parts": {name: number(seconds) for name, seconds in asdict(foresight.parts).items()},
        "replicas": len(foresight.ends_s),
        "factor": round(factor, 3),
        "tested": tested,
        "guessed": foresight.guessed,
        "stuck": foresight.stuck,
        "notes": notes(seen, run, foresight),
    }


def _show(
    screen: Screen, seen: OfflinePool, run: Run, answer: dict[str, Any], foresight: FinishEstimate, band: tuple[float, float]
) -> None:
    median, now = foresight.median_s, seen.now
    if answer["median_s"] is None:
        screen.line(f"Run {run.id} will not end as it is.")
    else:
        low, high = band
        latest = f"{clock(now + high, now)} ({about(low)} to {about(high)})" if answer["high_s"] is not None else "never"
        between = f"between {clock(now + low, now)} and {latest}"
        when = f"be over at about {clock(now + median, now)}, in {about(median)}"
        if answer["guessed"]:
            screen.line(f"Run {run.id} may {when}: a rough guess, until some of its tasks have ended.")
            screen.line(f"Perhaps {between}.")
        else:
            screen.line(f"Run {run.id} will {when}.")
            screen.line(f"In four of five cases {between}.")
        screen.line()
        futures = plural(len(foresight.ends_s), "future")
        if answer["factor"] != 1.0:
            futures += f"; the band is {answer['factor']:g} times as wide as they say, by {plural(answer['tested'], 'earlier prediction')}"
        screen.fields(
            [
                ("left", f"{run.unfinished:,} of {plural(len(run.tasks), 'task')}"),
                *_deadline(answer, median, now),
                *((words, about(seconds)) for name, words in PARTS.items() if (seconds := answer["parts"][name]) >= LEAST_S),
                ("tail", f"{about(foresight.parts.tail_s)} from when the first core has nothing to do"),
                ("imagined", futures),
            ]
        )
    for note in answer["notes"]:
        screen.line(f"Note: {note}.")


def _deadline(answer: dict[str, Any], median: float, now: float) -> list[tuple[str, str]]:
    if answer["deadline"] is None:
        return []
    late_s = now + median - answer["deadline"]
    verdict = f"late by about {about(late_s)}" if late_s > 0 else f"in time, {about(-late_s)} before it"
    sure = "if this guess holds" if answer["guessed"] else f"in time in {answer['in_time']:.0%} of the futures"
    return [("deadline", f"{clock(answer['deadline'], now)}: {verdict}; {sure}")]


def _show_record(screen: Screen, calibration: PredictionRecord, as_json: bool) -> None:
    tested = calibration.tested
    errors = sorted(one.error for one in tested)
    held = sum(one.held for one in tested)
    if as_json:
        rows = [
            {
                "run": one.run,
                "at": one.at,
                "left": one.left,
                "median_s": one.median_s,
                "low_s": one.low_s,
                "high_s": one.high_s,
                "took_s": one.took_s or None,
            }
            for one in calibration.predictions
        ]
        middle = errors[len(errors) // 2] if errors else None
        screen.json({"predictions": rows, "tested": len(tested), "held": held, "median_error": middle, "factor": calibration.factor()})
        return
    if not calibration.predictions:
        screen.line("Nothing was predicted yet. When will it be over? pilotfish predict")
        return
    columns = [
        Column("RUN", right=True),
        Column("LEFT", right=True),
        Column("PREDICTED", right=True),
        Column("BAND"),
        Column("TOOK", right=True),
        Column(""),
    ]
    rows_shown = []
    for one in calibration.predictions[-SHOWN:]:
        verdict = "" if not one.took_s else "inside" if one.held else "outside"
        took = duration(one.took_s) if one.took_s else "not over"
        rows_shown.append((one.run, f"{one.left:,}", about(one.median_s), f"{about(one.low_s)} to {about(one.high_s)}", took, verdict))
    screen.table(columns, rows_shown)
    if tested:
        screen.line()
        half = f"half of the medians were within {errors[len(errors) // 2]:.0%} of the time that was left"
        screen.line(f"{held} of {plural(len(tested), 'end')} inside the band of four of five; {half}.")
