"""What of ik_llama.cpp's source package is built."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from benchmarks.peers.ik_build import (
    ROOT,
    SOURCE,
    edited,
    keep_types,
    kept,
    link_cuda,
    missing_functions,
    pack,
    processor,
    stub_source,
)

CUDA = f"{SOURCE}/ggml/src/ggml-cuda"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (f"{ROOT}/ik_llama_cpp/_ctypes_api.py", True),
        (f"{SOURCE}/LICENSE", True),
        (f"{SOURCE}/src/llama.cpp", True),
        (f"{SOURCE}/ggml/src/ggml-cuda.cu", True),
        (f"{CUDA}/mmq.cuh", True),
        (f"{CUDA}/template-instances/mmq-instance-q4_k_id.cu", True),
        (f"{CUDA}/template-instances/mmvq-instance-q4_K.cu", True),
        (f"{CUDA}/template-instances/mmvq-instance-mxfp4.cu", True),
        (f"{CUDA}/template-instances/mmq-instance-iq4_nl.cu", True),
        (f"{CUDA}/template-instances/mmq-instance-iq2_k.cu", False),
        (f"{CUDA}/template-instances/mmvq-instance-iq4_kss.cu", False),
        (f"{CUDA}/template-instances/fattn-mma-f16-instance-ncols1_8-ncols2_8.cu", True),
        (f"{CUDA}/template-instances/fattn-mma-f16-instance-ncols1_64-ncols2_1.cu", False),
        (f"{CUDA}/fattn-new-mma.cu", False),
        (f"{SOURCE}/ggml/src/iqk/iqk_gemm_kquants.cpp", True),
        (f"{SOURCE}/ggml/src/iqk/iqk_gemm_ktquants.cpp", False),
        (f"{SOURCE}/ggml/src/kompute/docs/large.gif", False),
        (f"{SOURCE}/models/ggml-vocab-aquila.gguf", False),
        (f"{SOURCE}/examples/server/server.cpp", False),
    ],
)
def test_files_that_the_measured_models_need_are_kept(name: str, wanted: bool) -> None:
    assert kept(name) is wanted


def test_no_line_of_a_kernel_changes() -> None:
    text = b"__global__ void kernel() {}\n"

    assert edited(f"{CUDA}/mmq.cu", text) == text


def test_attention_is_compiled_for_two_head_sizes() -> None:
    text = b"".join(b"DECL_FATTN_MMA_F16_CASE(%d, 8, 8);\n" % size for size in (64, 80, 112, 128, 256))

    name = f"{CUDA}/template-instances/fattn-mma-f16-instance-ncols1_8-ncols2_8.cu"

    assert edited(name, text) == b"DECL_FATTN_MMA_F16_CASE(64, 8, 8);\nDECL_FATTN_MMA_F16_CASE(128, 8, 8);\n"


def test_the_build_does_not_ask_for_what_was_left_out() -> None:
    text = b"add_subdirectory(src)\nadd_subdirectory(common)\nadd_subdirectory(vendor/cpp-httplib)\n"

    assert edited(f"{SOURCE}/CMakeLists.txt", text).split() == [b"add_subdirectory(src)"]


def test_an_archive_has_only_what_is_kept(tmp_path: Path) -> None:
    sdist = tmp_path / "sdist.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in (f"{SOURCE}/src/llama.cpp", f"{SOURCE}/examples/server/server.cpp"):
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(b"a;\n"))

    pack(sdist, tmp_path / "ik.tar.xz")

    with tarfile.open(tmp_path / "ik.tar.xz") as packed:
        assert packed.getnames() == [f"{SOURCE}/src/llama.cpp"]


def test_only_unversioned_cpp_names_are_missing() -> None:
    listing = "                 U _Z3foov\n                 U _ZSt4cout@GLIBCXX_3.4\n                 U cuMemCreate\n"

    assert missing_functions(listing) == ["_Z3foov"]


def test_a_function_left_out_says_its_name_and_aborts(tmp_path: Path) -> None:
    main = 'void f(void) __asm__("_Z3foov"); int main(void) { f(); return 0; }\n'
    (tmp_path / "stubs.c").write_text(stub_source(["_Z3foov"]), encoding="utf-8")
    (tmp_path / "main.c").write_text(main, encoding="utf-8")
    subprocess.run(["gcc", "-o", "program", "main.c", "stubs.c"], cwd=tmp_path, check=True)

    child = subprocess.run([tmp_path / "program"], capture_output=True, text=True)

    assert child.returncode < 0
    assert child.stderr == "left out of this build: _Z3foov\n"


def test_parts_that_a_toolkit_lacks_are_found_elsewhere(tmp_path: Path) -> None:
    toolkit, wheel, driver = (tmp_path / name for name in ("toolkit", "wheel", "driver"))
    for path in (
        toolkit / "include" / "cuda.h",
        wheel / "include" / "cublas_v2.h",
        wheel / "lib" / "libcublas.so.13",
        wheel / "lib" / "libcublasLt.so.13",
        driver / "lib64" / "libcuda.so.1",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    defines = link_cuda([toolkit, wheel, driver], tmp_path / "out")

    assert (tmp_path / "out" / "libcublas.so").resolve() == wheel / "lib" / "libcublas.so.13"
    assert (tmp_path / "out" / "libcublas.so.13").exists()
    assert (tmp_path / "out" / "libcuda.so").resolve() == driver / "lib64" / "libcuda.so.1"
    flags = next(define for define in defines if define.startswith("CMAKE_CUDA_FLAGS=")).partition("=")[2]
    assert flags.endswith(str(wheel / "include"))
    # nvcc takes a word without a dash, and what follows an option that it does not know, for a file to compile
    assert flags.split() == [flags]
    assert flags.startswith("-Xcompiler=-idirafter,")


def test_matrix_kernels_of_other_weight_types_are_not_compiled(tmp_path: Path) -> None:
    names = ("mmq-instance-iq4_nl.cu", "mmq-instance-iq4_nl_id.cu", "mmvq-instance-mxfp4.cu", "mmvq-instance-q4_K.cu")
    for name in (*names, "fattn-vec-f32-instance-hs64-f16-f16.cu"):
        (tmp_path / name).touch()

    with pytest.raises(SystemExit, match=r"expected kernels of q9 in .*found \['iq4_nl', 'mxfp4', 'q4_k'\]"):
        keep_types(tmp_path, ["q9", "mxfp4"])

    assert keep_types(tmp_path, ["iq4_nl", "mxfp4"]) == 1
    assert not (tmp_path / "mmvq-instance-q4_K.cu").exists()
    assert len(list(tmp_path.iterdir())) == 4


def test_another_processor_is_named_to_the_compilers_of_both_languages() -> None:
    assert processor("native") == {"GGML_NATIVE": "ON"}
    assert processor("sapphirerapids") == {
        "GGML_NATIVE": "OFF",
        "CMAKE_C_FLAGS": "-march=sapphirerapids",
        "CMAKE_CXX_FLAGS": "-march=sapphirerapids",
    }


def test_what_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"expected libcublas\.so below"):
        link_cuda([tmp_path], tmp_path / "out")
