"""The command `receipts`, which writes the receipts and handoffs of a run again from its log. It changes only those files."""

from __future__ import annotations

import msgspec

from holdfast.cli import options, screen, stores
from holdfast.cli.app import CHECK, command
from holdfast.cli.suggestions import line
from holdfast.documents.scribe import Rebuilt, rebuild
from holdfast.errors import SettingError
from holdfast.reading import history
from holdfast.reading.reader import Reader
from holdfast.runtime import settings

_SHOWN_MAX = 20


@command(CHECK)
def receipts(
    run_id: options.RunId,
    run_base: options.RunBase = None,
    store: options.Store = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Write the receipts and handoffs of a run again from its log.

    Every file is compared byte for byte with the log; files that are missing, damaged or different are written again.
    """
    folder = settings.resolve({"run_base": run_base}).run_base
    if not folder:
        raise SettingError(
            "no folder for receipts is set. Name it with --run-base or HOLDFAST_RUN_BASE, or as [tool.holdfast] run_base in "
            "pyproject.toml."
        )

    def use(reader: Reader) -> tuple[Rebuilt, str]:
        opened = reader.store
        rest = history.beginning(opened, opened.run(run_id)) if opened.upkeep.trimmed(run_id).base else ""
        try:
            return rebuild(folder, opened, run_id), rest
        except OSError as fault:
            raise SettingError(
                f"the receipts of run {run_id!r} cannot be written to {fault.filename or folder}: {fault.strerror}. "
                "Free some space, or choose another folder with --run-base. Nothing is lost: the log has the same facts."
            ) from fault

    found, rest = stores.read(store, use)
    if as_json:
        screen.say_json(msgspec.to_builtins(found))
        return
    if rest:
        screen.say((f"{rest} Receipts of those events are left unchanged.", "dim"), err=True)
    _say(found, store)


def _say(found: Rebuilt, store: str | None) -> None:
    faults = [
        *((name, "was missing") for name in found.missing),
        *((name, "was damaged") for name in found.torn),
        *((name, "was different") for name in found.different),
    ]
    told = f"{screen.count(found.files, 'file')} in {found.folder}"
    if not faults:
        screen.say(("✓ ", "green"), f"{told}: all match the log")
        return
    for name, fault in faults[:_SHOWN_MAX]:
        screen.say((f"  {fault.ljust(13)}  ", "yellow"), name)
    if len(faults) > _SHOWN_MAX:
        more = line("receipts", found.run_id, store=store)
        screen.say((f"  … and {len(faults) - _SHOWN_MAX} more; to list all: {more} --json", "dim"))
    screen.say(("✓ ", "green"), f"{told}: {len(faults)} written again from the log")
