"""Job files of DLRover and MindCluster: converted, with a note for each field that means nothing here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import SpecError
from holdfast.spec.strategy import Strategy
from holdfast.spec.submit import SubmitSpec, load_submit

ELASTIC = """\
apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
metadata:
  name: chaos-test
  namespace: dlrover
spec:
  distributionStrategy: AllreduceStrategy
  optimizeMode: single-job
  envs:
    - name: SHARED
      value: "1"
  replicaSpecs:
    dlrover-master:
      replicas: 1
    worker:
      restartCount: 2
      replicas: 4
      template:
        spec:
          restartPolicy: Always
          volumes: [{name: data}]
          containers:
            - name: main
              image: somewhere/mnist
              command:
                - /bin/bash
                - -c
                - "(bash start_chaos.sh cpu-overload &) && \\
                  LEVEL=info dlrover-run --network-check --nnodes=3:$WORKER_NUM \\
                  --nproc_per_node=2 --max_restarts=3  --rdzv_conf pend_timeout=90,node_unit=2 \\
                  train.py --num_epochs 5 --data /data/mnist"
              env:
                - name: OWN
                  value: x
                - name: POD_IP
                  valueFrom: {fieldRef: {fieldPath: status.podIP}}
              resources:
                limits: {cpu: "2", memory: 4Gi, nvidia.com/gpu: 1}
                requests: {cpu: "1"}
"""

ASCEND = """\
apiVersion: mindxdl.gitee.com/v1
kind: AscendJob
metadata:
  name: pretrain
  labels:
    framework: pytorch
    fault-scheduling: "grace"
    fault-retry-times: "3"
    pod-rescheduling: "on"
    subHealthyStrategy: "hotSwitch"
  annotations:
    recover-strategy: "elastic-training, retry,magic,retry"
    wait-reschedule-timeout: "600"
spec:
  schedulerName: volcano
  runPolicy:
    backoffLimit: 5
    schedulingPolicy: {minAvailable: 2, queue: default}
  replicaSpecs:
    Master:
      replicas: 1
      template: &pod
        spec:
          terminationGracePeriodSeconds: 40
          containers:
            - name: ascend
              command: [/bin/bash, -c]
              args:
                - |
                  cd /job/code
                  bash scripts/train_start.sh /job/code pretrain_gpt.py
              ports:
                - {containerPort: 9601, name: taskd-port}
    Worker:
      replicas: 2
      template: *pod
"""

VOLCANO = """\
apiVersion: v1
kind: ConfigMap
data: {}
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata:
  name: vcjob
  labels: {fault-scheduling: "off"}
spec:
  minAvailable: 2
  maxRetry: 4
  tasks:
    - name: default
      replicas: 2
      template:
        spec:
          containers:
            - command: [torchrun, --nproc-per-node, "2", -m, pkg.train]
"""

Load = Callable[..., SubmitSpec]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")

    def read(text: str, *flags: str) -> SubmitSpec:
        (tmp_path / "job.yaml").write_text(text)
        return load_submit(["job.yaml", *flags])

    return read


def about(spec: SubmitSpec, *words: str) -> str:
    """The one note that has all these words."""
    found = [note for note in spec.notes if all(word in note for word in words)]
    assert len(found) == 1, f"{words}: {spec.notes}"
    return found[0]


def with_variables(text: str, variables: dict[str, str]) -> str:
    """A file whose containers have these variables too."""
    listed = [f'                - {{name: {name}, value: "{value}"}}' for name, value in variables.items()]
    return text.replace("              ports:\n", "\n".join(["              env:", *listed, "              ports:\n"]))


def test_an_elastic_job(load: Load, tmp_path: Path):
    spec = load(ELASTIC)
    assert (spec.roles[0].name, spec.roles[0].min_nodes, spec.roles[0].max_nodes) == ("worker", 3, 4)
    assert (spec.roles[0].cpu, spec.roles[0].memory_bytes) == (2, 4 << 30)
    assert spec.roles[0].command.words == (str(tmp_path / "train.py"), "--num_epochs", "5", "--data", "/data/mnist")
    assert spec.roles[0].env == {"SHARED": "1", "OWN": "x", "LEVEL": "info"}
    assert "--nproc-per-node=2" in spec.roles[0].run_flags
    assert (spec.roles[0].rules.max_restarts, spec.roles[0].rules.join_timeout_s) == (3, 90)
    assert spec.roles[0].rules.restart_window_s == 3600, "as torchrun's flag is taken elsewhere"
    assert spec.relaunch.limits == {"killed": 100, "hardware": 2, "software": 2, "out_of_memory": 2, "unknown": 2}
    assert spec.found["roles.worker.memory"].source == "job.yaml, line 38"


def test_what_means_nothing_of_an_elastic_job_has_a_note_each(load: Load):
    spec = load(ELASTIC)
    about(spec, "line 5: metadata.namespace")
    about(spec, "spec.optimizeMode", "tuned")
    about(spec, "dlrover-master", "submitter runs the master")
    about(spec, "containers.0.image", "installed on this machine")
    about(spec, "spec.volumes", "files of this machine")
    about(spec, "template.spec.restartPolicy")
    about(spec, "'bash start_chaos.sh cpu-overload' is not run")
    about(spec, "node_unit")
    about(spec, "POD_IP", "no value")
    about(spec, "nvidia.com/gpu", "devices")
    about(spec, "requests.cpu", "the limit counts")
    assert not [note for note in spec.notes if "replicas" in note]
    assert spec.roles[0].rules.network_check, "dlrover-run --network-check"


def test_of_two_names_of_one_timeout_the_last_counts_and_a_note_says_so(load: Load):
    spec = load(ELASTIC.replace("pend_timeout=90", "join_timeout=60,pend_timeout=90"))
    assert spec.roles[0].rules.join_timeout_s == 90
    about(spec, "--rdzv-conf pend_timeout counts")


def test_flags_win_over_a_converted_file_too(load: Load):
    spec = load(ELASTIC, "--nodes", "1:2")
    assert (spec.roles[0].min_nodes, spec.roles[0].max_nodes) == (1, 2)
    assert spec.found["roles.worker.nodes"].overruled


def test_a_command_that_asks_for_more_nodes_than_there_are(load: Load):
    spec = load(ELASTIC.replace("3:$WORKER_NUM", "2:9"))
    assert (spec.roles[0].min_nodes, spec.roles[0].max_nodes) == (2, 4)
    about(spec, "2:9", "2:4")


def test_an_ascend_job(load: Load):
    spec = load(ASCEND)
    assert (spec.roles[0].min_nodes, spec.roles[0].max_nodes) == (2, 3), "the least that is scheduled, and all pods"
    assert spec.roles[0].rules.strategies == (Strategy.RETRY, Strategy.ELASTIC_TRAINING, Strategy.EXIT)
    assert about(spec, "'magic'", "left out")
    assert spec.roles[0].rules.join_timeout_s == 270
    assert about(spec, "wait-reschedule-timeout: 600", "270 is used")
    assert spec.roles[0].rules.max_restarts == 3, "fault-retry-times is below backoffLimit"
    assert spec.shutdown_s == 40
    assert spec.roles[0].command.words[:2] == ("bash", "-c")
    about(spec, "Worker", "is run as it is by every worker")
    about(spec, "fault-scheduling", "anyway")
    about(spec, "pod-rescheduling", "anyway")
    about(spec, "subHealthyStrategy", "'hotSwitch' means here")
    assert spec.roles[0].rules.exclude_straggler
    about(spec, "labels.framework")
    about(spec, "schedulingPolicy.queue")


@pytest.mark.parametrize(
    ("asked", "used", "noted"),
    [("30", 30, 0), ("270", 270, 0), ("29", 30, 1), ("-5", 30, 1), ("271", 270, 1), ("soon", 270, 1), ("1.5", 270, 1)],
)
def test_the_wait_for_another_node_is_clamped(load: Load, asked: str, used: int, noted: int):
    spec = load(ASCEND.replace('"600"', f'"{asked}"'))
    assert spec.roles[0].rules.join_timeout_s == used
    assert len([note for note in spec.notes if "wait-reschedule-timeout" in note]) == noted


@pytest.mark.parametrize(
    ("asked", "used", "noted"),
    [("30", 630, 1), ("1800", 2400, 1), ("29", 630, 2), ("1801", 2400, 2), ("soon", 780, 2)],
)
def test_the_limit_of_a_repair_is_clamped(load: Load, asked: str, used: int, noted: int):
    name = "TTP_NORMAL_ACTION_TIME_LIMIT"
    spec = load(with_variables(ASCEND, {name: asked}))
    assert spec.roles[0].rules.repair_timeout_s == used
    assert spec.roles[0].env[name] == asked
    about(spec, name, "for a whole repair here")
    assert len([note for note in spec.notes if ".env." in note]) == noted


def test_nobody_waits_for_a_decision_here(load: Load):
    spec = load(with_variables(ASCEND, {"MINDIO_WAIT_MINDX_TIME": "60"}))
    about(spec, "MINDIO_WAIT_MINDX_TIME does nothing here", "timeouts.join")
    assert spec.roles[0].rules.repair_timeout_s == 1800


@pytest.mark.parametrize("retries", [2, 3, 4])
def test_the_least_number_of_retries_counts(load: Load, retries: int):
    spec = load(ASCEND.replace("backoffLimit: 5", f"backoffLimit: {retries}"))
    assert spec.roles[0].rules.max_restarts == min(retries, 3)
    assert spec.roles[0].rules.restart_window_s is None, "none is forgiven"
    assert spec.found["recover.restart_window"].source == spec.found["recover.max_restarts"].source


def test_without_fault_scheduling_nobody_is_replaced_and_with_force_nobody_lingers(load: Load):
    assert set(load(ASCEND.replace('"grace"', '"off"')).relaunch.limits.values()) == {0}
    assert load(ASCEND.replace('"grace"', '"force"')).shutdown_s == 1


def test_recovery_that_is_switched_off_leaves_exit(load: Load):
    spec = load(ASCEND.replace("framework: pytorch", "process-recover-enable: 'off'"))
    assert spec.roles[0].rules.strategies == (Strategy.EXIT,)
    about(spec, "recover-strategy", "process-recover-enable is off")


EVALUATOR = """\
    ps:
      replicas: 2
    chief:
      replicas: 1
      template: {spec: {containers: [{command: [dlrover-run, --nnodes=5, chief.py]}]}}
    evaluator:
      replicas: 1
      restartCount: 1
      template:
        spec:
          containers:
            - command: [python, eval.py]
              resources: {limits: {memory: 1Gi}}
"""


def test_replicas_that_train_by_themselves_are_roles_and_a_chief_is_a_worker(load: Load, tmp_path: Path):
    for name in ("eval.py", "chief.py"):
        (tmp_path / name).write_text("")
    spec = load(ELASTIC + EVALUATOR)
    worker, evaluator = spec.roles
    assert (worker.name, worker.min_nodes, worker.max_nodes) == ("worker", 3, 5), "with the chief"
    assert worker.command.words[0] == str(tmp_path / "train.py")
    assert (evaluator.name, evaluator.max_nodes, evaluator.memory_bytes) == ("evaluator", 1, 1 << 30)
    assert evaluator.command.words == (str(tmp_path / "eval.py"),)
    assert evaluator.env["SHARED"] == "1"
    assert spec.relaunch.limits["software"] == 2, "the first role's"
    about(spec, "replicaSpecs.ps", "no parameter servers")
    about(spec, "replicaSpecs.chief is a node of the role worker")
    about(spec, "replicaSpecs.chief: its command does nothing here")
    about(spec, "evaluator.restartCount", "relaunch.software", "the first role's counts")


def test_a_volcano_job_among_other_documents(load: Load):
    spec = load(VOLCANO)
    assert (spec.roles[0].min_nodes, spec.roles[0].max_nodes) == (2, 2)
    assert spec.roles[0].command.how == ("--module",)
    assert spec.roles[0].command.words == ("pkg.train",)
    assert (spec.roles[0].rules.max_restarts, spec.roles[0].rules.restart_window_s) == (4, None)
    about(spec, "line 1", "ConfigMap")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Pod\n", ("kind", "Pod", "ElasticJob, AscendJob, Job")),
        (
            ELASTIC.replace("AllreduceStrategy", "ParameterServerStrategy"),
            ("line 7", "ParameterServer", "no parameter servers"),
        ),
        (ELASTIC.replace("--nproc_per_node=2", "--nproc_per_node=none"), ("line 26", "'none'", "auto, cpu")),
        (ELASTIC.replace("--nproc_per_node=2", "--wrong=2"), ("containers.0.command", "--wrong")),
        (ELASTIC.replace("worker:", "ps:"), ("line 13", "dlrover-master, ps", "replicas that train")),
        (ELASTIC.replace("worker:", "my_worker:"), ("line 16", "my_worker", "small letters")),
        (ELASTIC.replace("replicas: 4", "replicas: x"), ("worker.replicas", "'x'", "whole number")),
        (ELASTIC.replace("4Gi", "lots"), ("limits.memory", "'lots'", "4Gi")),
        (ASCEND.replace('"3"', '"x"'), ("fault-retry-times", "'x'", "whole number")),
        (ASCEND.replace("hotSwitch", "pray"), ("subHealthyStrategy", "'pray'", "graceExit")),
        (VOLCANO.replace("batch.volcano.sh", "batch"), ("apiVersion", "batch.volcano.sh")),
    ],
)
def test_what_cannot_be_converted_is_told_with_its_place(load: Load, text: str, words: tuple[str, ...]):
    with pytest.raises(SpecError) as error:
        load(text)
    for word in ("job.yaml", *words):
        assert word in str(error.value)
