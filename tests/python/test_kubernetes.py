"""The manifests of examples/kubernetes: the fields that Kubeflow's operators know, and command lines that are taken."""

import json
import pathlib
import subprocess
from typing import Any

import pytest
from zerotorch import run

yaml = pytest.importorskip("yaml", reason="PyYAML reads the manifests")

ROOT = pathlib.Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "tests/python/kubernetes_schema.json").read_text())
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


def problems(value: Any, schema: Any, place: str = "") -> list[str]:
    """What `value` has against the part of JSON Schema that kubernetes_schema.json uses."""
    import re

    if "$ref" in schema:
        return problems(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], place)
    if "const" in schema and value != schema["const"]:
        return [f"{place}: {value!r} is not {schema['const']!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{place}: {value!r} is none of {schema['enum']}"]
    if "type" in schema:
        wanted = TYPES[schema["type"]]
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            return [f"{place}: {value!r} is no {schema['type']}"]
    found = []
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            found.append(f"{place}: {value!r} does not match {schema['pattern']}")
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            found.append(f"{place}: {value!r} has the wrong length")
    if isinstance(value, int) and value < schema.get("minimum", value):
        found.append(f"{place}: {value} is below {schema['minimum']}")
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            found.append(f"{place}: too few")
        for index, item in enumerate(value):
            found += problems(item, schema.get("items", {}), f"{place}[{index}]")
    if isinstance(value, dict):
        found += [f"{place}: no {name}" for name in schema.get("required", ()) if name not in value]
        for name, item in value.items():
            other = schema.get("additionalProperties", {})
            if name not in schema.get("properties", {}) and other is False:
                found.append(f"{place}: unknown field {name}")
            else:
                found += problems(item, schema.get("properties", {}).get(name, other or {}), f"{place}.{name}")
    return found


def manifest(name: str) -> Any:
    return yaml.safe_load((ROOT / "examples/kubernetes" / name).read_text())


def container(job: Any, specs: str, role: str) -> Any:
    return job["spec"][specs][role]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("name", ["mpijob.yaml", "pytorchjob.yaml"])
def test_fields_are_known_and_volumes_are_there(name: str) -> None:
    job = manifest(name)
    assert problems(job, SCHEMA["$defs"][job["kind"]]) == []
    for replicas in job["spec"][{"MPIJob": "mpiReplicaSpecs", "PyTorchJob": "pytorchReplicaSpecs"}[job["kind"]]].values():
        pod = replicas["template"]["spec"]
        mounted = {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_mistakes_are_found() -> None:
    job = manifest("mpijob.yaml")
    job["spec"]["slotPerWorker"] = job["spec"].pop("slotsPerWorker")
    job["spec"]["runPolicy"]["cleanPodPolicy"] = "Never"
    del job["spec"]["mpiReplicaSpecs"]["Worker"]
    assert len(problems(job, SCHEMA["$defs"]["MPIJob"])) == 3


def test_the_operator_finds_the_container_of_a_pytorchjob() -> None:
    job = manifest("pytorchjob.yaml")
    for role in ("Master", "Worker"):
        assert container(job, "pytorchReplicaSpecs", role)["name"] == "pytorch"


def test_the_command_of_a_pytorchjob_is_taken() -> None:
    one = container(manifest("pytorchjob.yaml"), "pytorchReplicaSpecs", "Master")
    assert one["command"] == ["python", "-m", "zerotorch.run"]
    arguments = [word.replace("$(WORLD_SIZE)", "2").replace("$(RANK)", "1") for word in one["args"]]
    options = run._parser().parse_args(arguments)
    assert (options.nnodes, options.node_rank, options.n) == ("2", 1, 4)
    assert options.master_addr == f"{manifest('pytorchjob.yaml')['metadata']['name']}-master-0"


def test_the_script_of_an_mpijob_is_one(tmp_path: pathlib.Path) -> None:
    one = container(manifest("mpijob.yaml"), "mpiReplicaSpecs", "Launcher")
    assert one["command"] == ["zero", "launch"] and one["args"][one["args"].index("--hostfile") + 1] == "/etc/mpi/hostfile"
    script = one["args"][-1]
    said = tmp_path / "zero"
    said.write_text('#!/bin/sh\necho "$@"\n')
    said.chmod(0o755)
    for count, wanted in (("0", "--run-dir /runs/gpt"), ("1", "--resume /runs/gpt")):
        done = subprocess.run(
            ["sh", "-c", script],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "ZERO_RESTART_COUNT": count},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and wanted in done.stdout, done.stderr
