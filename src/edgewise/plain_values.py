"""JSON and YAML of others as plain values, within bounds: nothing is executed, and nothing small becomes large.

A YAML alias stands for what it names, so that ten lines can stand for a billion values: none is accepted.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from edgewise.errors import BadInput


def read_json(text: str, name: str) -> Any:
    """The values of a JSON text; refused by the name of where it stands."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise _too_deep(name) from error
    except ValueError as error:
        raise BadInput(f"{name} is not valid JSON: {error}.") from error


def read_yaml(text: str, name: str) -> Any:
    """The values of a YAML text without aliases; refused by the name of where it stands."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except RecursionError as error:
        raise _too_deep(name) from error
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(f"{name} is not valid YAML: {' '.join(str(error).split())}.") from error


@cache
def _loader() -> Any:
    """yaml's safe loader, imported when it is needed, without aliases."""
    import yaml

    class PlainLoader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                alias = self.peek_event().anchor
                raise yaml.YAMLError(f"the alias *{alias} stands for other values; write them out")
            return super().compose_node(parent, index)

    return PlainLoader


def _too_deep(name: str) -> BadInput:
    return BadInput(f"{name} is nested too deeply. Values are expected by name, or in lists of them.")
