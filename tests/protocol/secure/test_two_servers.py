"""The honest path of a secure sum and of a shuffle with two servers."""

import secrets
from pathlib import Path

import numpy as np
import two_servers
from two_servers import CLOSES, CONFIRM_BY, OPENS, codes_of


def test_the_sum_of_all_clients_is_exact(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with two_servers.world_in(tmp_path) as world:
        announcement = world.announce()
        codes = {name: codes_of(rng) for name in world.names}
        for name in world.names:
            world.relay.report(world.sum_report(name, announcement, codes[name]), OPENS)
        accepted = world.collector.accept(world.relay.frozen(CLOSES))
        sums = world.collector.release(world.relay.accepted(accepted))
        for uplink, total in enumerate(sums):
            np.testing.assert_array_equal(total, sum(codes[n][uplink] for n in world.names))


def test_all_messages_of_a_shuffle_are_opened_in_sorted_order(tmp_path: Path) -> None:
    with two_servers.world_in(tmp_path) as world:
        announcement = world.announce_shuffle()
        clients = {name: world.shuffler(name) for name in world.names}
        payloads = {name: secrets.token_bytes(16) for name in world.names}
        sent = {
            name: world.shuffle_report(client, announcement, payloads[name])
            for name, client in clients.items()
        }
        world.relay.reports(list(sent.values()), OPENS)
        world.relay.root(world.collector.root(world.relay.shuffled_list(CLOSES)))
        for name, client in clients.items():
            world.relay.confirmation(world.confirm(client, sent[name]))
        opened = world.collector.open(world.relay.confirmations(CONFIRM_BY))
        assert opened == sorted(payloads.values())


def test_the_digests_of_a_list_are_in_memory_once_however_many_read_them(tmp_path: Path) -> None:
    with two_servers.world_in(tmp_path) as world:
        announcement = world.announce_shuffle()
        clients = [world.shuffler(name) for name in world.names]
        reports = [world.shuffle_report(client, announcement, bytes(16)) for client in clients]
        world.relay.reports(reports, OPENS)
        world.relay.root(world.collector.root(world.relay.shuffled_list(CLOSES)))
        assert world.relay.leaves() is world.relay.leaves()
