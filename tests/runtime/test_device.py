"""The life of the device, each in a process of its own: first use, choice, loss, fork, exit."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.device
ROOT = Path(__file__).parents[2]
START = """
import gc, os, sys, threading
import numpy as np
from wgattn import _errors as errors
from wgattn import _runtime as rt
from tests.runtime.programs import affine, chain

def expect(error, call, *texts):
    try:
        call()
    except error as found:
        assert type(found) is error, found
        for text in texts:
            assert text in str(found), found
    else:
        raise SystemExit(f"{error.__name__} was not raised")

ONES = np.ones(100, np.float32)
"""


def run_alone(body: str, **environment: str) -> str:
    """Run `body` in a new process, which has to end well within a minute; what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", START + dedent(body)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_nothing_happens_before_first_use():
    run_alone("""
        assert "wgpu" not in sys.modules and "wgpudawn" not in sys.modules
        rt.choose_adapter(0)
        assert rt.device() is rt.device() and rt.device().generation == 0
        expect(errors.WgattnError, lambda: rt.choose_adapter(0), "before the first use")
        expect(errors.WgattnError, lambda: rt.use_profile_override(f16=False), "before the first use")
    """)


def test_drivers_print_nothing_where_there_is_no_desktop():
    environment = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
    body = START + "print(len(rt.list_adapters()))"
    done = subprocess.run(
        [sys.executable, "-c", body], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) > 0
    assert "XDG_RUNTIME_DIR" not in done.stderr


def test_eight_threads_make_one_device():
    """https://github.com/pygfx/wgpu-py/issues/405 and https://github.com/pygfx/wgpu-py/issues/353"""
    run_alone("""
        found = []
        threads = [threading.Thread(target=lambda: found.append(rt.device())) for _ in range(8)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert len(found) == 8 and len(set(map(id, found))) == 1
    """)


def test_a_loss_kills_its_buffers_and_the_next_call_gets_a_device():
    run_alone("""
        executable = rt.prepare(chain(100, 2))
        x = rt.upload(ONES)
        (out,) = executable.run([x])
        rt.device().lose()
        for _ in range(2):
            expect(errors.DeviceLostError, lambda: rt.download(out), "was lost", "the next call gets a new device")
            expect(errors.DeviceLostError, lambda: executable.run([x]), "was lost")
        (new,) = executable.run([rt.upload(ONES)])
        assert (rt.download(new).view(np.float32) == 7).all()
        assert rt.device().generation == 1
        expect(errors.DeviceLostError, lambda: rt.download(out), "was lost")
        del x, out
        gc.collect()
        assert (rt.download(executable.run([rt.upload(ONES)])[0]).view(np.float32) == 7).all()
    """)


def test_a_loss_that_only_the_library_saw():
    run_alone("""
        executable = rt.prepare(affine(100))
        x = rt.upload(ONES)
        rt.device().native.destroy()
        try:
            rt.wait()
        except errors.DeviceLostError:
            pass
        expect(errors.DeviceLostError, lambda: rt.download(x), "was lost")
        assert (rt.download(executable.run([rt.upload(ONES)])[0]).view(np.float32) == 4).all()
        assert rt.device().generation == 1
    """)


if hasattr(os, "fork"):

    def test_a_forked_child_is_told():
        run_alone("""
            x = rt.upload(ONES)
            child = os.fork()
            if child == 0:
                expect(errors.WgattnError, lambda: rt.download(x), "spawn")
                expect(errors.WgattnError, lambda: rt.upload(ONES), "spawn")
                expect(errors.WgattnError, rt.list_adapters, "spawn")
                del x
                gc.collect()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert (rt.download(x).view(np.float32) == 1).all()
        """)

    def test_a_fork_before_first_use_is_fine():
        run_alone("""
            child = os.fork()
            assert (rt.download(rt.upload(ONES)).view(np.float32) == 1).all()
            if child:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """)


@pytest.mark.parametrize("first", ["", "import jax, jax.numpy; jax.numpy.ones(3).block_until_ready()"])
def test_exit_right_after_a_call(first):
    """https://github.com/pygfx/wgpu-py/pull/797"""
    printed = run_alone(f"""
        {first}
        executable = rt.prepare(chain(100_000, 8))
        x = rt.upload(np.ones(100_000, np.float32))
        kept = [executable.run([x]) for _ in range(4)]
        print("left", len(kept))
    """)
    assert printed == "left 4\n"


def test_exit_while_a_thread_computes():
    run_alone("""
        executable, x = rt.prepare(affine(100)), rt.upload(ONES)
        def work():
            while True: rt.download(executable.run([x])[0])
        threading.Thread(target=work, daemon=True).start()
        rt.wait()
    """)


def test_the_loss_of_another_device_is_nothing_to_ours():
    run_alone("""
        x = rt.upload(ONES)
        own = rt.device()
        library = own.provider
        other = library.device(library.adapters()[0], [], {})
        other.destroy()
        try:
            other.create_command_encoder().finish()
        except library.module.GPUError:
            pass
        assert (rt.download(x).view(np.float32) == 1).all()
        assert rt.device() is own
    """)


def test_what_stands_in_for_a_gpu_is_timed():
    """So that a weak one is not given dispatches that its driver takes for a hang."""
    run_alone("""
        rt.use_profile_override(kind="discrete")
        assert 1e8 < rt.current_profile().multiply_adds < 1e13
    """)
    run_alone("assert rt.current_profile().multiply_adds == 0.0 or not rt.current_profile().is_cpu")


def test_the_minimum_device():
    run_alone(
        """
        profile = rt.current_profile()
        assert (profile.limits.workgroup_bytes, profile.limits.invocations) == (16384, 256), profile
        assert profile.limits.storage_buffers == 8 and profile.limits.storage_textures == 4
        assert not profile.f16 and not profile.subgroups and profile.subgroup_size is None and not profile.matrix
        assert "shader-f16" not in rt.adapter_report()["features"]
        assert rt.adapter_report()["limits"]["max-compute-workgroup-size-x"] == 256
        assert (rt.download(rt.prepare(affine(100)).run([rt.upload(ONES)])[0]).view(np.float32) == 4).all()
        """,
        WGATTN_LIMITS="minimum",
    )
    run_alone("""rt.use_profile_override(kind="discrete", subgroups=False)
profile = rt.current_profile()
assert profile.kind == "discrete" and not profile.subgroups and not profile.is_cpu
""")


def test_the_report_is_plain():
    run_alone("""
        import json
        report = json.loads(json.dumps(rt.adapter_report()))
        assert rt.DeviceProfile.from_json(report["profile"]) == rt.current_profile()
        assert report["adapters"][0]["index"] == 0 and report["provider"] == rt.current_profile().provider
    """)


def test_cpu_adapters_have_a_measured_subgroup_size():
    """Adapters say 4 to 128 whatever they have."""
    run_alone("""
        profile = rt.current_profile()
        if profile.is_cpu and profile.subgroups:
            assert profile.subgroup_size in (4, 8, 16, 32)
        else:
            assert profile.subgroup_size is None
        if profile.subgroups and "LLVM" in profile.name and "256 bits" in profile.name:
            assert profile.subgroup_size == 8
    """)


def test_no_driver_no_adapter():
    run_alone(
        """
        assert rt.list_adapters() == ()
        expect(errors.AdapterNotFoundError, rt.device, "no WebGPU adapter was found", "nstall")
        """,
        VK_DRIVER_FILES="/nowhere.json",
        VK_ICD_FILENAMES="/nowhere.json",
        WGATTN_PROVIDER="wgpu",
    )


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WGATTN_PROVIDER": "metal"}, "WGATTN_PROVIDER is 'metal'"),
        ({"WGATTN_LIMITS": "huge"}, "WGATTN_LIMITS is 'huge'"),
    ],
)
def test_unknown_settings(environment, message):
    run_alone(f"expect(errors.UnsupportedError, rt.device, {message!r})", **environment)


def test_an_adapter_by_name():
    run_alone("""
        name = rt.list_adapters()[0].name
        os.environ["WGATTN_ADAPTER"] = name[:6].upper()
        assert rt.current_profile().name == name
    """)
    run_alone("expect(errors.AdapterNotFoundError, rt.device, \"'no such GPU'\")", WGATTN_ADAPTER="no such GPU")


def test_the_adapter_is_chosen_before_the_first_use():
    run_alone("""
        import wgattn
        expect(errors.AdapterNotFoundError, lambda: wgattn.default_device("no such GPU"), "no such GPU")
        wgattn.default_device(wgattn.devices()[0].name)
        assert (np.asarray(wgattn.asarray(ONES) + 1) == 2).all()
        expect(errors.WgattnError, lambda: wgattn.default_device(0), "before the first use of a device")
    """)


def test_a_device_that_loses_barriers_is_refused():
    """https://github.com/gfx-rs/wgpu/issues/4500, https://github.com/gfx-rs/wgpu/issues/3181 and
    https://github.com/gfx-rs/wgpu/issues/8151"""
    run_alone("""
        import wgattn._runtime.selftest as selftest
        read = selftest.runtime_wgsl
        selftest.runtime_wgsl = lambda *names: read(*names).replace("let seen = shared_value;", "let seen = thread;")
        expect(errors.UnsupportedError, rt.device, "self-test of workgroup barriers", "WGATTN_ADAPTER")
    """)


def test_a_device_with_wrong_shuffles_is_refused():
    """https://github.com/gfx-rs/wgpu/pull/4190"""
    run_alone("""
        import wgattn._runtime.selftest as selftest
        read = selftest.runtime_wgsl
        selftest.runtime_wgsl = lambda *names: read(*names).replace("subgroupShuffleXor(lane, 1u)", "lane")
        rt.list_adapters()
        try:
            profile = rt.current_profile()
        except errors.UnsupportedError as error:
            assert "subgroup shuffles" in str(error) and "WGATTN_LIMITS=minimum" in str(error)
        else:
            assert not profile.subgroups
    """)
