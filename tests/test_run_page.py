"""run.md and its job files: the Slurm script with stand-ins for Slurm, the Kubernetes command as the operator starts it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import recorded as listing
import yaml
from clusterlab import recorded
from conftest import ROOT

JOBS = ROOT / "book" / "jobs"
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.slow


def started(command, where, **variables):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
                          env=os.environ | {"PATH": f"{where}:{BIN}:{os.environ['PATH']}"} | variables)


def measured(folder):
    record, = (json.loads(path.read_text("utf-8")) for path in Path(folder).glob("*.json"))
    return {(row["what"], row["ranks"]) for row in record["probes"]["collectives"] if "skipped" not in row}


def test_the_slurm_script_measures_collectives(tmp_path):
    script = (JOBS / "collectives.sbatch").read_text("utf-8").replace(".venv/bin/python", sys.executable)
    (tmp_path / "job").write_text(script, "utf-8")
    for name, text in {"srun": 'exec "$@"', "scontrol": "echo 127.0.0.1; echo other"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    done = started(["bash", "-eu", str(tmp_path / "job"), "quick=True", f"where={tmp_path / 'out'}"], tmp_path, GPUS="2",
                   SLURM_JOB_ID="4711", SLURM_JOB_NODELIST="node[1-2]", SLURM_JOB_NUM_NODES="1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert {ranks for _, ranks in measured(tmp_path / "out")} == {2}


def test_the_kubernetes_job_starts_what_it_says(tmp_path):
    job = yaml.safe_load((JOBS / "trainjob.yaml").read_text("utf-8"))
    trainer = job["spec"]["trainer"]
    assert trainer["numProcPerNode"] == trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"]
    done = started([*trainer["command"], "quick=True", f"where={tmp_path / 'out'}"], tmp_path, PET_NNODES="1",
                   PET_NPROC_PER_NODE="2", PET_NODE_RANK="0", PET_MASTER_ADDR="127.0.0.1", PET_MASTER_PORT="29517")
    assert done.returncode == 0, done.stderr[-2000:]
    assert {ranks for _, ranks in measured(tmp_path / "out")} == {2}


def test_the_list_is_made_from_the_measurements(tmp_path):
    assert "AMD EPYC" in listing.listing(recorded.folder()) and "NVIDIA" in listing.listing(recorded.folder())
    nothing = listing.listing(tmp_path)
    assert "nothing yet" in nothing and nothing.count("<tr>") == 1 + len(recorded.KINDS)
    one = json.loads((recorded.folder() / "amd-epyc-2-cores.json").read_text("utf-8"))
    rows = [{"what": name.split()[0] if probe == "matmul" else name, "dtype": name.split()[1] if probe == "matmul" else ""}
            for probe in ("memory", "matmul") for name in recorded.CHECKS[probe]]
    one |= {"kind": "mps", "device": "Some <chip>", "probes": {"memory": rows, "matmul": rows}}
    (tmp_path / "x.json").write_text(json.dumps(one), "utf-8")
    made = listing.listing(tmp_path)
    assert "Some &lt;chip&gt;, 1 device, " in made
    apple = re.search(r"MPS \(Apple\)</th><td>(.*?)</td>", made)[1]
    assert "memory" not in apple and "matmul" not in apple and "copies" in apple
