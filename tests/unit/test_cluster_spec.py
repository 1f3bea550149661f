"""Which worker is this process? Reading TF_CONFIG, SLURM's and other variables, and their errors."""

import json

import pytest

from bigtrain_nb.launch.cluster_spec import COUNTS, cluster_spec, why_alone

TWO = ["one:2222", "two:2222"]


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
        (
            config({"chief": TWO[:1], "ps": TWO[1:]}, "chief"),
            "has parameter servers (ps): bt.strategy() is for workers that train synchronously",
        ),
        (config({"worker": TWO, "evaluator": ["three:1"]}), "has an evaluator, which does not take part in training"),
        (config({"helper": TWO}, "helper"), "the task type 'helper'; it must be one of chief, worker"),
        (config({"worker": TWO}, index="1"), "has the index '1': it must be an integer"),
        (config({"worker": TWO}, index=2), "is worker 2, but there are 2 of that kind, with indices from 0"),
        (config({"worker": TWO}, index=-1), "is worker -1, but there are 2"),
        (config({"chief": TWO[:1]}, "worker"), "task has type 'worker', but its cluster has chief"),
        (config({"chief": TWO}, "chief"), "has 2 chiefs: keep one, and call the others worker"),
        (config({"worker": ["one", "two:2222"]}), "address 'one' must be a host and a port"),
        (config({"worker": ["one:2222", "two:99999"]}), "address 'two:99999' must be a host and a port"),
        (config({"worker": [*TWO, TWO[0]]}), "has the address one:2222 twice"),
        ({"TF_CONFIG": config({"worker": TWO})["TF_CONFIG"].replace(" 0}", " $(TASK_INDEX)}")}, "has $(TASK_INDEX), "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_in_a_tf_config_has_a_sentence_of_its_own(environment, sentence):
    with pytest.raises(ValueError) as caught:
        cluster_spec(environment)
    assert str(caught.value).startswith("TF_CONFIG") and sentence in str(caught.value)


@pytest.mark.parametrize("name", COUNTS)
def test_one_of_several_that_is_not_told_where_all_are_does_not_train_alone(name):
    with pytest.raises(
        ValueError, match=rf"^{name}=4 says that this is one of several processes.*: set TF_CONFIG in each"
    ):
        cluster_spec({name: "4", "RANK": "0"})
    assert cluster_spec({name: "1"}) is None
    assert cluster_spec({name: "4", **config({"worker": TWO})}).source == "TF_CONFIG"


def in_slurm(nodes, count, rank, step="4711.0", **more):
    """Return the cluster spec that a task reads from srun's variables."""
    job, _, number = step.partition(".")
    variables = {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": number,
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_NUM_TASKS": str(count),
        "SLURM_PROCID": str(rank),
    }
    return cluster_spec(variables | more)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("zebra,ant", "zebra"),
        ("node[9-11],login", "node9"),
        ("node[009,011]", "node009"),
        ("rack[2-3]node[1,4-5]-ib,login", "rack2node1-ib"),
    ],
)
def test_slurms_first_node_is_told_without_a_command_of_slurm(nodes, first, monkeypatch):
    monkeypatch.setenv("PATH", "")  # as in a container
    places = [in_slurm(nodes, 4, rank) for rank in range(4)]
    assert {place.chief for place in places} == {places[0].chief} and places[0].chief.startswith(f"{first}:")
    assert [place.rank for place in places] == [0, 1, 2, 3] and places[0].source == "SLURM's variables"


def test_jobs_and_steps_on_one_node_meet_at_ports_of_their_own_below_those_for_clients():
    chiefs = [in_slurm("node1", 4, 0, f"{job}.{step}").chief for job in (4711, 4712, 67043328) for step in range(3)]
    assert len(set(chiefs)) == 9
    assert all(20_000 <= int(chief.rpartition(":")[2]) < 32_000 for chief in chiefs)


def test_the_first_task_checks_that_it_is_where_the_others_look_for_it():
    with pytest.raises(
        ValueError, match="SLURM has placed task 0 on node2, .* first node, node1: .*distribution=arbitrary"
    ):
        in_slurm("node1,node2", 2, 0, SLURMD_NODENAME="node2")
    assert in_slurm("node1,node2", 4, 1, SLURMD_NODENAME="node2").rank == 1  # cyclic


def test_tf_config_comes_before_slurm_and_slurm_before_a_count_of_another_launcher():
    mine = in_slurm("node1,node2", 2, 1, **config({"worker": TWO}))
    assert mine.addresses == TWO and mine.rank == 0
    assert in_slurm("node1,node2", 2, 1, WORLD_SIZE="4").source == "SLURM's variables"


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, "This SLURM job has 4 tasks, but srun did not start"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, "This SLURM job has 2 nodes, but srun did not start"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}, None),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, None),
        ({}, None),
    ],
)
def test_who_trains_alone_by_mistake_is_told(environment, sentence):
    said = why_alone(environment)
    assert said is None if sentence is None else said.startswith(sentence)
