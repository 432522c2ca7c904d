"""Bad input under mpirun: exit 2, one message from rank 0 that names the value, the rule and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.launch import autotune, refused

SWEEP = ("sweep", "--workload", "mlp-tiny", "--trials", "1", "--steps", "1", "--rounds", "1")


@pytest.mark.mpi
def test_an_unknown_workload_names_the_nearest(tmp_path: Path) -> None:
    refused(autotune(2, "sweep", "--workload", "mpl", cwd=tmp_path), "'mpl'", "did you mean 'mlp'?")


@pytest.mark.mpi
@pytest.mark.parametrize(("arguments", "word"), [(("--bogus",), "--bogus"), (("--set", "norm"), "KEY=VALUE")])
def test_unknown_arguments_are_refused_once(arguments: tuple[str, ...], word: str, tmp_path: Path) -> None:
    refused(autotune(3, *SWEEP, *arguments, cwd=tmp_path), word)


@pytest.mark.mpi
def test_an_unknown_key_in_a_cluster_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[device.a]\nflop = "1 GFLOP/s"\n[[host]]\nname = "h"\ndevices = ["a"]\n')
    refused(autotune(2, *SWEEP, "--cluster", "c.toml", cwd=tmp_path), "'flop'", "c.toml", "did you mean 'flops'?")


@pytest.mark.mpi
def test_more_ranks_than_devices_is_refused(tmp_path: Path) -> None:
    refused(autotune(5, *SWEEP, "--cluster", "mixed4", cwd=tmp_path), "5 ranks", "'mixed4'", "4 devices", "mpirun -n 4")


@pytest.mark.mpi
def test_a_batch_too_small_for_every_rank_is_refused(tmp_path: Path) -> None:
    done = autotune(2, *SWEEP, "--set", "global_batch=1", "--cluster", "mixed4", cwd=tmp_path)
    refused(done, "global batch of 1", "2 ranks", "at least 2")


@pytest.mark.mpi
def test_an_unwritable_results_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(autotune(2, *SWEEP, "--results", "file/below", cwd=tmp_path), "file/below", "--results")
