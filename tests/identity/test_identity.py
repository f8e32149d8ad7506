"""I9: photon's answers are stock vLLM's answers, token by token, mode by mode.

Each engine starts once in each of its forms and runs all of its workloads. I5 is checked by the
processors of ``processors`` and ``entry-point``, I8 by the blocks counted after every workload.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import pytest

from tests.identity import models
from tests.identity.compare import differences, missing
from tests.identity.engines import SETUPS, run
from tests.identity.scenarios import SCENARIOS
from tests.identity.workload import Result

CHECK = "test_i9_same_answers_as_stock"
MAKING = Lock()
"""Held while models are made."""

CASES = [
    (name, form, number)
    for name, setup in SETUPS.items()
    for form in setup.forms[1:]
    for number in range(len(SCENARIOS[name]))
]


Outcome = list[Result] | str
"""The results of all workloads of an engine, or how it failed."""


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, str], Future[Outcome]]]:
    """The engines that the selected tests need, begun in their order, two at a time.

    An engine computes with one thread, so two share two cores.
    """
    pool = ThreadPoolExecutor(max_workers=2)
    begun: dict[tuple[str, str], Future[Outcome]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == CHECK:
            name, form = item.callspec.params["name"], item.callspec.params["form"]
            for key in ((name, SETUPS[name].forms[0]), (name, form)):
                if key not in begun:
                    begun[key] = pool.submit(_outcome, *key)
    yield begun
    pool.shutdown(cancel_futures=True)


def _outcome(name: str, form: str) -> Outcome:
    setup = SETUPS[name]
    try:
        with MAKING:
            model, loras = models.MODELS[setup.model](), models.text_loras(setup.loras)
        return run(setup, form, SCENARIOS[name], model, loras)
    except RuntimeError as error:
        return str(error)


def result(outcome: Future[Outcome], number: int) -> Result:
    found = outcome.result()
    if isinstance(found, str):
        pytest.fail(found, pytrace=False)
    return found[number]


@pytest.mark.parametrize(
    ("name", "form", "number"),
    CASES,
    ids=[f"{name}-{form}-{SCENARIOS[name][number].name}" for name, form, number in CASES],
)
def test_i9_same_answers_as_stock(
    outcomes: dict[tuple[str, str], Future[Outcome]], name: str, form: str, number: int
) -> None:
    workload = SCENARIOS[name][number]
    reference = result(outcomes[name, SETUPS[name].forms[0]], number)
    photon = result(outcomes[name, form], number)
    assert differences(workload, reference, photon) == []
    assert missing(workload, [photon]) == []
