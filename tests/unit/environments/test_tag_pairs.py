"""What is read of tags, and of the script of a text, at its bounds."""

import pytest

from verl_hier.environments.tag_pairs import has_chinese


@pytest.mark.parametrize("sign", ["\u4e00", "\u9fff", "中"])
def test_a_sign_of_the_chinese_block_is_found_anywhere(sign: str) -> None:
    assert has_chinese(sign) and has_chinese(f"look {sign}.") and has_chinese(f"{sign} look")


@pytest.mark.parametrize("text", ["", "look", "\u4dff", "\ua000", "ひらがな", "한글"])
def test_other_scripts_are_not(text: str) -> None:
    assert not has_chinese(text)
