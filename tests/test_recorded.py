"""Records of probes: what counts as run, by hand."""

import json

from clusterlab.recorded import CHECKS, KINDS, check, measurements, never_run


def record(**changed):
    rows = {"memory": [{"what": "read"}, {"what": "copy", "skipped": "no room"}],
            "matmul": [{"what": "matmul", "dtype": "bf16"}],
            "collectives": [{"what": "all-reduce", "backend": "nccl"}]}
    return {"what": "device probes", "kind": "cuda", "quick": False, "probes": rows} | changed


def written(where, **records):
    for name, one in records.items():
        (where / f"{name}.json").write_text(json.dumps(one), "utf-8")
    return where


def test_a_row_is_named_by_what_format_and_backend():
    assert check({"what": "read"}) == "read"
    assert check({"what": "matmul", "dtype": "bf16", "backend": ""}) == "matmul bf16"
    assert check({"what": "all-reduce", "backend": "nccl"}) == "all-reduce nccl"


def test_only_records_of_probes_are_read(tmp_path):
    written(tmp_path, b=record(), a=record(kind="cpu"), other={"what": "links"}, empty={})
    assert list(measurements(tmp_path)) == ["a", "b"]
    assert measurements(tmp_path)["b"] == record()


def test_a_check_is_run_by_a_whole_record_of_its_kind_that_did_not_skip_it(tmp_path):
    everything = {kind: {probe: names for probe, checks in CHECKS.items()
                         if (names := [name for name, kinds in checks.items() if kind in kinds])} for kind in KINDS}
    assert never_run(tmp_path) == everything and list(everything) == list(KINDS)
    assert never_run(written(tmp_path, quick=record(quick=True))) == everything
    left = never_run(written(tmp_path, whole=record()))
    assert left["cuda"]["memory"] == ["copy", "triad"]
    assert left["cuda"]["matmul"] == ["matmul fp32", "matmul tf32", "matmul fp16", "matmul fp8"]
    assert "collectives" not in left["cuda"]
    assert {kind: left[kind] for kind in KINDS if kind != "cuda"} == {kind: everything[kind] for kind in KINDS if kind != "cuda"}


def test_nothing_left_of_a_kind_is_no_entry(tmp_path):
    rows = {probe: [dict(zip(("what", "dtype"), name.rsplit(" ", 1), strict=True)) if probe == "matmul" else {"what": name}
                    for name, kinds in checks.items() if "mps" in kinds] for probe, checks in CHECKS.items()}
    assert "mps" not in never_run(written(tmp_path, apple=record(kind="mps", probes=rows)))
