"""What is registered of rollout servers agrees with verl's registries and is read without verl."""

import subprocess
import sys

import pytest

from verl_hier.errors import RecipeError
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.servers import loader_of, rollout_server, servers_with
from verl_hier.host.specs import RolloutServerSpec

HOST = PluginHost.load(DEFAULT_ENABLED)
SERVERS = HOST.specs("rollout_server")


def test_a_server_that_is_not_listed_does_what_every_server_of_verl_does():
    assert rollout_server(HOST, "trtllm") == RolloutServerSpec("trtllm")


def test_the_ending_adds_top_logprobs_to_what_the_server_can_do_anyway():
    assert rollout_server(HOST, "vllm_topk") == SERVERS["vllm_topk"]
    extended = rollout_server(HOST, "sglang_topk")
    assert extended.top_logprobs and extended.seed == "sampling_seed" and extended.module == "sglang"
    assert rollout_server(HOST, "mine_topk") == RolloutServerSpec("mine_topk", top_logprobs=True)


def test_servers_with_an_ability_are_listed_for_a_sentence():
    assert servers_with(HOST, "top_logprobs") == "`vllm_topk`, `transformers`"


def test_every_listed_server_is_known_to_verl():
    replica = pytest.importorskip("verl.workers.rollout.replica")
    base = pytest.importorskip("verl.workers.rollout.base")
    assert set(SERVERS) <= set(replica.RolloutReplicaRegistry._registry)
    assert set(SERVERS) <= {name for name, _ in base._ROLLOUT_REGISTRY}


def test_where_no_server_loads_saved_models_the_sentence_names_the_model():
    nothing = PluginHost.load({"of_verl": True})
    assert set(nothing.specs("rollout_server")) == {"vllm", "vllm_topk", "sglang"}
    with pytest.raises(RecipeError, match="'a/model' is to be loaded in this process"):
        loader_of(nothing, {})("a/model")


def test_what_is_registered_imports_no_server_and_no_verl():
    code = (
        "import sys; from verl_hier.host.manager import PluginHost\n"
        "assert PluginHost.load({'builtin': True}, 'rollout_server').specs('rollout_server')\n"
        "print({'verl', 'torch', 'ray', 'vllm'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
