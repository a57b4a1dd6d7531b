"""Secure sums whose parties are killed at random: nothing is sent that is not charged, or twice."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from federated_runs import StartedRun, attempts, start_run
from federation_faults import cut_power, eventually, server_of, site_names, workers_of
from federations import REAL_PROCESSES, RunningFederation, mischievous_worker, rehearsal
from masked_federations import masked_table, permit
from mischievous_worker import SENT_STEPS

from sottovoce.deployment.machines.processes import state_of
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger

pytest.importorskip("flwr")
pytestmark = REAL_PROCESSES
SITES = site_names(4)
KILLS = int(os.environ.get("SOTTOVOCE_TEST_KILLS", "5"))
SEED = int(os.environ.get("SOTTOVOCE_TEST_SEED", "1"))
ROUNDS = max(6, KILLS // 2)


def kill_somebody(running: RunningFederation, run: StartedRun, luck: random.Random) -> str:
    """Kill a random party, and start again what no keeper restarts; gives who it was."""
    site = luck.choice(SITES)
    victim = luck.choice(["worker", "worker", "worker", "server", "node", "link"])
    match victim:
        case "worker":
            with contextlib.suppress(ProcessLookupError):
                for pid in workers_of(running, site):
                    os.kill(pid, signal.SIGKILL)
        case "server":
            with contextlib.suppress(ValueError, ProcessLookupError):  # it may have ended
                os.kill(server_of(running), signal.SIGKILL)
        case "node":
            cut_power(running.site(site).node_folder)
            running.start_node(site)
        case "link":
            cut_power(running.federation.link_folder)
            running.start_link()
    return victim


def go_on(run: StartedRun) -> StartedRun:
    """Resume a run that has ended too early."""
    status = run.status()
    if status.has_ended and status.state != "finished:completed":
        return run.again()
    return run


def sent(running: RunningFederation, site: str, step: str) -> Counter[int]:
    """How many different messages of a step a site was about to send in each round."""
    log = running.site(site).folder / SENT_STEPS
    lines = {tuple(line.split()) for line in log.read_text().splitlines()}
    return Counter(int(number) for number, name, _ in lines if name == step)


def test_killed_parties_send_nothing_uncharged_and_nothing_twice(tmp_path: Path) -> None:
    luck = random.Random(SEED)
    killed: Counter[str] = Counter()
    with rehearsal(tmp_path, sites=SITES, start=False, stubs=mischievous_worker()) as running:
        running.start_link()
        for site in SITES:
            permit(running, site, retries=10 * KILLS)
            running.start_node(site)
        waiting = {"deadline_seconds": 60.0, "wait_seconds": 120.0, "idle_rounds": 1000}
        privacy = {"level": "client", "clip_norm": 1.0, "epsilon": 900.0, "delta": 1e-5}
        mechanism = {"kind": "clamped_sign", "logit_bound": 0.5, "noise_multiplier": 1.0}
        table = masked_table(
            "killed",
            rounds=ROUNDS,
            sites=SITES,
            deployment=waiting,
            privacy=privacy,
            mechanism=mechanism,
        )
        run = start_run(running, table, tmp_path / "run")
        run.wait_for_round(1)
        for _ in range(KILLS):
            time.sleep(luck.uniform(0.0, 6.0))
            killed[kill_somebody(running, run, luck)] += 1
            eventually(lambda: state_of(running.federation.link_folder) is not None)
            run = go_on(run)
            if run.status().state == "finished:completed":
                break
        ends = time.monotonic() + 600.0
        while (status := run.status()).state != "finished:completed":
            assert time.monotonic() < ends, status
            time.sleep(1.0)
            run = go_on(run)
        rows = run.finish()
        print(f"killed {dict(killed)}; received {[row['clients_received'] for row in rows]}")
        assert all(row["clients_received"] in (0, 3, 4) for row in rows)
        for site in SITES:
            path = running.site(site).folder / LEDGER_NAME
            charged = attempts(path, run.name)
            for step in ("input", "sign", "answer"):
                for number, count in sent(running, site, step).items():
                    assert count <= charged.get((site, number), 0), (site, number, step)
            with Ledger(path) as ledger:
                assert ledger.verify() == []
        server = attempts(run.out / LEDGER_NAME, run.name)
        for site in SITES:
            for key, count in attempts(running.site(site).folder / LEDGER_NAME, run.name).items():
                assert count <= server[key], key
