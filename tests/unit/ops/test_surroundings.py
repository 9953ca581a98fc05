"""What a run finds around it is looked at before anything starts."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.distributions import model_folder
from verl_hier.errors import HierError, PluginError, RecipeError
from verl_hier.installed import points_of
from verl_hier.ops.surroundings import LONGEST_SOCKET, require_sockets, require_surroundings, require_writable
from verl_hier.ops.training import plan_run
from verl_hier.recipe.compose import compose
from verl_hier.recipe.overrides import hydra_value, require_grammar


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("file/below", "is no folder"),
        ("nowhere/below", "is a link that leads nowhere"),
        ("n" * 256, "is longer than 255"),
        ("/proc/of/mine", "cannot be written to"),
        ("/sys/kernel", "cannot be written to"),
    ],
)
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, place: str, why: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    with pytest.raises(HierError, match=rf"trainer.default_local_dir: .*{why}"):
        require_writable(tmp_path / place, "trainer.default_local_dir")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write_is_named(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o555)
    with pytest.raises(HierError, match=r"hier\.store\.path: .*shut cannot be written to: Permission denied"):
        require_writable(tmp_path / "shut" / "graphs", "hier.store.path")


@pytest.mark.parametrize("line", ["trainer.default_local_dir", "hier.store.path"])
def test_train_looks_at_its_folders_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    model = model_folder(tmp_path / "model")
    (tmp_path / "file").touch()
    with pytest.raises(HierError, match=f"{line}: .* is no folder"):
        plan_run("quickstart", [f"actor_rollout_ref.model.path={model}", f"{line}={tmp_path}/file/x"])
    (tmp_path / "runs").touch()
    with pytest.raises(HierError, match=r"the folder of the run: .* is no folder"):
        plan_run("quickstart", [f"actor_rollout_ref.model.path={model}"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model", "runs"], "nothing is left there"


def test_a_temporary_folder_is_refused_exactly_where_rays_sockets_do_not_fit(tmp_path: Path) -> None:
    digits = len(Path("/proc/sys/kernel/pid_max").read_text().strip())
    for length in range(20, 100):
        folder = "/tmp/" + "x" * (length - len("/tmp/"))
        path = f"{folder}/ray/session_2026-11-26_03-02-38_123456_{'9' * digits}/sockets/plasma_store"
        fits = len(path.encode()) <= LONGEST_SOCKET
        try:
            require_sockets(("TMPDIR", f"{folder}/ray"))
            assert fits, length
        except HierError as error:
            assert not fits and str(error).startswith("TMPDIR: the sockets that Ray makes"), length


def test_the_system_takes_as_many_bytes_as_we_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for length, fits in ((LONGEST_SOCKET, True), (LONGEST_SOCKET + 1, False)):
        with socket.socket(socket.AF_UNIX) as probe:
            if fits:
                probe.bind("é" + "x" * (length - 2))
            else:
                with pytest.raises(OSError, match="too long"):
                    probe.bind("é" + "x" * (length - 2))


def test_rays_own_names_of_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose("quickstart")
    long = "/tmp/" + "ü" * 40
    for name in ("TMPDIR", "RAY_TMPDIR"):
        monkeypatch.setenv(name, long)
        with pytest.raises(HierError, match=f"^{name}: the sockets that Ray makes"):
            require_surroundings(config, Path("runs"))
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    require_surroundings(config, Path("runs"))


BROKEN = [b"[verl.plugins]\nno equals sign\n", b"[console_scripts]\n= = =\nx\n", b"\xff\xfe[x]\na = b\n"]


@pytest.fixture
def entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an installed package that has nothing to do with verl."""
    folder = tmp_path / "harmless-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: harmless\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder / "entry_points.txt"


@pytest.mark.parametrize("content", BROKEN)
def test_malformed_entry_points_of_any_package_name_it(entry_points: Path, content: bytes) -> None:
    entry_points.write_bytes(content)
    with pytest.raises(Exception):
        importlib.metadata.entry_points(group="verl.plugins")
    for group in ("verl.plugins", "verl_hier.plugins"):
        with pytest.raises(PluginError, match=r"the installed package harmless has a malformed .*/entry_points\.txt"):
            points_of(group)


@settings(max_examples=200, deadline=None)
@given(value=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0$'\""), min_size=1))
def test_an_override_is_read_or_shown_quoted(value: str) -> None:
    """What is shown, typed into a shell, gives the text that was meant."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    override = f"trainer.experiment_name={value}"
    try:
        require_grammar([override])
    except RecipeError as error:
        assert repr(override) in str(error)
        shown = str(error).rpartition(" for a list, or ")[2] if "several values" in str(error) else str(error)
        shown = shown.rpartition("write its text as ")[2].removesuffix(".").removesuffix(" for a text with a comma")
        (word,) = shlex.split(shown)
        assert OverridesParser.create().parse_override(word).value() == value


@pytest.mark.parametrize("value", ["a=b", "a#b", "данные.parquet", "配方", "🌲", "it's", "a,b", "[x", "a;b", "a&b"])
def test_check_names_the_override(value: str) -> None:
    with pytest.raises(RecipeError, match=r"the override ['\"]trainer\.experiment_name="):
        compose("quickstart", ["hier.seed=1", f"trainer.experiment_name={value}"])
    assert compose("quickstart", [f"trainer.experiment_name={hydra_value(value)}"]).trainer.experiment_name == value
