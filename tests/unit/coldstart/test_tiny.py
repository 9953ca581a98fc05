"""The tiny model and its tokenizer: load like any model, keep every word, say what the environment understands."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hier.coldstart import TinyShape, build_tiny, collect_texts
from verl_hier.coldstart.tiny import ACT, END, PAD, SUB_DONE, UNKNOWN
from verl_hier.coldstart.vocabulary import split_words
from verl_hier.host.part import Part
from verl_hier_plugins.environments.alfworld import SPEC
from verl_hier_plugins.environments.alfworld.environment import AlfworldEnvironment


def test_every_text_survives_a_round_trip(tokenizer, texts):
    for text in texts[:3000]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.unk_token_id not in ids, text
        assert tokenizer.decode(ids) == " ".join(split_words(text))


def test_held_out_worlds_use_no_other_words(tokenizer, options):
    environment = AlfworldEnvironment(options)
    for split in ("val", "test"):
        for task in SPEC.tasks(options, split):
            first = environment.reset(task, 0)
            for text in (task["instruction"], first.text, *first.admissible):
                assert tokenizer.unk_token_id not in tokenizer.encode(text), text


def test_a_worker_that_writes_plans_of_its_own_finds_their_signs(options, workers):
    """No prompt of the designer holds a `;`, but its designs do."""
    texts = collect_texts(Part(SPEC, options), [workers["designer_executor"]], walks=2)
    assert ";" in {word for text in texts for word in split_words(text)}


def test_a_decoded_action_is_understood(tokenizer, options):
    environment = AlfworldEnvironment(options)
    first = environment.reset(SPEC.tasks(options, "train")[0], 0)
    for action in first.admissible:
        ids = tokenizer.encode(action, add_special_tokens=False)
        assert environment.fork().step(tokenizer.decode(ids)).valid
        # One token for an entity with its number.
        assert len(ids) <= 3


def test_special_tokens(tokenizer):
    ids = tokenizer.encode(f"{SUB_DONE} {END}", add_special_tokens=False)
    assert ids == [tokenizer.convert_tokens_to_ids(SUB_DONE), tokenizer.eos_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == SUB_DONE
    assert tokenizer.pad_token == PAD and tokenizer.unk_token == UNKNOWN
    assert tokenizer.encode("xyzzy", add_special_tokens=False) == [tokenizer.unk_token_id]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "go to fridge 1"}], add_generation_prompt=True, tokenize=False
    )
    assert prompt.split() == ["go", "to", "fridge", "1", ACT]


def test_the_model_has_the_recommended_size_and_runs(model_dir, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    assert 180_000 < sum(p.numel() for p in model.parameters()) < 230_000
    assert model.config.vocab_size == len(tokenizer)
    # ids [1, t]
    ids = torch.tensor([tokenizer.encode("plan: put some apple on shelf")])
    assert torch.isfinite(model(input_ids=ids).logits).all()


def test_weights_depend_on_the_seed_alone(tmp_path, texts):
    shape = TinyShape(hidden=32, layers=1, heads=2, intermediate=32, head_dim=32)
    models = []
    for number, seed in enumerate((0, 0, 1)):
        torch.manual_seed(number)
        folder = build_tiny(tmp_path / str(number), texts[:50], seed=seed, shape=shape)
        models.append(AutoModelForCausalLM.from_pretrained(folder).model.embed_tokens.weight)
    assert torch.equal(models[0], models[1]) and not torch.equal(models[0], models[2])
    assert (
        AutoTokenizer.from_pretrained(tmp_path / "0").get_vocab()
        == AutoTokenizer.from_pretrained(tmp_path / "1").get_vocab()
    )


def test_words():
    assert split_words("On the shelf 2, you see: a cup 1.") == ["on", "the", "shelf 2", "you", "see", ":", "a", "cup 1"]
