"""Which worker is this process? What TF_CONFIG and SLURM's variables say, and what is wrong with them."""

import json

import pytest

from bigtrain_nb.launch.cluster_spec import cluster_spec

TWO = ["one:2222", "two:2222"]
TASK = {"type": "worker", "index": 0}


def config(cluster, kind="worker", index=0):
    value = {"cluster": cluster, "task": {"type": kind, "index": index}, "environment": "cloud"}
    return {"TF_CONFIG": json.dumps(value)}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TF_CONFIG": " "},
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"},
        config({"worker": TWO[:1]}),
        config({"chief": TWO[:1]}, "chief"),
        config({"chief": TWO[:1], "worker": []}, "chief"),
    ],
    ids=["nothing", "empty", "sbatch without srun", "one worker", "one chief", "one chief and no worker"],
)
def test_a_process_on_its_own(environment):
    assert cluster_spec(environment) is None


def test_a_chief_comes_first():
    cluster = {"worker": TWO, "chief": ["[::1]:4000"]}
    tasks = [("chief", 0), ("worker", 0), ("worker", 1)]
    specs = [cluster_spec(config(cluster, *task)) for task in tasks]
    assert [mine.rank for mine in specs] == [0, 1, 2]
    assert [mine.port for mine in specs] == [4000, 2222, 2222]
    assert specs[2].addresses == ["[::1]:4000", *TWO]
    assert json.loads(specs[2].tf_config) == {"cluster": cluster, "task": {"type": "worker", "index": 1}}


@pytest.mark.parametrize("text", ['"two workers"', "[" * 100_000, "{}", '{"cluster": {"worker": "one:1"}, "task": {}}'])
def test_a_tf_config_of_another_shape_is_shown_beside_a_good_one(text):
    with pytest.raises(ValueError) as caught:
        cluster_spec({"TF_CONFIG": text})
    assert str(caught.value).startswith('TF_CONFIG must be JSON like {"cluster": {"worker"')
    assert str(caught.value).endswith(text[:1000])


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (config({"chief": TWO[:1], "ps": TWO[1:]}, "chief"), "has parameter servers (ps) and no worker"),
        (config({"worker": TWO}, "evaluator"), "has an evaluator, which takes no part"),
        (config({"worker": TWO, "evaluator": ["three:1"]}), "has an evaluator, which takes no part"),
        (config({"master": TWO[:1], "worker": TWO[1:]}), 'the name of TensorFlow 1: call it "chief"'),
        (config({"helper": TWO}, "helper"), "a task of the kind 'helper'; a task is one of chief, worker, ps"),
        (config({"worker": TWO}, index="1"), "has the index '1': it must be a whole number"),
        (config({"worker": TWO}, index=True), "has the index True: it must be a whole number"),
        (config({"worker": TWO}, index=2), "is worker 2, but there are 2 of that kind, counted from 0"),
        (config({"worker": TWO}, index=-1), "is worker -1, but there are 2"),
        (config({"chief": TWO[:1]}, "worker"), "task is a 'worker'; its cluster has chief"),
        (config({"chief": TWO}, "chief"), "has 2 chiefs: one of them leads"),
        (config({"worker": ["one", "two:2222"]}), "address 'one' must be a host and a port"),
        (config({"worker": ["one:2222", "two:99999"]}), "address 'two:99999' must be a host and a port"),
        (config({"worker": [*TWO, TWO[0]]}), "has the address one:2222 twice"),
        ({"TF_CONFIG": '{"sparseCluster": {"worker": {"0": "one:2222"}}, "task": {}}'}, "enableDynamicWorker: false"),
        ({"TF_CONFIG": config({"worker": TWO})["TF_CONFIG"].replace(" 0}", " $(TASK_INDEX)}")}, "holds $(TASK_INDEX)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_in_a_tf_config_has_a_sentence_of_its_own(environment, sentence):
    with pytest.raises(ValueError) as caught:
        cluster_spec(environment)
    assert str(caught.value).startswith("TF_CONFIG") and sentence in str(caught.value)


def in_slurm(nodes, tasks, rank, job=4711, **more):
    """Return what a task finds in the variables that srun sets."""
    variables = {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_PROCID": str(rank),
    }
    return cluster_spec(variables | more)


@pytest.fixture
def scontrol(monkeypatch, tmp_path):
    """Put a stand-in for SLURM's command in its place; it knows the nodes of one list."""
    path = tmp_path / "scontrol"
    path.write_text('#!/bin/sh\n[ "$*" = "show hostnames node[9-11],login" ] && echo node9 node10 node11 login\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return path


@pytest.mark.parametrize(
    ("nodes", "tasks", "hosts"),
    [
        ("zebra,ant", "1,2", ["zebra", "ant", "ant"]),
        ("node[9-11],login", "1,2(x2),1", ["node9", "node10", "node10", "node11", "node11", "login"]),
    ],
)
def test_slurms_ranks_are_in_the_order_of_its_nodes(nodes, tasks, hosts, scontrol):
    for rank in range(len(hosts)):
        mine = in_slurm(nodes, tasks, rank, SLURMD_NODENAME=hosts[rank])
        assert [address.rpartition(":")[0] for address in mine.addresses] == hosts
        assert mine.rank == rank and mine.source.startswith("SLURM")
        assert len(set(mine.addresses)) == len(hosts)
        assert json.loads(mine.tf_config) == {
            "cluster": {"worker": mine.addresses},
            "task": {"type": "worker", "index": rank},
        }


def test_all_tasks_of_a_job_agree_jobs_on_a_node_differ_and_ports_are_below_those_for_clients():
    tasks = [in_slurm("node1", "4", rank) for rank in range(4)]
    assert all(mine.addresses == tasks[0].addresses for mine in tasks)
    addresses = []
    for job in [*range(4711, 4722), 65000, 67043328]:
        addresses += in_slurm("node1", "4", 0, job).addresses
    assert len(set(addresses)) == 52
    assert all(1024 < int(address.rpartition(":")[2]) < 32768 for address in addresses)


def test_the_jobs_file_can_draw_the_first_port():
    mine = in_slurm("node1,node2", "1(x2)", 1, BIGTRAIN_PORT="23456")
    assert mine.addresses == ["node1:23456", "node2:23457"]


def test_a_task_checks_that_it_is_where_it_is_expected():
    with pytest.raises(ValueError, match="SLURM has put task 2 on node3, not on node2.*distribution=block"):
        in_slurm("node1,node2", "2(x2)", 2, SLURMD_NODENAME="node3")


def test_tf_config_comes_before_slurm():
    mine = in_slurm("node1,node2", "1(x2)", 1, **config({"worker": TWO}))
    assert mine.addresses == TWO and mine.rank == 0
