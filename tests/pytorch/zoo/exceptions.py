"""Models whose configuration cannot be made tiny by the names of its fields alone."""

from __future__ import annotations

from typing import Any

CONFIGS: dict[str, dict[str, Any]] = {}
"""Fields of a type's configuration, nested ones as ``vision_config.hidden_size``."""
