"""The cache of worlds: made once, least recently used dropped first, limited by worlds and by states."""

from verl_hier.environments.world_cache import WorldCache


def test_worlds_are_made_once_and_the_oldest_go_first():
    made = []

    def world(key):
        return cache.get(key, lambda: made.append(key) or [key])

    cache = WorldCache(2, 100, len)
    first = world("a")
    world("b")
    assert world("a") is first and made == ["a", "b"]
    world("c")
    world("a")
    assert made == ["a", "b", "c"], "b was used longest ago"
    world("b")
    assert made == ["a", "b", "c", "b"]


def test_states_are_bounded_but_the_last_world_stays():
    cache, made = WorldCache(10, 5, len), []

    def world(key, states):
        return cache.get(key, lambda: made.append(key) or [0] * states)

    world("a", 3)
    growing = world("b", 1)
    world("a", 3)
    growing += [0] * 4
    world("b", 1)
    world("a", 3)
    assert made == ["a", "b", "a"], "b had grown, so a was dropped; then b went for a"
    world("huge", 50)
    assert world("huge", 50) == [0] * 50 and made[-1] == "huge" and made.count("huge") == 1


def test_as_many_states_as_are_allowed_are_kept():
    cache, made = WorldCache(10, 5, len), []
    for key in ("a", "b", "a"):
        cache.get(key, lambda key=key: made.append(key) or [0] * (3 if key == "a" else 2))
    assert made == ["a", "b"]
