"""Where the config of a model lies: a file, a folder, or what Hugging Face's tools have cached."""

from __future__ import annotations

import os
import re
from typing import Any

from scheduler.common.text import shown
from scheduler.memory.errors import InvalidShape

CONFIG = "config.json"
_ID = re.compile(r"[\w.-]+/[\w.-]+")
"""Of a model on the Hub: who published it, and its name."""


def config_path(source: str | os.PathLike[str]) -> str:
    """The path of a model's config: the one in that folder, or cached of that model, or `source`.

    Nothing is downloaded. transformers keeps what it loads in the cache that is looked at.

    Raises
    ------
    InvalidShape
        `source` is like the name of a model on the Hub, and its config is not there.
    """
    name = os.fspath(source)
    if os.path.isdir(name):
        return os.path.join(name, CONFIG)
    if os.path.exists(name) or not isinstance(source, str) or name.endswith(".json"):
        return name
    cached = cached_config(name)
    if cached is not None or not _ID.fullmatch(name):
        return cached or name
    missing = f"there is no file or folder {shown(name)}, and the config of a model of this name"
    try:
        import huggingface_hub
    except ImportError as error:
        raise InvalidShape(
            f"{missing} is looked for where transformers caches it, which takes its package "
            "huggingface_hub: pip install transformers, or give the path to its config.json"
        ) from error
    raise InvalidShape(
        f"{missing} is not in Hugging Face's cache, {huggingface_hub.constants.HF_HUB_CACHE}; "
        f"get it with: hf download {name} {CONFIG}"
    )


def as_record(source: Any) -> Any:
    """A config of transformers as the dictionary that its file holds; all else as it is."""
    is_config = hasattr(source, "to_dict") and hasattr(source, "model_type")
    return source.to_dict() if is_config else source


def cached_config(name: str) -> str | None:
    """The path of the config that Hugging Face's cache has of a model of this name, if it has."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(name, CONFIG)
    except HFValidationError:
        return None
    # What is known not to exist is a marker.
    return found if isinstance(found, str) else None
