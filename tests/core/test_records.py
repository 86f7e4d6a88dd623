"""A verb is one record: everything that callers see of its options follows from it."""

# Annotations are read: no `from __future__ import annotations`.

import inspect
from typing import Annotated, Any, TypedDict, get_args, get_type_hints

import msgspec
import pytest

import holdfast as hf
from holdfast.cli import execution, options, questions, worker
from holdfast.cli import requests as asking
from holdfast.core import requests
from holdfast.core.run_state import OPEN
from holdfast.core.verb_options import Option, foreseen_options, options_of, read_options
from holdfast.reading import inbox
from holdfast.runtime.verb_signatures import takes
from holdfast.server.verb_inputs import body_of
from holdfast.testing import handled_requests, simulator_requests
from holdfast.upkeep import mass_requests

LOCAL = {"execute", "id", "validate", "wait"}
"""Options that are not in a request: they say how it is made, or cannot be stored."""
VERBS = [
    verb for verb, record in (requests.RECORDS | requests.MAKING).items() if record.traits.role is not None
]


@pytest.mark.parametrize("verb", VERBS)
def test_a_record_and_its_typed_dicts_have_the_same_options(verb: str) -> None:
    written = inspect.signature(getattr(hf, verb)).parameters.values()
    by_position = {one.name for one in written if one.kind is one.POSITIONAL_OR_KEYWORD}
    own = set(options_of((requests.RECORDS | requests.MAKING)[verb])) - by_position
    here, there = (
        set(getattr(requests, f"{verb.capitalize()}{place}").__annotations__) for place in ("Here", "There")
    )
    assert here - LOCAL == own
    assert there - LOCAL == own - {"trace_parent"}


@pytest.mark.parametrize("verb", VERBS)
def test_the_types_of_a_typed_dict_take_what_the_record_takes(verb: str) -> None:
    hints = get_type_hints(getattr(requests, f"{verb.capitalize()}Here"))
    for name, given in options_of((requests.RECORDS | requests.MAKING)[verb]).items():
        if name in hints and given.type in (
            bool,
            int,
            str,
            str | None,
            requests.OnChange,
            requests.Schedule | None,
        ):
            assert hints[name] == given.type, name


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


def test_an_option_that_is_added_to_a_record_is_in_the_stored_form_the_body_and_the_command() -> None:
    body = body_of(Longer)
    assert msgspec.json.schema(body)["$defs"]["LongerInput"]["properties"]["added"] == {
        "type": "integer",
        "default": 3,
        "description": "It says what the option is.",
    }
    assert inbox.stored_form(Longer(added=4)).body["added"] == 4

    @options.of(Longer)
    def resume(run: str, *, said: options.Said) -> int:
        assert said["added"] == 4
        return 0

    added = inspect.signature(resume).parameters["added"]
    (flag,) = [one for one in added.annotation.__metadata__ if hasattr(one, "param_decls")]
    assert (flag.default, flag.metavar, flag.help) == ("--added", "N", "It says what the option is.")
    others = {name: None for name in inspect.signature(resume).parameters if name not in ("run", "added")}
    assert resume(run="r", added=4, **others) == 0


COMMANDS = {
    verb: next(getattr(room, verb) for room in (execution, questions, asking, worker) if hasattr(room, verb))
    for verb in VERBS
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_command_of_a_verb_takes_the_options_that_its_record_gets(verb: str) -> None:
    written = inspect.signature(inspect.unwrap(COMMANDS[verb]), eval_str=True)
    assert options.Said in [parameter.annotation for parameter in written.parameters.values()]


@pytest.mark.parametrize(
    "rename", ["ab", 5, [("a",)], ["x"]], ids=["text", "number", "pairs of one", "a list of names"]
)
def test_a_rename_that_is_no_mapping_is_refused(rename: Any) -> None:
    with pytest.raises(hf.SettingError, match=r"rename=.* is not valid"):
        read_options(requests.Resume, {"rename": rename})


def test_a_rename_may_be_none_or_pairs() -> None:
    assert read_options(requests.Resume, {"rename": None}) == {"rename": {}}
    assert read_options(requests.Resume, {"rename": [("a", "b")]}) == {"rename": {"a": "b"}}


def test_an_option_whose_default_is_not_none_keeps_none_so_that_it_is_refused() -> None:
    assert read_options(requests.Fork, {"repeat": None}) == {"repeat": None}


class Later(requests.Skip, frozen=True, kw_only=True):
    """A skip with an option that was added later."""

    left_out = ("expects", "quiet")
    quiet: Annotated[bool, Option("It says what the option is.")] = False


def test_a_request_is_stored_as_before_if_an_option_that_was_added_later_has_its_default() -> None:
    before = inbox.stored_form(requests.Skip(node="a"))
    assert inbox.stored_form(Later(node="a")) == before
    assert inbox.stored_form(Later(node="a", quiet=True)).body == {**before.body, "quiet": True}


def test_the_verbs_that_may_be_asked_of_many_runs_are_those_whose_records_say_so() -> None:
    assert set(get_args(mass_requests.BatchVerb)) == set(mass_requests.DONE)


@pytest.mark.parametrize("verb", requests.RECORDS)
def test_no_verb_that_is_asked_of_a_run_is_accepted_by_one_that_is_over(verb: str) -> None:
    traits = requests.RECORDS[verb].traits
    assert traits.of_many <= traits.accepts <= OPEN


def test_the_checker_and_the_simulator_know_every_verb() -> None:
    assert set(handled_requests._SHOWN_BY) == set(requests.RECORDS)
    assert set(simulator_requests._SHOWN_BY) == set(VERBS) - set(requests.MAKING)


def test_a_run_may_be_given_as_run_id() -> None:
    class Nothing(TypedDict, total=False): ...

    @takes(requests.Pause, Nothing)
    def pause(run: str, reason: str | None = None, **options: Any) -> Any:
        return run, reason

    assert pause(run_id="r", reason="so") == pause("r", "so") == ("r", "so")  # type: ignore[call-arg]


def test_an_option_that_does_not_exist_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(hf.SettingError, match=r"'restrat_at'.*did you mean 'restart_at'"):
        hf.resume("r", store="memory.db", restrat_at="a")  # type: ignore[call-arg]


@pytest.mark.parametrize("verb", [*VERBS, "run"])
def test_every_option_of_a_public_function_has_a_sentence(verb: str) -> None:
    for place in (hf, hf.Engine, hf.Connection, hf.Client, hf.BlockingClient):
        function = getattr(place, verb)
        doc = function.__doc__ or ""
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY and name != "plan":
                assert f"\n    {name}: " in doc, name


@pytest.mark.parametrize("verb", ["resume", "retry", "skip", "cancel", "pause", "edit", "answer", "signal"])
def test_the_first_parameter_is_the_run_and_run_id_is_understood(verb: str) -> None:
    for place in (hf, hf.Engine, hf.Client):
        names = [name for name in inspect.signature(getattr(place, verb)).parameters if name != "self"]
        assert names[0] == "run"
