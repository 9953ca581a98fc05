"""Hostile requests to the gateway, some hundreds; `scripts/fuzz.py gateway` sends ten thousand."""

from tests.fixtures.hostile_gateway import attacked


def test_hostile_requests_break_nothing_and_hold_no_event_loop():
    tally = attacked(300, 7)
    assert not tally.problems
    assert sum(tally.statuses.values()) == 300 and {0, 200, 400} <= {*tally.statuses}
