"""Parameters that share an entry in a docstring have types of their own on the site."""

from typing import Any

import griffe


class OwnTypes(griffe.Extension):
    """What mkdocstrings is told by `mkdocs.yml`."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Correct griffe, which gives all of them those of the first."""
        for section in func.docstring.parsed if func.docstring else ():
            if section.kind is griffe.DocstringSectionKind.parameters:
                for told in section.value:
                    if told.name in func.parameters:
                        own = func.parameters[told.name]
                        told.annotation, told.value = own.annotation, own.default
