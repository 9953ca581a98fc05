"""What Hydra says of a recipe, as one sentence that a user can act on."""

from __future__ import annotations

import pytest

from verl_hier.errors import RecipeError
from verl_hier.recipe.compose import compose
from verl_hier.recipe.hydra_words import sentence


@pytest.mark.parametrize(
    ("said", "cause", "wanted"),
    [
        ("a value is wrong", None, "a value is wrong."),
        ("Is it?\n\n  and why!\n  a third line", None, "Is it? and why!"),
        (
            "full_key: a.b\nobject_type=None\nwrong\nreference_type=Any\nConfig search path:\n  here",
            None,
            "wrong. here.",
        ),
        ("", None, "ValueError."),
        ("", "the reason\nin two lines", "the reason."),
        ("the reason", "the reason", "the reason."),
    ],
)
def test_lines_that_say_nothing_to_a_user_are_left_out(said: str, cause: str | None, wanted: str) -> None:
    error = ValueError(said)
    error.__cause__ = None if cause is None else ValueError(cause)
    assert sentence(error) == wanted


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "trainer.total_trainin_steps=1",
            "trainer has no key 'total_trainin_steps' (did you mean 'total_training_steps'?)",
        ),
        ("trainr.total_training_steps=1", "the config has no key 'trainr' (did you mean 'trainer'?)"),
    ],
)
def test_an_override_of_an_unknown_key_names_the_nearest(override: str, words: str) -> None:
    with pytest.raises(RecipeError) as refused:
        compose("quickstart", [override])
    assert words in str(refused.value) and "put + before the override" in str(refused.value)
