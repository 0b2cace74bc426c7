"""What people may ask ``whatif``, and what they are told when they cannot."""

from __future__ import annotations

import pytest

from pilotfish.cli.predictions.whatif_command import read_variation
from pilotfish.errors import BadInput

SITES = ["cluster", "far"]


def test_every_form_is_understood() -> None:
    assert read_variation("+50 pilots cluster", SITES).more == (("cluster", 50),)
    assert read_variation("-2 cores", SITES).more == (("local", -2),)
    assert read_variation("+site far", SITES).with_sites == ("far",)
    assert read_variation("-site far", SITES).without_sites == ("far",)
    assert read_variation("policy=xsufferage", SITES).policy == "xsufferage"
    assert read_variation("cores = 8", SITES).cores == 8.0
    assert read_variation("speed far=0.5", SITES).speeds == {"far": 0.5}


def test_several_things_at_once_are_separated_by_commas() -> None:
    both = read_variation("+5 pilots far, policy=near", SITES)
    assert (both.more, both.policy, both.text) == ((("far", 5),), "near", "+5 pilots far, policy=near")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("+5 pilots clusterr", "Did you mean 'cluster'?"),
        ("policy=sufferag", "Did you mean 'sufferage'?"),
        ("+5 pilts far", 'Did you mean the form "+50 pilots SITE"?'),
        ("polcy=near", 'Did you mean the form "policy=near"?'),
        ("cores", 'Did you mean the form "cores=8"?'),
        ("more", "+50 pilots SITE"),
        ("speed far=0", "speed SITE=2"),
        ("2 more workers", "+50 pilots SITE"),
        ("workers=5", "+50 pilots SITE"),
        ("what", "+50 pilots SITE"),
        ("", "+50 pilots SITE"),
    ],
)
def test_what_cannot_be_asked_is_answered_with_the_nearest_that_can(text: str, hint: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_variation(text, SITES)
    assert hint in refused.value.hint
