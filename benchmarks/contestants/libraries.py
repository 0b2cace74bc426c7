"""Libraries that take an executor or a map, with ProcessPoolExecutor or with pilotfish.Executor.

For each library, a function makes about ``count`` calls that sleep, and returns the number of calls. That number differs a little from
``count`` if the library calls in generations. The output is one line, ``RESULT {json}``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from typing import Any

from benchmarks.contestants.workloads import nap_at
from pilotfish import Executor as PilotfishExecutor

EXECUTORS: dict[str, Callable[[int], Executor]] = {"processpool": ProcessPoolExecutor, "pilotfish": PilotfishExecutor}
GENERATION = 16
"""Number of calls that SciPy, emcee and pymoo make at the same time."""
CALLS_S = (0.01, 0.05)
"""Durations of the calls."""
WARM_UP_CALLS = 4 * GENERATION


def call_scipy(executor: Executor, workers: int, call_s: float, count: int) -> int:
    from scipy.optimize import differential_evolution  # type: ignore[import-untyped]

    options = {"popsize": GENERATION // 2, "maxiter": count // GENERATION - 1, "tol": 0, "polish": False, "updating": "deferred"}
    return int(differential_evolution(nap_at, [(-5, 5)] * 2, args=(call_s,), workers=executor.map, **options).nfev)


def call_emcee(executor: Executor, workers: int, call_s: float, count: int) -> int:
    import emcee  # type: ignore[import-not-found]
    import numpy as np

    walkers = 2 * GENERATION  # emcee moves one half after the other
    steps = count // walkers - 1
    sampler = emcee.EnsembleSampler(walkers, 2, nap_at, args=[call_s], pool=executor)
    sampler.run_mcmc(np.random.default_rng(1).normal(size=(walkers, 2)), steps)
    return walkers * (steps + 1)


def call_optuna(executor: Executor, workers: int, call_s: float, count: int) -> int:
    import optuna  # type: ignore[import-not-found]

    def objective(trial: Any) -> float:
        return executor.submit(nap_at, [trial.suggest_float("x", -5, 5)], call_s).result()

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    study.optimize(objective, n_trials=count, n_jobs=workers)
    return len(study.trials)


def call_adaptive(executor: Executor, workers: int, call_s: float, count: int) -> int:
    import adaptive  # type: ignore[import-not-found]

    learner = adaptive.SequenceLearner(partial(nap_at, call_s=call_s), [[float(number)] for number in range(count)])
    adaptive.BlockingRunner(learner, executor=executor, ntasks=workers)
    return int(learner.npoints)


def call_pymoo(executor: Executor, workers: int, call_s: float, count: int) -> int:
    from pymoo.algorithms.soo.nonconvex.ga import GA  # type: ignore[import-not-found]
    from pymoo.optimize import minimize  # type: ignore[import-not-found]
    from pymoo.parallelization.starmap import StarmapParallelization  # type: ignore[import-not-found]
    from pymoo.problems.functional import FunctionalProblem  # type: ignore[import-not-found]

    # ProcessPoolExecutor has no starmap.
    starmap = getattr(executor, "starmap", None) or (lambda function, rows: executor.map(function, *zip(*rows, strict=True)))
    objective = partial(nap_at, call_s=call_s)
    problem = FunctionalProblem(2, [objective], xl=-5.0, xu=5.0, elementwise_runner=StarmapParallelization(starmap))
    found = minimize(problem, GA(pop_size=GENERATION), ("n_gen", count // GENERATION), seed=1)
    return int(found.algorithm.evaluator.n_eval)


def call_tqdm(executor: Executor, workers: int, call_s: float, count: int) -> int:
    from tqdm import tqdm  # type: ignore[import-untyped]

    with open(os.devnull, "w") as nowhere:
        return len(list(tqdm(executor.map(nap_at, points(count), [call_s] * count), total=count, file=nowhere)))


def call_dask(executor: Executor, workers: int, call_s: float, count: int) -> int:
    import dask  # type: ignore[import-not-found]

    return len(dask.compute(*(dask.delayed(nap_at)(point, call_s) for point in points(count)), scheduler=executor))


def call_asyncio(executor: Executor, workers: int, call_s: float, count: int) -> int:
    async def gather() -> int:
        loop = asyncio.get_running_loop()
        return len(await asyncio.gather(*(loop.run_in_executor(executor, nap_at, point, call_s) for point in points(count))))

    return asyncio.run(gather())


def points(count: int) -> Iterable[list[float]]:
    return [[float(number)] for number in range(count)]


LIBRARIES: dict[str, Callable[[Executor, int, float, int], int]] = {
    "scipy": call_scipy,
    "emcee": call_emcee,
    "optuna": call_optuna,
    "adaptive": call_adaptive,
    "pymoo": call_pymoo,
    "tqdm": call_tqdm,
    "dask": call_dask,
    "asyncio": call_asyncio,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("executor", choices=EXECUTORS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    call = LIBRARIES[options.library]
    answer = {}
    with EXECUTORS[options.executor](options.workers) as executor:
        call(executor, options.workers, 0.001, WARM_UP_CALLS)
        for call_s in CALLS_S:
            count = max(WARM_UP_CALLS, round(options.seconds / 2 * options.workers / call_s))
            began = time.perf_counter()
            made = call(executor, options.workers, call_s, count)
            elapsed = time.perf_counter() - began
            answer[f"ms_{call_s * 1000:.0f}"] = elapsed * options.workers / made * 1000
    print("RESULT " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
