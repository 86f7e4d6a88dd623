"""`python -m holdfast.cli` is `holdfast`, for where the command is not on the path."""

from __future__ import annotations

from holdfast.cli import main

main()
