"""Every bound that the annotation of an option declares is held by a recipe, in a sentence that names its line."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from verl_hier.errors import RecipeError
from verl_hier.host.constraints import Range
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.host.specs import KINDS, Spec

HOST = PluginHost.load({"builtin": True})


def bounds(options: type) -> Iterator[tuple[str, type, Range]]:
    """Name, plain type and range of each option that has a range."""
    for name, hint in typing.get_type_hints(options, include_extras=True).items():
        for each in (hint, *typing.get_args(hint)):
            if typing.get_origin(each) is Annotated:
                plain, *constraints = typing.get_args(each)
                yield from ((name, plain, found) for found in constraints if isinstance(found, Range))


def outside(kind: type, found: Range) -> Iterator[float]:
    """Numbers just beyond each end."""
    step = 1 if kind is int else 1e-3
    if math.isfinite(found.low):
        yield kind(found.low) if found.open else kind(found.low - step)
    if math.isfinite(found.high):
        yield kind(found.high + step)


def needed(options: type) -> dict[str, Any]:
    """A value for each option without a default."""
    hints = typing.get_type_hints(options)
    return {
        field.name: {str: "a:b", int: 1, float: 1.0}.get(hints[field.name], [])
        for field in dataclasses.fields(options)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }


SPECS: list[Spec] = [spec for kind in KINDS for spec in HOST.specs(kind).values() if any(bounds(spec.options))]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_a_number_outside_of_its_range_is_refused_by_name(spec: Spec) -> None:
    for name, kind, found in bounds(spec.options):
        for number in outside(kind, found):
            with pytest.raises(RecipeError, match=rf"^hier\.{spec.kind}\.{name}: must be {found}, got"):
                build_options(spec, {**needed(spec.options), name: number})


def test_most_parts_have_a_bound() -> None:
    assert len(SPECS) > 60
