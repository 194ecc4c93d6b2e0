"""The settings of simulated time: how quick devices are, and how the server waits for them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..core.settings import Count, NotNegative, Positive, Ratio, setting


class Clock(BaseModel):
    """A clock that runs beside a simulation. Without `step_seconds` or `trace` there is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step_seconds: NotNegative | None = setting(
        None, "The seconds that a training step takes on a device of middling speed."
    )
    speed_spread: NotNegative = setting(
        0.0,
        "How unlike devices are: the deviation of the logarithm of a step's seconds, which is "
        "normally distributed over clients; 0: all alike.",
    )
    download_mbps: Positive | None = setting(
        None, "Megabits per second that a middling line receives; without it, no time passes."
    )
    upload_mbps: Positive | None = setting(
        None, "Megabits per second that a middling line sends; without it, no time passes."
    )
    line_spread: NotNegative = setting(
        0.0, "How unlike lines are: the deviation of the logarithm of their speed over clients."
    )
    trace: str | None = setting(
        None,
        "A CSV file of measured devices, in place of drawn ones; its columns are explained in "
        "docs/clock.md.",
    )
    day: Positive = setting(86400.0, "Seconds after which clients are awake again.")
    awake: Ratio = setting(
        1.0,
        "The share of a day in which a client can be asked; who falls asleep at work is lost.",
    )
    deadline: Positive | None = setting(
        None, "Seconds after which a round ends, whoever is still at work."
    )
    extra: Annotated[float, Field(ge=0, allow_inf_nan=False)] = setting(
        0.0,
        "Clients that are asked beyond those that count, as a share of these: a round ends when "
        "as many as count have answered.",
    )
    mode: Literal["sync", "async"] = setting(
        "sync",
        "Whether the server waits for a round's clients, or takes each update as it comes and "
        "moves when `buffer` of them are there.",
    )
    buffer: Count | None = setting(
        None,
        "The number of updates for which an asynchronous server waits; by default a tenth "
        "of the clients at work, at least one.",
        symbol="K",
    )
    staleness: NotNegative = setting(
        0.5,
        "How little an update counts that started s moves of the server ago: (1 + s) to the power "
        "of minus this.",
    )

    @property
    def runs(self) -> bool:
        """Whether there is a clock."""
        return self.step_seconds is not None or self.trace is not None

    @model_validator(mode="after")
    def _of_use(self) -> Clock:
        """Refuse settings that nothing would come of."""
        set_here = [name for name, value in self if value != type(self).model_fields[name].default]
        if set_here and not self.runs:
            raise ValueError(
                f"{set_here[0]} needs to know how quick devices are: give step_seconds or trace"
            )
        drawn = ("step_seconds", "speed_spread", "download_mbps", "upload_mbps", "line_spread")
        unused = [name for name in drawn if name in set_here]
        if self.trace and unused:
            raise ValueError(
                f"{unused[0]} is of no use beside trace, which says it for each device"
            )
        waiting = [name for name in ("deadline", "extra") if name in set_here]
        if self.mode == "async" and waiting:
            raise ValueError(f"{waiting[0]} is for rounds that the server waits for (mode=sync)")
        arriving = [name for name in ("buffer", "staleness") if name in set_here]
        if self.mode == "sync" and arriving:
            raise ValueError(f"{arriving[0]} is for mode=async")
        return self
