"""What the API takes, with limits: read and refused by pydantic before anything is computed."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgewise.explorer import networks
from edgewise.explorer.networks import DEEPEST, LARGEST_CONFIG, LONGEST
from edgewise.explorer.share_map import CHOICES, LARGEST_GRID
from edgewise.nouns.architecture import Architecture

Value = Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)]
Knob = Literal[CHOICES]  # type: ignore[valid-type]


class Request(BaseModel):
    """Unknown fields are refused, so that a misspelled one is noticed."""

    model_config = ConfigDict(extra="forbid")


class Source(Request):
    """A preset by name, or a config as the text of its file."""

    preset: Annotated[str, Field(max_length=100)] | None = None
    config: Annotated[str, Field(max_length=LARGEST_CONFIG)] | None = None
    name: Annotated[str, Field(max_length=200)] = "config.json"
    depth: Annotated[int, Field(ge=1, le=DEEPEST)] | None = None
    tokens: Annotated[int, Field(ge=2, le=LONGEST)] | None = None


class Axis(Request):
    """A knob from low to high."""

    knob: Knob
    low: Value
    high: Value


class AxesRequest(Request):
    """A network and two of its knobs."""

    source: Source
    x: Axis
    y: Axis
    readout: Literal["token", "pooled"] = "token"

    @property
    def axes(self) -> dict[str, tuple[float, float]]:
        return {axis.knob: (axis.low, axis.high) for axis in (self.x, self.y)}


class MapRequest(AxesRequest):
    """How many points each axis has."""

    points: Annotated[int, Field(ge=2, le=LARGEST_GRID)] = LARGEST_GRID


class PointRequest(Request):
    """Where the dot is."""

    source: Source
    knobs: Annotated[dict[Knob, Value], Field(max_length=len(CHOICES))] = {}
    readout: Literal["token", "pooled"] = "token"
    fixes: bool = False


def read(source: Source) -> Architecture:
    return networks.network(source.preset, source.config, source.name, source.depth, source.tokens)


def moved(wanted: PointRequest) -> Architecture:
    return networks.changed(read(wanted.source), dict(wanted.knobs))
