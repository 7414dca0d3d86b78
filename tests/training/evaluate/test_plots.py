"""A colour means the same thing in every panel."""

from training.evaluate.experiments import read_experiments
from training.evaluate.plots import colours


def test_a_run_looks_the_same_everywhere_and_the_runs_of_a_panel_differ():
    listed = read_experiments()
    looks = colours([dict.fromkeys(runs) for runs in (*listed.groups.values(), *listed.curves.values())])
    for runs in listed.groups.values():
        assert len({looks[run] for run in runs}) == len(runs)
    assert looks["mtp"] != looks["dfly"]


def test_variants_have_shades_of_their_network():
    looks = colours(
        [dict.fromkeys(runs) for runs in (("net", "other"), ("net", "net-small", "net+more"), ("other-x",))]
    )
    red = looks["net"]
    assert len(set(looks.values())) == len(looks) == 5
    for variant in ("net-small", "net+more"):
        paler = [(v - r) for v, r in zip(looks[variant], red, strict=True)]
        assert all(step >= 0 for step in paler) or all(step <= 0 for step in paler)
