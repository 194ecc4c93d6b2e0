"""Settings that say where and how fast a run is computed."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from ..core.settings import Count, setting


class Execution(BaseModel):
    """Where a run is computed and how fast; no setting here changes what is computed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    executor: str = setting(
        "inplace",
        "How clients are executed: inplace (one process), pool (worker processes), auto (the "
        "quicker of these), vmap (small heads, stacked) or debug.",
        affects="nothing",
    )
    workers: Count = setting(2, "The number of processes in the pool.", affects="nothing")
    device: str = setting(
        "cpu",
        "Where networks compute: cpu, cuda, cuda:1, cuda:0,1 (several for a pool), mps, xpu, or "
        "auto for an accelerator if there is one; results differ in their last digits.",
        affects="nothing",
    )
    data_root: str | None = setting(
        None,
        "The folder with the known data sets; without it, FEDLOOM_DATA names it.",
        affects="nothing",
    )
