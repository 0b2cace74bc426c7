"""What a person may ask ``whatif``, as they write it: ``+50 workers cluster``, ``-site far``, ``policy=near``; several with commas."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pilotfish.api.nearest import did_you_mean
from pilotfish.errors import BadInput
from pilotfish.model.settings import POLICY_NAMES
from pilotfish.model.site import LOCAL
from pilotfish.sim.moment import Variation

FORMS = {
    "workers": re.compile(r"([+-][0-9]+) +workers?(?: +(?:at +)?(\S+))?"),
    "site": re.compile(r"([+-]) *site +(\S+)"),
    "policy": re.compile(r"policy *= *(\S+)"),
    "cores": re.compile(r"cores *= *([0-9]+(?:[.][0-9]+)?)"),
    "speed": re.compile(r"speed +(\S+?) *= *([0-9]*[.]?[0-9]+)"),
}
HINT = 'Write "+50 workers SITE", "+site X", "-site X", "policy=near", "cores=8" or "speed SITE=2"; several of them with commas'
MOST_WORKERS = 100_000


def read_variation(text: str, sites: Iterable[str]) -> Variation:
    """``sites``: those that the pool knows."""
    found: dict[str, list[tuple[str, ...]]] = {}
    known = list(dict.fromkeys([LOCAL, *sites]))
    for word in text.split(","):
        kind, groups = _read(word.strip())
        found.setdefault(kind, []).append(groups)
    for name in [
        *(site or LOCAL for _, site in found.get("workers", ())),
        *(site for _, site in found.get("site", ())),
        *(site for site, _ in found.get("speed", ())),
    ]:
        if name not in known:
            raise BadInput(
                f"{text!r}: the pool knows no site {name!r}",
                did_you_mean(name, known) or f"It knows {', '.join(known)}; see: pilotfish sites",
            )
    for (policy,) in found.get("policy", ()):
        if policy not in POLICY_NAMES:
            raise BadInput(
                f"{text!r}: there is no policy {policy!r}", did_you_mean(policy, POLICY_NAMES) or f"There are {', '.join(POLICY_NAMES)}"
            )
    return Variation(
        text,
        policy=found.get("policy", [("",)])[-1][0],
        more=tuple((site or LOCAL, _few(text, int(count))) for count, site in found.get("workers", ())),
        with_sites=tuple(site for sign, site in found.get("site", ()) if sign == "+"),
        without_sites=tuple(site for sign, site in found.get("site", ()) if sign == "-"),
        speeds={site: _positive(text, float(factor)) for site, factor in found.get("speed", ())},
        cores=float(found["cores"][-1][0]) if "cores" in found else None,
    )


def _read(word: str) -> tuple[str, tuple[str, ...]]:
    for kind, form in FORMS.items():
        matched = form.fullmatch(word)
        if matched is not None:
            return kind, tuple(group or "" for group in matched.groups())
    words = re.findall("[a-z]+", word)
    misspelt = did_you_mean(words[0], FORMS) if words and not any(one in ("worker", *FORMS) for one in words) else None
    raise BadInput(f"{word!r} cannot be asked", misspelt or HINT)


def _few(text: str, count: int) -> int:
    if abs(count) > MOST_WORKERS:
        raise BadInput(f"{text!r}: so many workers cannot be imagined", f"At most {MOST_WORKERS:,}")
    return count


def _positive(text: str, factor: float) -> float:
    if not 0 < factor < 1e6:
        raise BadInput(f"{text!r}: a speed is a factor greater than 0", "Twice as fast as now: speed SITE=2")
    return factor
