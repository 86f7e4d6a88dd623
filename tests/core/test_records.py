"""A verb is one record: everything that callers see of its options follows from it."""

# Annotations are read: no `from __future__ import annotations`.

import inspect
from typing import Annotated, Any, TypedDict, get_type_hints

import msgspec
import pytest

import holdfast as hf
from holdfast.core import requests
from holdfast.core.verb_options import Option, foreseen_options, options_of
from holdfast.runtime.verb_signatures import takes

TYPED: dict[type[msgspec.Struct], tuple[Any, set[str]]] = {
    requests.Resume: (requests.ResumeHere, set()),
}
"""Record -> the options for type checkers, and those that are written out because they may be positional."""


@pytest.mark.parametrize("record", TYPED)
def test_a_record_and_its_typed_dict_have_the_same_options(record: type[msgspec.Struct]) -> None:
    typed, positional = TYPED[record]
    own = {
        name
        for name, hint in get_type_hints(typed, include_extras=True).items()
        if not any(isinstance(one, Option) for one in getattr(hint, "__metadata__", ()))
    }
    assert own | positional == set(options_of(record))
    assert own & positional == set()


class Longer(requests.Resume, frozen=True, kw_only=True):
    """A resume with another option."""

    added: Annotated[int, Option("It says what the option is.", "N")] = 3


class LongerHere(requests.ResumeHere, total=False):
    added: int


def test_an_option_that_is_added_to_a_record_is_in_the_signature_and_the_help_and_the_preview() -> None:
    @takes(Longer, LongerHere)
    def resume(run: str, **options: Any) -> Any:
        """Resume a run."""
        return options

    assert inspect.signature(resume).parameters["added"].default == 3
    assert "added: It says what the option is." in (resume.__doc__ or "")
    assert "added" in foreseen_options(Longer)
    assert resume("r", added=4) == {"added": 4}


def test_a_run_may_be_given_as_run_id() -> None:
    class Nothing(TypedDict, total=False): ...

    @takes(requests.Pause, Nothing)
    def pause(run: str, reason: str | None = None, **options: Any) -> Any:
        return run, reason

    assert pause(run_id="r", reason="so") == pause("r", "so") == ("r", "so")  # type: ignore[call-arg]


def test_an_option_that_does_not_exist_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(hf.SettingError, match=r"'restrat_at'.*did you mean 'restart_at'"):
        hf.resume("r", store="memory.db", restrat_at="a")  # type: ignore[call-arg]


def test_every_option_of_a_public_function_has_a_sentence() -> None:
    for function in (hf.resume, hf.Engine.resume):
        doc = function.__doc__ or ""
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                assert f"\n    {name}: " in doc, name
