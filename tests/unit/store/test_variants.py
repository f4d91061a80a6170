from __future__ import annotations

import pytest

from ostinatod.errors import PullError
from ostinatod.store.variants import RemoteFile, choose, variants_of


def _files(*paths: str) -> list[RemoteFile]:
    return [RemoteFile(path, 10) for path in paths]


def _chosen(tag: str | None, *paths: str) -> list[str]:
    return [file.path for file in choose("org/repo", variants_of(_files(*paths)), tag).files]


@pytest.mark.parametrize(
    ("path", "quantization"),
    [
        ("Qwen3-30B-A3B-Q4_K_M.gguf", "Q4_K_M"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("model.IQ2_XXS.gguf", "IQ2_XXS"),
        ("model-BF16-00001-of-00001.gguf", "BF16"),
        ("Q8_0/weights.gguf", "Q8_0"),
        ("seq2seq.gguf", ""),
    ],
)
def test_quantisation_is_read_from_the_path(path: str, quantization: str) -> None:
    assert [variant.quantization for variant in variants_of(_files(path))] == [quantization]


def test_projectors_matrices_and_other_formats_are_no_models() -> None:
    paths = ("mmproj-F16.gguf", "m-mmproj-BF16.gguf", "m.imatrix.gguf", "imatrix_unsloth.gguf", "m.safetensors")
    assert variants_of(_files(*paths, "README.md")) == []


def test_tag_is_compared_without_case() -> None:
    assert _chosen("q8_0", "m-Q4_K_M.gguf", "m-Q8_0.gguf") == ["m-Q8_0.gguf"]


def test_tag_may_leave_out_prefix_or_suffix() -> None:
    assert _chosen("Q4_K_XL", "m-UD-Q4_K_XL.gguf", "m-Q8_0.gguf") == ["m-UD-Q4_K_XL.gguf"]
    assert _chosen("MXFP4", "m-MXFP4_MOE.gguf", "m-Q8_0.gguf") == ["m-MXFP4_MOE.gguf"]


def test_exact_tag_wins_over_a_prefixed_one() -> None:
    assert _chosen("Q4_K_M", "m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf") == ["m-Q4_K_M.gguf"]


def test_tag_may_be_the_whole_file_name() -> None:
    assert _chosen("b-Q8_0", "a-Q8_0.gguf", "b-Q8_0.gguf") == ["b-Q8_0.gguf"]


def test_only_model_needs_no_tag() -> None:
    assert _chosen(None, "m-Q2_K.gguf", "mmproj-F16.gguf") == ["m-Q2_K.gguf"]


def test_q4_k_m_is_preferred_then_mxfp4() -> None:
    assert _chosen(None, "m-Q8_0.gguf", "m-MXFP4.gguf", "m-Q4_K_M.gguf") == ["m-Q4_K_M.gguf"]
    assert _chosen(None, "m-Q8_0.gguf", "m-MXFP4.gguf") == ["m-MXFP4.gguf"]


def test_unclear_choice_lists_what_there_is() -> None:
    with pytest.raises(PullError, match="found Q2_K, Q8_0") as caught:
        _chosen(None, "m-Q8_0.gguf", "m-Q2_K.gguf")
    assert caught.value.hint == "Name one of them: ostinato pull org/repo:Q2_K"


def test_unknown_tag_lists_what_there_is() -> None:
    with pytest.raises(PullError, match="expected a model 'Q3_K' in org/repo, found Q2_K, Q8_0"):
        _chosen("Q3_K", "m-Q8_0.gguf", "m-Q2_K.gguf")


def test_two_models_of_one_quantisation_are_told_apart_by_name() -> None:
    with pytest.raises(PullError, match="found a-Q8_0, b-Q8_0"):
        _chosen("Q8_0", "a-Q8_0.gguf", "b-Q8_0.gguf")


def test_split_set_is_one_model_in_order_also_in_a_folder() -> None:
    paths = [f"Q4_K_M/m-Q4_K_M-0000{i}-of-00003.gguf" for i in (2, 3, 1)]
    assert _chosen("Q4_K_M", *paths, "m-Q8_0.gguf") == sorted(paths)


def test_incomplete_set_is_refused_naming_the_part() -> None:
    with pytest.raises(PullError, match=r"lacks m-Q8_0-00002-of-00003\.gguf"):
        _chosen(None, "m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf")


def test_repository_without_models_is_refused() -> None:
    with pytest.raises(PullError, match="org/repo holds no GGUF model"):
        _chosen(None, "model.safetensors")
