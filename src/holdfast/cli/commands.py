"""All commands, in the order in which `holdfast --help` lists them."""

from __future__ import annotations

from holdfast.cli import demo, execution, listing, log, questions, receipts, requests
from holdfast.cli.app import app

__all__ = ["app", "demo", "execution", "listing", "log", "questions", "receipts", "requests"]
