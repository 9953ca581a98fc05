"""Every estimator has a page with a worked example, and its claims are those of the spec."""

from pathlib import Path

import pytest

from verl_hier.host.describe import needs_of, options_of, page_of
from verl_hier.testing import builtin_estimators

SPECS = builtin_estimators()
PAGES = sorted((Path(__file__).parents[3] / "docs" / "methods").glob("*.md"))


@pytest.mark.parametrize("name", SPECS)
def test_page_agrees_with_the_spec(name):
    spec = SPECS[name]
    page = page_of(spec)
    assert page is not None, f"{spec.doc} does not exist"
    text = page.read_text(encoding="utf-8").partition(f"<!-- generated: estimator {name} -->")[2]
    text = text.partition("<!-- end -->")[0]
    assert f"hier.estimator.name: {name}" in text
    assert f"| {needs_of(spec)} |" in text
    assert spec.source in text
    assert f"| {spec.confidence} |" in text
    for option in options_of(spec.options):
        assert option.text, f"{name}.{option.name} has no docstring"
        line = next((line for line in text.splitlines() if line.startswith(f"| `{option.name}` |")), "")
        assert f"`{option.default}`" in line, f"{name}.{option.name} is not as documented"
        assert option.text.replace("|", "\\|") in text


def test_every_estimator_has_a_worked_example():
    for name, spec in SPECS.items():
        if not spec.native:
            text = page_of(spec).read_text(encoding="utf-8")
            called = (f'{function}("{name.removesuffix("_token")}"' for function in ("credit_of", "full_credit"))
            assert (
                any(example in text for example in called) or f"from verl_hier_plugins.estimators.{name} import" in text
            )


def test_there_are_thirty_and_the_index_lists_them_all():
    index = next(page for page in PAGES if page.stem == "README").read_text(encoding="utf-8")
    assert len(SPECS) >= 30
    for name, spec in SPECS.items():
        assert spec.source and spec.summary and spec.confidence in "ABC"
        assert f"[`{name}`]" in index
