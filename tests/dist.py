"""Build wheel and sdist, install them in clean environments and run them there: `make dist`.

    python tests/dist.py                  every environment of the table
    python tests/dist.py minimal oldest   some of them

Environments that need a torch from the network take gigabytes; they are skipped, with the reason,
where it cannot be downloaded or stored.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ",".join(sorted(set(PROJECT["optional-dependencies"]) - {"dev"}))
PINNED = ("-c", str(ROOT / "constraints.txt"))
REQUIRED = [*PROJECT["dependencies"]]
for extra in EXTRAS.split(","):
    REQUIRED += PROJECT["optional-dependencies"][extra]
OLDEST = sorted({f"{name}=={least}.*" for name, least in (r.split(">=") for r in REQUIRED)})
GIGABYTES = 15  # for a torch with its CUDA libraries, downloaded and installed

# By name: what is installed, with which options of pip, and whether torch comes from the network.
ENVIRONMENTS = {
    "minimal": ("{wheel}", PINNED, False),
    "sdist": ("{sdist}", PINNED, False),
    "extras": (f"{{wheel}}[{EXTRAS}]", PINNED, False),
    "oldest": (f"{{wheel}}[{EXTRAS}]", OLDEST, True),
    "newest": (f"{{wheel}}[{EXTRAS}]", ("--upgrade", "--upgrade-strategy", "eager"), True),
}
NOT_HERE = ("No matching distribution found for torch", "No space left", "Max retries exceeded")

# What is checked by Python inside an environment.
MODULES = """
import importlib, importlib.metadata as metadata, importlib.util, pkgutil, sys
import dograph
from dograph.errors import MissingExtraError, require
assert "site-packages" in dograph.__file__, dograph.__file__
assert metadata.version("dograph") == dograph.__version__
has_triton = importlib.util.find_spec("triton") is not None
names = [m.name for m in pkgutil.walk_packages(dograph.__path__, "dograph.")]
names = [n for n in names if n != "dograph.__main__" and (has_triton or ".kernels." not in n)]
for name in names: importlib.import_module(name)
told = []
for module, extra in {"datasets": "corpus", "lm_eval": "eval", "lightgbm": "plan", "ray": "ray",
                      "matplotlib": "figures", "tensorboard": "tensorboard", "wandb": "wandb",
                      "trackio": "trackio"}.items():
    if importlib.util.find_spec(module) is None:
        try: require(module, extra)
        except MissingExtraError as error: assert f"pip install 'dograph[{extra}]'" in str(error)
        else: raise SystemExit(f"{module} was not missed")
        told.append(extra)
versions = [f"{n} {metadata.version(n)}" for n in ("torch", "transformers", "numpy")]
print(f"{len(names)} modules; missing extras that say so: {len(told)}; {', '.join(versions)}")
"""


class Failed(Exception):
    """A command that ended with an error, with the end of what it printed."""


def run(*command, cwd=ROOT):
    print("$", *(" ".join(str(part).split())[:90] for part in command), flush=True)
    hidden = {"PYTHONPATH", "VIRTUAL_ENV"}  # nothing of this tree may be found
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Failed((done.stdout + done.stderr)[-3000:])
    return done.stdout


def make_environment(folder):
    run(sys.executable, "-m", "venv", str(folder))
    return folder / "bin"


def build(folder):
    """The sdist, and the wheel built from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    bin_ = make_environment(folder / "build")
    run(bin_ / "pip", "install", "--quiet", "build")
    run(bin_ / "python", "-m", "build", "--outdir", DIST, ROOT)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel}


def check_contents(built):
    """Every file of the package, and nothing else but metadata."""
    package = ROOT / "src" / "dograph"
    files = [p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    expected = {str(path.relative_to(ROOT / "src")) for path in files}
    with zipfile.ZipFile(built["wheel"]) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == expected, inside ^ expected
    assert inside >= {"dograph/py.typed", "dograph/report/assets/page.html"}
    with tarfile.open(built["sdist"]) as sdist:
        inside = {m.name.partition("/")[2] for m in sdist.getmembers() if m.isfile()}
    inside = {name for name in inside if ".egg-info/" not in name}
    needed = {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", "setup.cfg"}
    expected = needed | {f"src/{name}" for name in expected}
    assert inside == expected, inside ^ expected
    print(f"wheel and sdist hold the {len(files)} files of the package")


def use(bin_, cwd, *, extras):
    """Run the installed command from corpus to report, and the examples that need extras."""
    print(run(bin_ / "python", "-c", MODULES, cwd=cwd).strip(), flush=True)
    run(bin_ / "pip", "check", cwd=cwd)
    dograph = bin_ / "dograph"
    run(dograph, "doctor", cwd=cwd)
    run(dograph, "data", "prepare", "demo", "--out", "data/demo", cwd=cwd)
    few = ("train.steps=5", "eval.max_samples_per_source=4")
    run(dograph, "train", "demo", *few, "run=runs/demo", cwd=cwd)
    run(dograph, "report", "runs/demo", "--out", "page.html", cwd=cwd)
    assert "<title>" in (cwd / "page.html").read_text()
    for name in ("accelerate_loop", "hf_trainer", "lightning_trainer") if extras else ():
        run(bin_ / "python", ROOT / "examples" / f"{name}.py", cwd=cwd)


def main(names):
    unknown = set(names) - set(ENVIRONMENTS)
    if unknown:
        sys.exit(f"no environment {sorted(unknown)}; choose from {', '.join(ENVIRONMENTS)}")
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        built = build(Path(scratch))
        check_contents(built)
        for name, (what, options, network) in ENVIRONMENTS.items():
            if names and name not in names:
                results[name] = "skipped: not asked for"
                continue
            free = shutil.disk_usage(scratch).free / 1e9
            if network and free < GIGABYTES:
                results[name] = f"skipped: needs {GIGABYTES} GB of disk, {free:.0f} GB are free"
                continue
            print(f"--- {name}", flush=True)
            folder, start = Path(scratch) / name, time.monotonic()
            try:
                bin_ = make_environment(folder)
                target = what.format(**{kind: str(path) for kind, path in built.items()})
                run(bin_ / "pip", "install", "--quiet", target, *options)
                use(bin_, folder, extras="[" in what)
                results[name] = f"passed in {time.monotonic() - start:.0f} s"
            except Failed as error:
                reason = next((line for line in NOT_HERE if line in str(error)), None)
                skip = network and reason is not None
                results[name] = f"skipped: {reason}" if skip else "FAILED"
                print(error, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    for name, result in results.items():
        print(f"{name:8} {result}")
    sys.exit(any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
