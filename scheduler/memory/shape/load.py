"""The shape of a model, from what people have: a name, a config, a file of one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from typing import Any

from scheduler.common.files import read_text
from scheduler.common.jsontext import parse_json
from scheduler.common.text import did_you_mean, shown
from scheduler.memory.errors import InvalidShape
from scheduler.memory.shape.families.table import shape_fields
from scheduler.memory.shape.locate import as_record, config_path
from scheduler.memory.shape.shape import Shape


def shape_names() -> list[str]:
    """Names of the shapes that come with the package."""
    files = (resources.files("scheduler.memory.shape") / "configs").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def load_shape(source: Shape | Mapping[str, object] | str | os.PathLike[str] | Any) -> Shape:
    """The shape of a model.

    Parameters
    ----------
    source
        A name that `shape_names` lists; a path to the ``config.json`` of a transformers model, or
        to its directory; a model's name on the Hub, such as ``"Qwen/Qwen3-8B"``, of which
        transformers has cached the config (nothing is downloaded); a config of transformers, or the
        dictionary in such a file; or a shape, returned as it is. Fields of a config that no size
        depends on are ignored: real files carry dozens of them.

    Raises
    ------
    InvalidShape
        No shape has this name; or the config lacks a field, has a field or a model_type that is not
        known, has quantised weights, or describes more than one decoder.
    """
    if isinstance(source, Shape):
        return source
    if hasattr(source, "named_modules"):
        raise InvalidShape(
            f"got a model ({type(source).__name__}) in the place of its shape: give model.config "
            "where it is of transformers; scheduler.pytorch.profile(model, inputs) measures any"
        )
    source = as_record(source)
    if isinstance(source, Mapping):
        return Shape(**shape_fields(source, _called(source, "config"), "the config"))
    if not isinstance(source, str | os.PathLike):
        raise InvalidShape(
            f"a shape is loaded from a name, a path or a config, got {shown(source)}"
        )
    name = os.fspath(source)
    names = shape_names()
    if isinstance(source, str) and name.lower() in names:
        file = resources.files("scheduler.memory.shape") / "configs" / f"{name.lower()}.json"
        config = parse_json(file.read_text(encoding="utf-8"), f"shape {name!r}", InvalidShape)
        return Shape(**shape_fields(config, name.lower(), f"shape {name!r}"))
    is_path = not isinstance(source, str) or name.endswith(".json") or os.path.exists(name)
    path = config_path(source)
    if not is_path and path == name and os.sep not in name:
        near = did_you_mean(name, names)
        raise InvalidShape(
            f"there is no shape {shown(name)}{near} (the shapes are {', '.join(names)}; a path to "
            "a model's config.json does as well, and the name of one that transformers has loaded, "
            "such as Qwen/Qwen2.5-7B)"
        )
    config = parse_json(read_text(path, "config", InvalidShape), shown(path, 200), InvalidShape)
    return Shape(**shape_fields(config, _named(name), shown(path, 200)))


def _named(source: str) -> str:
    """What a model is called by where its config is from: its name, its file or its folder."""
    if not os.path.exists(source):
        return source
    path = os.path.abspath(source)
    stem, ending = os.path.splitext(os.path.basename(path))
    if ending != ".json":
        return os.path.basename(path)
    return os.path.basename(os.path.dirname(path)) if stem == "config" else stem


def _called(config: Mapping[str, object], otherwise: str) -> str:
    """What a config calls its model."""
    known = (config.get(field) for field in ("_name_or_path", "model_type"))
    return next((name for name in known if isinstance(name, str) and name), otherwise)
