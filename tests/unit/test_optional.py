"""Features that work without Jupyter and the workbook's dependencies, as on a cluster node; and error messages."""

import subprocess
import sys

import pytest

from bigtrain_nb.common.optional import needed_by

WITHOUT = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("IPython", "ipywidgets", "ipykernel", "jupyterlab", "skimage", "tensorboard", "traitlets"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import bigtrain_nb as bt
"""

MEASURES = """
import time
both = bt.compare({"a": lambda: lambda: time.sleep(0.001), "b": lambda: lambda: time.sleep(0.003)}, seconds=0.2)
print(both)
bt.predict("ratio", 2.0, "x")
print(bt.reveal("ratio", both.ratio("a", "b")))
lab = bt.Lab(lambda n: lambda: time.sleep(n / 1000), seconds=0.05, n=[1, 2])
lab.run(n=2)
print(lab, lab.picture())
print(bt.plan_step(bt.conv_net(image_size=16, blocks=1), batch=4, on="H100").peak > 0)
"""

SCREENS = {
    "bt.Lab(lambda n: [], n=[1])._repr_mimebundle_()": "the screen of bt.Lab needs ipywidgets",
    "bt.photo_crops(8, 4, cache=sys.argv[1])": "bt.photo_crops needs skimage",
}


def run(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code, *arguments], capture_output=True, text=True, timeout=300
    )


def test_measuring_planning_and_the_lab_need_no_jupyter():
    done = run(MEASURES)
    assert done.returncode == 0, done.stderr
    for words in ("a", "b", "Measured: ratio: you said 2.00x", "Lab of <lambda>, 1 runs", "[picture: run 1", "True"):
        assert words in done.stdout


@pytest.mark.parametrize("call", SCREENS)
def test_what_is_not_installed_is_named_with_what_brings_it(call, tmp_path):
    done = run(call, str(tmp_path))
    assert done.returncode == 1
    installs = 'run pip install "PATH[workbook]", where PATH is the clone or wheel of bigtrain_nb'
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: {SCREENS[call]}, which is not installed here: {installs}"
    )


def test_the_package_that_is_missing_inside_another_is_the_one_that_is_named():
    with pytest.raises(ModuleNotFoundError, match="^a thing needs missing_part, which is not installed here") as caught:
        with needed_by("a thing"):
            raise ModuleNotFoundError("No module named 'missing_part'", name="missing_part")
    assert caught.value.name == "missing_part"
