from __future__ import annotations
from typing import Any
def diffusers_entries() -> list[Any]:
    return []
def timm_entries() -> list[Any]:
    return []
