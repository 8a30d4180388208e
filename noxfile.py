"""The checks, each by its name: `nox -s lint types layers tests`, `nox -l` for all."""

from __future__ import annotations

import os
import shutil

import nox
from nox.virtualenv import PassthroughEnv

TORCH = "torch==2.13.0"
TESTS = "pytest -n auto --dist worksteal"  # as README.md and CONTRIBUTING.md say

nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "layers", "docs", "tests"]


def install(session: nox.Session, *packages: str) -> None:
    """Install packages, unless nox runs in an environment made for it (`--no-venv`)."""
    if not isinstance(session.virtualenv, PassthroughEnv):
        session.install(*packages)


def install_all(session: nox.Session) -> None:
    """Install what the whole suite needs."""
    # This exact torch first: any other request may pull several GB of CUDA.
    install(session, TORCH)
    install(session, "-e", ".[test]")


@nox.session
def lint(session: nox.Session) -> None:
    """The rules and the form of the code, the spelling, and pyproject.toml."""
    install(session, "ruff>=0.9", "codespell>=2.3", "validate-pyproject>=0.23")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("codespell")
    session.run("validate-pyproject", "pyproject.toml")


@nox.session
def types(session: nox.Session) -> None:
    """All types, the tests' too."""
    install_all(session)
    session.run("mypy")


@nox.session
def layers(session: nox.Session) -> None:
    """What may import what."""
    install(session, "import-linter>=2.1")
    session.run("lint-imports", "--no-cache", "--no-logo")


@nox.session
def docs(session: nox.Session) -> None:
    """The site, into build/site: every link leads somewhere, every name exists."""
    install(session, "mkdocs>=1.6,<2", "mkdocs-material>=9.6", "mkdocstrings-python>=2.0")
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def tests(session: nox.Session) -> None:
    """All tests but those in a browser."""
    install_all(session)
    session.run(*TESTS.split(), *session.posargs)


@nox.session(name="tests-torch")
def tests_torch(session: nox.Session) -> None:
    """The tests of the torch adapter alone."""
    install_all(session)
    session.run(*TESTS.split(), "tests/pytorch", *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """Reports in a real browser: Chromium, or what CHROMIUM names."""
    if shutil.which(os.environ.get("CHROMIUM", "chromium")) is None:
        session.skip("there is no Chromium: apt-get install chromium, or set CHROMIUM")
    install_all(session)
    session.run("pytest", "-m", "browser", "tests/report/test_browser.py", *session.posargs)
