import warm_up as plugin
from verl_hier.testing import check_schedule


def test_kit() -> None:
    check_schedule(plugin.SCHEDULE)


def test_all_levels_learn_after_the_warm_up() -> None:
    schedule = plugin.WarmUp(plugin.Options(steps=2, level=1))
    assert [schedule.phase(step).levels for step in (1, 2, 3)] == [{1}, {1}, None]
