"""Generates workflows of any size that belong to a family, such as Montage or BLAST. Each family has the same structure as in WfCommons.

For example, ``family("montage", 1000, seed=1)`` returns a workflow. Task times and file sizes have the same means and deviations as in
published executions (WfInstances, on the Chameleon cloud).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from pilotfish.applications.wfcommons import Workflow, WorkflowTask
from pilotfish.errors import BadInput

KB, MB, GB = 1_000, 1_000_000, 1_000_000_000
MIN_TASKS = 100
SIZE_SPREAD = 0.15
"""Standard deviation of the sizes of similar files, relative to their mean."""

Times = dict[str, tuple[float, float]]


class WorkflowSketch:
    """Builds a workflow. ``times``: for each program, the mean and the standard deviation of its seconds."""

    def __init__(self, name: str, times: Times, random: Random) -> None:
        self.name = name
        self._times = times
        self._random = random
        self._tasks: list[WorkflowTask] = []
        self._files: dict[str, int] = {}

    def file(self, name: str, size: float) -> str:
        """Adds an input file of the workflow."""
        self._files[name] = round(self._near(size, SIZE_SPREAD * size))
        return name

    def add(self, program: str, parents: Sequence[int] = (), inputs: Sequence[str] = (), size: float = KB) -> int:
        """Adds a task that reads the outputs of its parents and writes one file of about ``size`` bytes. Returns the index of the task."""
        index = len(self._tasks)
        made = self.file(f"{program}-{index}.out", size)
        read = tuple(self._tasks[parent].outputs[0] for parent in parents)
        seconds = self._near(*self._times[program])
        self._tasks.append(WorkflowTask(f"{program}_ID{index:07}", program, seconds, tuple(parents), (*inputs, *read), (made,)))
        return index

    def workflow(self) -> Workflow:
        return Workflow(self.name, tuple(self._tasks), self._files)

    def _near(self, mean: float, deviation: float) -> float:
        """Draws a lognormal value. Such a value is positive, and sometimes much larger than the mean."""
        spread = math.log1p((deviation / mean) ** 2)
        return self._random.lognormvariate(math.log(mean) - spread / 2, math.sqrt(spread))


def _shared_out(total: int, among: int) -> list[int]:
    return [total // among + (place < total % among) for place in range(among)]


def _montage(sketch: WorkflowSketch, count: int) -> None:
    """Builds Montage: images of three colours are projected, compared with their neighbours, corrected and added."""
    bands, viewers = 3, 4
    mosaics: list[int] = []
    for size in _shared_out(count - 1, bands):
        images = max(2, round((size - 5) / 7.2))
        while images * (images - 1) // 2 < size - 5 - 2 * images:
            images += 1
        pairs = ((left, left + apart) for apart in range(1, images) for left in range(images - apart))
        header = sketch.file(f"region-{len(mosaics)}.hdr", 277)
        inputs = (sketch.file(f"image-{len(mosaics)}-{number}.fits", 1.5 * MB) for number in range(images))
        projected = [sketch.add("mProject", inputs=(header, raw), size=8.3 * MB) for raw in inputs]
        fits = [
            sketch.add("mDiffFit", (projected[left], projected[right]), size=270)
            for (left, right), _ in zip(pairs, range(size - 5 - 2 * images), strict=False)
        ]
        model = sketch.add("mBgModel", [sketch.add("mConcatFit", fits, size=65 * KB)], size=3 * KB)
        corrected = [sketch.add("mBackground", (one, model), size=8.3 * MB) for one in projected]
        table = sketch.add("mImgtbl", corrected, size=27 * KB)
        mosaics.append(sketch.add("mAdd", [*corrected, table], size=33 * MB))
    for parents in [*([mosaic] for mosaic in mosaics), mosaics][:viewers]:
        sketch.add("mViewer", parents, size=2 * MB)


def _blast(sketch: WorkflowSketch, count: int) -> None:
    """Builds BLAST: sequences are split into parts, each part is compared with one database, and the answers are merged."""
    database, program = sketch.file("nt", 1.2 * GB), sketch.file("blastall", 7 * KB)
    split = sketch.add("split_fasta", inputs=(sketch.file("all.fasta", 60 * KB),), size=200)
    found = [sketch.add("blastall", (split,), (program, database), size=600) for _ in range(count - 3)]
    sketch.add("cat_blast", found, size=170 * KB)
    sketch.add("cat", found, size=KB)


def _bwa(sketch: WorkflowSketch, count: int) -> None:
    reads = sketch.add("fastq_reduce", inputs=(sketch.file("reads.fastq", 248 * KB),), size=250)
    index = sketch.add("bwa_index", inputs=(sketch.file("reference.fasta", 206 * KB),), size=181 * KB)
    aligned = [sketch.add("bwa", (reads, index), size=5 * KB) for _ in range(count - 4)]
    sketch.add("cat_bwa", aligned, size=305 * KB)
    sketch.add("cat", aligned, size=KB)


def _epigenomics(sketch: WorkflowSketch, count: int) -> None:
    """Builds Epigenomics: the data of each lane of a sequencer are split, processed in chains of four steps, and merged."""
    lanes = max(2, min(7, count // 130))
    reference = sketch.file("reference.bfa", 48 * MB)
    merged: list[int] = []
    for chains in _shared_out((count - 3 - 2 * lanes) // 4, lanes):
        split = sketch.add("fastqSplit", inputs=(sketch.file(f"lane-{len(merged)}.sfq", 517 * MB),), size=15 * MB)
        mapped = []
        for _ in range(chains):
            text = sketch.add("sol2sanger", (sketch.add("filterContams", (split,), size=13 * MB),), size=9.6 * MB)
            mapped.append(sketch.add("map", (sketch.add("fast2bfq", (text,), size=2.5 * MB),), (reference,), size=1.1 * MB))
        merged.append(sketch.add("mapMerge", mapped, size=35 * MB))
    everything = sketch.add("mapMerge", merged, size=140 * MB)
    sketch.add("pileup", (sketch.add("chr21", (everything,), size=140 * MB),), (reference,), size=16 * MB)


def _seismology(sketch: WorkflowSketch, count: int) -> None:
    pairs = (sketch.file(f"pair-{number}.lht", 9 * KB) for number in range(count - 1))
    sketch.add("wrapper_siftSTFByMisfit", [sketch.add("sG1IterDecon", inputs=(pair,), size=6 * KB) for pair in pairs], size=284 * KB)


def _genome(sketch: WorkflowSketch, count: int) -> None:
    """Builds 1000Genome: each chromosome is extracted in parts, merged, and compared with seven populations in two ways."""
    populations = [sketch.file(f"population-{number}", 28 * KB) for number in range(7)]
    columns = sketch.file("columns.txt", 20 * KB)
    chromosomes = max(1, min(22, count // 40))
    for number, size in enumerate(_shared_out(count, chromosomes)):
        whole = sketch.file(f"chromosome-{number}.vcf", 1.0 * GB)
        parts = [sketch.add("individuals", inputs=(whole, columns), size=28 * KB) for _ in range(size - 16)]
        merged = sketch.add("individuals_merge", parts, size=24 * KB)
        sifted = sketch.add("sifting", inputs=(sketch.file(f"annotation-{number}.vcf", 800 * MB),), size=MB)
        for population in populations:
            sketch.add("mutation_overlap", (merged, sifted), (population, columns), size=149 * KB)
            sketch.add("frequency", (merged, sifted), (population, columns), size=267 * KB)


def _cycles(sketch: WorkflowSketch, count: int) -> None:
    """Builds Cycles: crops at several locations are simulated with and without more fertilizer."""
    locations = max(1, round((count - 1) / 66))
    soil, summaries = sketch.file("soil.zip", 600 * KB), []
    for number, cases in enumerate(_shared_out((count - 1 - 2 * locations) // 4, locations)):
        weather = sketch.file(f"weather-{number}.zip", 600 * KB)
        plain, parsed = [], []
        for _ in range(cases):
            baseline = sketch.add("baseline_cycles", inputs=(soil, weather), size=9.7 * MB)
            plain.append(sketch.add("cycles", (baseline,), (soil, weather), size=9.6 * MB))
            more = sketch.add("fertilizer_increase_cycles", (baseline,), (soil, weather), size=9.6 * MB)
            parsed.append(sketch.add("cycles_fertilizer_increase_output_parser", (plain[-1], more), size=8 * KB))
        summaries.append(sketch.add("cycles_output_summary", plain, size=75 * KB))
        sketch.add("cycles_fertilizer_increase_output_summary", parsed, size=123 * KB)
    sketch.add("cycles_plots", summaries, size=5.2 * MB)


def _soykb(sketch: WorkflowSketch, count: int) -> None:
    """Builds SoyKB: each soybean sample passes six steps. Then its chromosomes are processed, and the results of all samples are joined."""
    sizes = ((samples, parts) for parts in range(5, 21) for samples in range(1, count // (6 + parts) + 2))
    samples, parts = min(sizes, key=lambda one: (abs(one[0] * (6 + one[1]) + one[1] + 6 - count), abs(one[1] - 10)))
    reference = (sketch.file("reference.tar", 2.8 * GB),)
    called: list[list[int]] = []
    for number in range(samples):
        reads = sketch.file(f"sample-{number}.fastq", 109 * MB)
        step = sketch.add("alignment_to_reference", inputs=(*reference, reads), size=113 * KB)
        for program in ("sort_sam", "dedup", "add_replace"):
            step = sketch.add(program, (step,), size=165 * KB)
        targets = sketch.add("realign_target_creator", (step,), reference, size=KB)
        realigned = sketch.add("indel_realign", (step, targets), reference, size=167 * KB)
        called.append([sketch.add("haplotype_caller", (realigned,), reference, size=89 * KB) for _ in range(parts)])
    sketch.add("merge_gcvf", [one for row in called for one in row], reference, size=164 * KB)
    typed = [sketch.add("genotype_gvcfs", column, reference, size=89 * KB) for column in zip(*called, strict=True)]
    combined = sketch.add("combine_variants", typed, reference, size=103 * KB)
    for kind in ("snp", "indel"):
        sketch.add(
            f"filtering_{kind}", (sketch.add(f"select_variants_{kind}", (combined,), reference, size=70 * KB),), reference, size=100 * KB
        )


def _srasearch(sketch: WorkflowSketch, count: int) -> None:
    """Builds SRA Search: each archive is downloaded and searched with one index. The hits are merged in groups of 25."""
    archives = round((count - 2) / 2.04)
    index = sketch.add("bowtie2-build", inputs=(sketch.file("genome.fna", 99 * KB),), size=8.5 * MB)
    found = [sketch.add("bowtie2", (index, sketch.add("fasterq-dump", size=1.4 * GB)), size=KB) for _ in range(archives)]
    merged = [sketch.add("merge", found[first : first + 25], size=6 * KB) for first in range(0, archives, 25)]
    if len(merged) > 1:
        sketch.add("merge", merged, size=6 * KB)


_FAMILIES: dict[str, tuple[Callable[[WorkflowSketch, int], None], Times]] = {
    "montage": (
        _montage,
        {
            "mProject": (14.65, 1.36),
            "mDiffFit": (0.16, 0.27),
            "mConcatFit": (1.21, 0.07),
            "mBgModel": (11.63, 0.08),
            "mBackground": (1.04, 0.75),
            "mImgtbl": (0.24, 0.01),
            "mAdd": (0.49, 0.01),
            "mViewer": (1.09, 0.40),
        },
    ),
    "blast": (_blast, {"split_fasta": (0.90, 0.05), "blastall": (106.73, 4.28), "cat_blast": (4.38, 0.2), "cat": (0.02, 0.002)}),
    "bwa": (
        _bwa,
        {"fastq_reduce": (4.72, 0.2), "bwa_index": (86.36, 4.0), "bwa": (3.33, 1.95), "cat_bwa": (49.46, 2.0), "cat": (0.06, 0.006)},
    ),
    "epigenomics": (
        _epigenomics,
        {
            "fastqSplit": (26.32, 1.0),
            "filterContams": (20.15, 7.53),
            "sol2sanger": (16.27, 4.49),
            "fast2bfq": (3.31, 1.40),
            "map": (51.44, 8.02),
            "mapMerge": (7.77, 5.53),
            "chr21": (25.75, 1.0),
            "pileup": (26.17, 1.0),
        },
    ),
    "seismology": (_seismology, {"sG1IterDecon": (0.58, 0.60), "wrapper_siftSTFByMisfit": (0.20, 0.02)}),
    "1000genome": (
        _genome,
        {
            "individuals": (86.35, 22.56),
            "individuals_merge": (38.91, 1.16),
            "sifting": (4.55, 4.17),
            "mutation_overlap": (8.15, 10.36),
            "frequency": (120.70, 23.52),
        },
    ),
    "cycles": (
        _cycles,
        {
            "baseline_cycles": (50.42, 15.52),
            "cycles": (16.54, 16.71),
            "fertilizer_increase_cycles": (15.89, 16.65),
            "cycles_fertilizer_increase_output_parser": (0.05, 0.02),
            "cycles_output_summary": (0.09, 0.10),
            "cycles_fertilizer_increase_output_summary": (0.08, 0.07),
            "cycles_plots": (427.44, 20.0),
        },
    ),
    "soykb": (
        _soykb,
        {
            "alignment_to_reference": (73.17, 0.75),
            "sort_sam": (55.95, 15.44),
            "dedup": (67.08, 7.91),
            "add_replace": (65.58, 6.47),
            "realign_target_creator": (112.50, 6.06),
            "indel_realign": (80.05, 25.03),
            "haplotype_caller": (229.35, 161.52),
            "merge_gcvf": (4172.57, 200.0),
            "genotype_gvcfs": (150.80, 13.59),
            "combine_variants": (4.82, 0.2),
            "select_variants_snp": (50.95, 2.0),
            "select_variants_indel": (52.95, 2.0),
            "filtering_snp": (4.65, 0.2),
            "filtering_indel": (7.73, 0.2),
        },
    ),
    "srasearch": (
        _srasearch,
        {"bowtie2-build": (4.34, 0.2), "fasterq-dump": (821.56, 667.40), "bowtie2": (50.17, 20.77), "merge": (0.17, 0.09)},
    ),
}

FAMILIES = tuple(_FAMILIES)


def family(name: str, tasks: int, seed: int = 0) -> Workflow:
    """Generates a workflow of a family with about ``tasks`` tasks. The same seed gives the same workflow."""
    if name not in _FAMILIES:
        raise BadInput(f"there is no family {name!r} of workflows", f"They are {', '.join(FAMILIES)}.")
    if tasks < MIN_TASKS:
        raise BadInput(f"{tasks} tasks are too few for a workflow of a family", f"Ask for {MIN_TASKS} or more.")
    build, times = _FAMILIES[name]
    sketch = WorkflowSketch(f"{name}-{tasks}", times, Random(f"{name} {tasks} {seed}"))
    build(sketch, tasks)
    return sketch.workflow()
