"""Which worker is this process? What TF_CONFIG and SLURM's variables say, and what is wrong with them."""

import json

import pytest

from bigtrain_nb.launch.cluster_spec import place

TWO = ["one:2222", "two:2222"]


def config(cluster, kind="worker", index=0, **more):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}, **more})}


@pytest.mark.parametrize("environment", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": " "}, {"SLURM_JOB_ID": "7"}])
def test_a_process_on_its_own(environment):
    assert place(environment) is None


@pytest.mark.parametrize("cluster", [{"worker": ["one:2222"]}, {"chief": ["one:2222"]}])
def test_a_single_worker_is_on_its_own(cluster):
    assert place(config(cluster, *cluster)) is None


def test_workers_only():
    for index in range(2):
        mine = place(config({"worker": TWO}, index=index, environment="cloud"))
        assert mine.addresses == TWO and mine.rank == mine.index == index and mine.port == 2222
        assert mine.source == "TF_CONFIG"
        assert json.loads(mine.tf_config()) == {"cluster": {"worker": TWO}, "task": {"type": "worker", "index": index}}


@pytest.mark.parametrize("order", [("chief", "worker"), ("worker", "chief")])
def test_a_chief_comes_first(order):
    cluster = {"chief": ["first:1"], "worker": TWO}
    cluster = {name: cluster[name] for name in order}
    ranks = [place(config(cluster, kind, index)).rank for kind, index in [("chief", 0), ("worker", 0), ("worker", 1)]]
    assert ranks == [0, 1, 2]
    mine = place(config(cluster, "worker", 1))
    assert mine.addresses == ["first:1", *TWO] and mine.port == 2222
    assert json.loads(mine.tf_config()) == {"cluster": cluster, "task": {"type": "worker", "index": 1}}


@pytest.mark.parametrize("address", ["127.0.0.1:1", "host.example.org:65535", "[::1]:4000", "train-0.train:2222"])
def test_addresses_that_are_fine(address):
    assert place(config({"worker": [address, "other:1"]})).port == int(address.rpartition(":")[2])


@pytest.mark.parametrize("text", ["{", "two workers", "'{}'", '{"cluster": }'])
def test_what_is_not_json(text):
    with pytest.raises(ValueError, match="TF_CONFIG is not JSON") as caught:
        place({"TF_CONFIG": text})
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        [],
        3,
        None,
        {},
        {"task": {"type": "worker", "index": 0}},
        {"cluster": {"worker": TWO}},
        {"cluster": {"worker": TWO}, "task": None},
        {"cluster": {"worker": TWO}, "task": ["worker", 0]},
        {"cluster": {}, "task": {"type": "worker", "index": 0}},
        {"cluster": TWO, "task": {"type": "worker", "index": 0}},
    ],
)
def test_what_has_not_both_parts(value):
    with pytest.raises(ValueError, match='TF_CONFIG must be like {"cluster": {"worker"') as caught:
        place({"TF_CONFIG": json.dumps(value)})
    assert json.dumps(value) in str(caught.value)


@pytest.mark.parametrize(
    ("cluster", "kind", "index", "message"),
    [
        ({"worker": TWO}, "worker", 2, "task index 2 must be from 0 to 1"),
        ({"worker": TWO}, "worker", -1, "task index -1 must be from 0 to 1"),
        ({"worker": TWO}, "worker", "0", "task index '0' must be from 0 to 1"),
        ({"worker": TWO}, "worker", None, "task index None must be from 0 to 1"),
        ({"worker": TWO}, "worker", True, "task index True must be from 0 to 1"),
        ({"worker": TWO}, "chief", 0, "task type 'chief' must be one of its cluster's: worker"),
        ({"worker": TWO}, None, 0, "task type None must be one of its cluster's: worker"),
        ({"worker": TWO}, ["worker"], 0, "task type ['worker'] must be one of its cluster's: worker"),
        ({"chief": ["a:1"], "worker": TWO}, "evaluator", 0, "task type 'evaluator' must be one of its"),
        ({"worker": TWO, "ps": ["p:1"]}, "worker", 0, "cluster has 'ps'; workers that train alike are"),
        ({"worker": TWO, "evaluator": ["e:1"]}, "worker", 0, "cluster has 'evaluator'"),
        ({"worker": []}, "worker", 0, "must have a list of addresses for 'worker', not []"),
        ({"worker": "one:1"}, "worker", 0, "must have a list of addresses for 'worker', not 'one:1'"),
        ({"worker": {"0": "one:1"}}, "worker", 0, "must have a list of addresses for 'worker'"),
        ({"chief": TWO, "worker": ["w:1"]}, "chief", 0, "cluster has 2 chiefs; one is allowed"),
        ({"worker": ["one", "two:1"]}, "worker", 0, "address 'one' must be host:port"),
        ({"worker": ["one:", "two:1"]}, "worker", 0, "address 'one:' must be host:port"),
        ({"worker": [":1", "two:1"]}, "worker", 0, "address ':1' must be host:port"),
        ({"worker": ["one:0", "two:1"]}, "worker", 0, "address 'one:0' must be host:port, with a port from 1 to 65535"),
        ({"worker": ["one:65536", "two:1"]}, "worker", 0, "address 'one:65536' must be host:port"),
        ({"worker": ["one:http", "two:1"]}, "worker", 0, "address 'one:http' must be host:port"),
        ({"worker": ["http://one:1", "two:1"]}, "worker", 0, "address 'http://one:1' must be host:port"),
        ({"worker": [1, "two:1"]}, "worker", 0, "address 1 must be host:port"),
        ({"worker": ["one:1", "one:1"]}, "worker", 0, "address 'one:1' is there twice"),
        ({"chief": ["one:1"], "worker": ["one:1"]}, "worker", 0, "address 'one:1' is there twice"),
    ],
)
def test_what_is_wrong_is_named(cluster, kind, index, message):
    with pytest.raises(ValueError) as caught:
        place(config(cluster, kind, index))
    assert message in str(caught.value) and str(caught.value).startswith("TF_CONFIG")


def slurm(nodes, tasks, count, rank, **more):
    """What srun sets for one task of a job step."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_STEP_NUM_TASKS": str(count),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
        **more,
    }


def in_slurm(*arguments, **more):
    return place(slurm(*arguments, **more))


@pytest.mark.parametrize(
    ("nodes", "tasks", "hosts"),
    [
        ("node1", "3", ["node1"] * 3),
        ("node[1-2]", "1(x2)", ["node1", "node2"]),
        ("node[01-03,7]", "1(x4)", ["node01", "node02", "node03", "node7"]),
        ("node[1-2]", "2(x2)", ["node1", "node1", "node2", "node2"]),
        ("node[1-3]", "3,1(x2)", ["node1", "node1", "node1", "node2", "node3"]),
        ("node[9-11]", "1,2,1", ["node9", "node10", "node10", "node11"]),
        ("zebra,ant[1-2]", "1(x3)", ["zebra", "ant1", "ant2"]),
        ("rack[1-2]node[08-09]", "1(x4)", ["rack1node08", "rack1node09", "rack2node08", "rack2node09"]),
        ("node[099-100]", "1(x2)", ["node099", "node100"]),
        ("gpu-a[1-2],login.example.org", "1(x3)", ["gpu-a1", "gpu-a2", "login.example.org"]),
    ],
)
def test_slurms_ranks_are_in_the_order_of_its_nodes(nodes, tasks, hosts):
    for rank in range(len(hosts)):
        mine = in_slurm(nodes, tasks, len(hosts), rank)
        assert [address.rpartition(":")[0] for address in mine.addresses] == hosts
        assert mine.rank == mine.index == rank and mine.task == "worker" and mine.source.startswith("SLURM")
        assert len(set(mine.addresses)) == len(hosts)
        assert json.loads(mine.tf_config())["cluster"] == {"worker": mine.addresses}


def test_all_tasks_of_a_job_agree_and_jobs_on_a_node_differ():
    tasks = [in_slurm("node1", "4", 4, rank) for rank in range(4)]
    assert all(mine.addresses == tasks[0].addresses for mine in tasks)
    assert len({mine.port for mine in tasks}) == 4
    others = [in_slurm("node1", "4", 4, 0, SLURM_JOB_ID=str(job)) for job in range(4712, 4722)]
    ports = [address for mine in [tasks[0], *others] for address in mine.addresses]
    assert len(set(ports)) == 44


@pytest.mark.parametrize("job", ["1", "65000", "1999999", "67043328"])
def test_ports_are_below_those_for_clients(job):
    mine = in_slurm("node1", "64", 64, 63, SLURM_JOB_ID=job)
    assert all(1024 < int(address.rpartition(":")[2]) < 32768 for address in mine.addresses)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("SLURM_JOB_ID", None, "SLURM_JOB_ID=None must be a whole number: let srun set it"),
        ("SLURM_JOB_ID", "4711_2", "SLURM_JOB_ID='4711_2' must be a whole number"),
        ("SLURM_PROCID", "first", "SLURM_PROCID='first' must be a whole number"),
        ("SLURM_PROCID", "-1", "SLURM_PROCID='-1' must be a whole number"),
        ("SLURM_PROCID", "2", "SLURM_PROCID='2' must be below 2: SLURM_STEP_TASKS_PER_NODE='1(x2)'"),
        ("SLURM_STEP_NODELIST", None, "SLURM_STEP_NODELIST=None must be names of nodes, like node[1-3],login"),
        ("SLURM_STEP_NODELIST", "node[1-", "SLURM_STEP_NODELIST='node[1-' must be names of nodes"),
        ("SLURM_STEP_NODELIST", "node[a-b]", "SLURM_STEP_NODELIST='node[a-b]' must be names of nodes"),
        ("SLURM_STEP_NODELIST", "node[1-3]", "for each of the 3 nodes in SLURM_STEP_NODELIST='node[1-3]'"),
        ("SLURM_STEP_TASKS_PER_NODE", None, "SLURM_STEP_TASKS_PER_NODE=None must be numbers of tasks, like 2(x3),1"),
        ("SLURM_STEP_TASKS_PER_NODE", "one", "SLURM_STEP_TASKS_PER_NODE='one' must be numbers of tasks"),
        ("SLURM_STEP_TASKS_PER_NODE", "2", "SLURM_STEP_TASKS_PER_NODE='2' must have a number of at most 64 for each"),
        ("SLURM_STEP_TASKS_PER_NODE", "1,65", "SLURM_STEP_TASKS_PER_NODE='1,65' must have a number of at most 64"),
    ],
)
def test_what_is_wrong_with_slurms_variables_is_named(name, text, message):
    variables = slurm("node[1-2]", "1(x2)", 2, 0, **({name: text} if text else {}))
    if text is None:
        del variables[name]
    with pytest.raises(ValueError) as caught:
        place(variables)
    assert message in str(caught.value)


def test_slurms_variables_for_gpus_make_no_difference():
    gpus = {"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_STEP_GPUS": "0,1,2,3"}
    assert in_slurm("node[1-2]", "2(x2)", 4, 3, **gpus) == in_slurm("node[1-2]", "2(x2)", 4, 3)


@pytest.mark.parametrize(("rank", "node"), [(0, "node1"), (1, "node1"), (2, "node2"), (3, "node2")])
def test_a_task_checks_that_it_is_where_it_is_expected(rank, node):
    assert in_slurm("node[1-2]", "2(x2)", 4, rank, SLURMD_NODENAME=node).rank == rank
    with pytest.raises(ValueError, match=f"SLURM has put task {rank} on node3, not on {node}.*distribution=block"):
        in_slurm("node[1-2]", "2(x2)", 4, rank, SLURMD_NODENAME="node3")


def test_one_task_of_slurm_is_on_its_own():
    assert in_slurm("node1", "1", 1, 0) is None


def test_tf_config_comes_before_slurm():
    mine = place(slurm("node[1-2]", "1(x2)", 2, 1) | config({"worker": TWO}))
    assert mine.addresses == TWO and mine.rank == 0


def test_sbatch_without_srun_is_one_process():
    inside = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NODELIST": "node[1-2]", "SLURM_NTASKS": "2"}
    assert place(inside) is None
