"""I9: photon's answers are stock vLLM's answers, token by token, mode by mode.

Each engine starts once in each of its forms and runs all of its workloads. I5 is checked by the
processors of ``processors`` and ``entry-point``, I8 by the blocks counted after every workload.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.identity import models
from tests.identity.compare import differences, missing
from tests.identity.engines import SETUPS, run
from tests.identity.scenarios import SCENARIOS
from tests.identity.workload import Result

CASES = [
    (name, form, number)
    for name, setup in SETUPS.items()
    for form in setup.forms[1:]
    for number in range(len(SCENARIOS[name]))
]


@cache
def outcome(name: str, form: str) -> list[Result] | str:
    """The results of all workloads, or how the engine failed."""
    setup = SETUPS[name]
    model, loras = models.MODELS[setup.model](), models.text_loras(setup.loras)
    try:
        return run(setup, form, SCENARIOS[name], model, loras)
    except RuntimeError as error:
        return str(error)


def result(name: str, form: str, number: int) -> Result:
    found = outcome(name, form)
    if isinstance(found, str):
        pytest.fail(found, pytrace=False)
    return found[number]


@pytest.mark.parametrize(
    ("name", "form", "number"),
    CASES,
    ids=[f"{name}-{form}-{SCENARIOS[name][number].name}" for name, form, number in CASES],
)
def test_i9_same_answers_as_stock(name: str, form: str, number: int) -> None:
    workload = SCENARIOS[name][number]
    reference = result(name, SETUPS[name].forms[0], number)
    photon = result(name, form, number)
    assert differences(workload, reference, photon) == []
    assert missing(workload, [photon]) == []
