"""The table of rollout servers agrees with what is registered and is read without verl."""

import subprocess
import sys

import pytest

from verl_hier.verl_facts.servers import SERVERS, RolloutServer, rollout_server, servers_with


def test_a_server_that_is_not_listed_does_what_every_server_of_verl_does():
    assert rollout_server("trtllm") == RolloutServer("trtllm")


def test_the_ending_adds_top_logprobs_to_what_the_server_can_do_anyway():
    assert rollout_server("vllm_topk") == SERVERS["vllm_topk"]
    extended = rollout_server("sglang_topk")
    assert extended.top_logprobs and extended.seed == "sampling_seed" and extended.module == "sglang"
    assert rollout_server("mine_topk") == RolloutServer("mine_topk", top_logprobs=True)


def test_servers_with_an_ability_are_listed_for_a_sentence():
    assert servers_with("top_logprobs") == "`transformers`, `vllm_topk`"


def test_every_listed_server_is_known_to_verl():
    replica = pytest.importorskip("verl.workers.rollout.replica")
    base = pytest.importorskip("verl.workers.rollout.base")
    assert set(SERVERS) <= set(replica.RolloutReplicaRegistry._registry)
    assert set(SERVERS) <= {name for name, _ in base._ROLLOUT_REGISTRY}


def test_the_table_imports_no_server_and_no_verl():
    code = "import sys, verl_hier.verl_facts.servers; print({'verl', 'torch', 'ray', 'vllm'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
