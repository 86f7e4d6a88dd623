"""Makes `python -m holdfast` the same as `holdfast`, for shells that do not find the command."""

from __future__ import annotations

from holdfast.cli import main

main()
