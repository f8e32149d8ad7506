"""Workers that break on request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm_photon.worker import PhotonWorker


class FaultyWorker(PhotonWorker):
    """Breaks where a request says in ``vllm_xargs``, key ``fault``.

    ``launch`` raises in the forward, ``finalize`` in sampling; ``commit`` returns an output without
    its rows, on which the scheduler raises.
    """

    fault: str | None = None

    def execute_model(self, scheduler_output: Any) -> Any:
        for request in scheduler_output.scheduled_new_reqs:
            self.fault = (request.sampling_params.extra_args or {}).get("fault", self.fault)
        if self.fault == "launch":
            raise RuntimeError("the forward broke, as asked")
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        if self.fault == "finalize":
            raise RuntimeError("sampling broke, as asked")
        output = super().sample_tokens(grammar_output)
        return replace(output, req_id_to_index={}) if self.fault == "commit" else output
