"""`wgattn explain`: the choice and its reasons, replayed from another machine's report."""

import json
from pathlib import Path

import pytest

from tests.faces.command_line import NO_ADAPTER, here, profile_file, refused, wgattn


def test_a_report_is_replayed_without_an_adapter(tmp_path: Path) -> None:
    options = ("--q", "2,1024,8,64", "--kv-heads", "2", "--dtype", "f16", "--causal", "--window", "255,0", "--rope")
    done = wgattn("explain", *options, "--profile", profile_file(tmp_path), **NO_ADAPTER)
    assert done.returncode == 0, done.stderr
    labels = [line.split("  ")[0] for line in done.stdout.splitlines() if line[:1].strip()]
    assert labels == ["variant", "adapter", "because", "passed over", "constants", "memory", "launch"]
    assert "a laptop's GPU" in done.stdout
    assert "of 32,768 bytes of workgroup memory" in done.stdout
    assert "22% of the scores are kept, tiles outside i-255 ≤ j ≤ i are skipped" in " ".join(done.stdout.split())


def test_every_option_reaches_the_variant(tmp_path: Path) -> None:
    file = profile_file(tmp_path)
    call = ("explain", "--json", "--profile", file, "--q", "1,40,4,32")
    names = [here(*call, *option)["variant"] for option in OPTIONS]
    assert len(set(names)) == len(names), names


OPTIONS = [
    (),
    ("--causal",),
    ("--window", "3,0"),
    ("--rope",),
    ("--softcap", "20"),
    ("--sinks",),
    ("--bias", "TS"),
    ("--mask", "TS"),
    ("--key-lengths",),
    ("--query-lengths",),
    ("--residual",),
    ("--value-dim", "64"),
    ("--dtype", "bf16"),
]


@pytest.mark.parametrize(("T", "dtype", "family"), [(1, "i8", "decode"), (16, "int4", "flash_tiled")])
def test_a_call_over_a_cache_is_explained_without_an_adapter(tmp_path: Path, T: int, dtype: str, family: str) -> None:
    sizes = ("--q", f"2,{T},8,64", "--kv-heads", "2", "--keys", "100", "--cache", dtype, "--value-dim", "32")
    done = wgattn("explain", *sizes, "--sinks", "--profile", profile_file(tmp_path), "--json", **NO_ADAPTER)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["family"].startswith(family)
    assert {"scales", "sink"} <= set(found["variant"].split("-"))
    assert found["kept"] == pytest.approx(1 - (T - 1) / 2 / 100), "the last query stands at the last token"


def test_gradients_are_explained(tmp_path: Path) -> None:
    call = ("explain", "--q", "1,64,4,32", "--causal", "--mask", "TS", "--profile", profile_file(tmp_path))
    found = here(*call, "--backward", "--json")
    assert found["family"] == "backward_tiled"
    assert found["forward"].startswith("flash_tiled-f32-h32-ud-mask-resf32")
    assert {found["variant"], found["forward"]} <= {launch["shader"] for launch in found["launches"]}
    assert "forward" not in here(*call, "--json")


@pytest.mark.parametrize(
    "options", [("--cache", "f16", "--backward"), ("--residual", "--backward"), ("--key-lengths", "--cache", "f16")]
)
def test_options_that_do_not_go_together_are_refused(options: tuple[str, ...]) -> None:
    option, told = refused("explain", *options)
    assert option == options[0]
    assert told.endswith("leave it out")


def test_the_json_says_what_runs(tmp_path: Path) -> None:
    found = here("explain", "--json", "--wgsl", "--q", "1,64,4,32", "--profile", profile_file(tmp_path))
    assert found["variant"].startswith(found["family"])
    assert "@compute" in found["wgsl"][found["variant"]]
    assert found["workgroup_bytes"] <= 32768
    assert all(min(launch["workgroups"]) >= 1 for launch in found["launches"])
    assert found["reason"]
    assert (found["keys"], found["kept"]) == ("every j", 1.0)
    assert all(0 < len(one["reason"]) < 60 for one in found["passed"])


@pytest.mark.parametrize("q", ["1,64,4,32", "1,1,4,32"])
def test_every_shader_that_runs_is_printed(tmp_path: Path, q: str) -> None:
    call = ("explain", "--q", q, "--keys", "4096", "--profile", profile_file(tmp_path))
    done = wgattn(*call, "--wgsl", **NO_ADAPTER)
    assert done.returncode == 0, done.stderr
    shaders = {launch["shader"] for launch in here(*call, "--json")["launches"]}
    assert {line[3:] for line in done.stdout.splitlines() if line.startswith("// ")} >= shaders
    assert done.stdout.count("@compute") == len(shaders)
    assert all(done.stdout.splitlines().count(f"// {shader}") == 1 for shader in shaders)


def test_a_named_family_is_the_one_that_serves(tmp_path: Path) -> None:
    call = ("explain", "--json", "--q", "1,64,4,32", "--profile", profile_file(tmp_path))
    assert here(*call, "--implementation", "plain")["family"] == "plain"
    done = wgattn(*call, "--implementation", "magic", **NO_ADAPTER)
    assert done.returncode == 1
    assert "magic" in done.stderr


def test_a_missing_report_says_how_it_is_made(tmp_path: Path) -> None:
    done = wgattn("explain", "--profile", tmp_path / "nope.json", **NO_ADAPTER)
    assert done.returncode == 1
    assert "nope.json cannot be read (No such file or directory)" in done.stderr
    assert "wgattn info --json >" in done.stderr


def test_the_same_command_again_is_counted() -> None:
    from wgattn._cli.explain import counted

    assert counted(["copy", "copy", "copy", "workgroups", "copy"]) == ["3 × copy", "workgroups", "copy"]


@pytest.mark.parametrize("content", ["not json", "{}", "[1]", '{"profile": {"colour": "red"}}'])
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "info.json"
    path.write_text(content)
    done = wgattn("explain", "--profile", path, **NO_ADAPTER)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--q", "1,8,0,64"), "'1,8,0,64' has N=0 and H=64: both are at least 1"),
        (("--q", "8,2,0"), "'8,2,0' has N=2 and H=0: both are at least 1"),
        (("--kv-heads", "-2"), "-2 is not the number of key/value heads, at least 1"),
        (("--kv-heads", "0"), "0 is not the number of key/value heads, at least 1"),
        (("--value-dim", "0"), "0 is not the head dim of value, at least 1"),
        (("--keys", "-3"), "-3 is not the number of keys, at least 0"),
    ],
)
def test_a_size_that_no_call_has_is_refused(options: tuple[str, ...], told: str) -> None:
    assert refused("explain", *options) == (options[0], told)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--q", "1,2,x,4"), "--q"),
        (("--q", "1,2"), "--q"),
        (("--kv-heads", "3"), "--kv-heads"),
        (("--window", "a"), "--window"),
        (("--window", "1,2,3"), "--window"),
        (("--dtype", "f64"), "--dtype"),
        (("--bias", "STB"), "--bias"),
        (("--colour", "red"), "--colour"),
    ],
)
def test_a_wrong_option_is_named(options: tuple[str, ...], named: str) -> None:
    done = wgattn("explain", *options, **NO_ADAPTER)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_axis_has_no_kernel(tmp_path: Path) -> None:
    done = wgattn("explain", "--q", "0,4,4,8", "--profile", profile_file(tmp_path), **NO_ADAPTER)
    assert done.returncode == 1
    assert "empty axis" in done.stderr
