"""The honest path of a secure sum and of a shuffle with two servers."""

import secrets
from pathlib import Path

import numpy as np
import two_servers
from two_servers import CLOSES, CONFIRM_BY, OPENS, codes_of

from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.masks import MaskedSum
from sottovoce.protocol.secure.shuffle_messages import ShuffleReport, payload_info
from sottovoce.protocol.secure.two_server_client import mask_key
from sottovoce.protocol.secure.two_server_messages import SumReport


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


def test_relay_and_collector_together_read_the_codes_of_each_client(tmp_path: Path) -> None:
    """So against both of them only the local epsilon holds."""
    rng = np.random.default_rng(0)
    with two_servers.world_in(tmp_path) as world:
        found = Announcement.read(world.announce())
        codes = {name: codes_of(rng) for name in world.names}
        sent = {name: world.sum_report(name, found.to_bytes(), codes[name]) for name in codes}
        world.relay.reports(list(sent.values()), OPENS)
        world.collector.accept(world.relay.frozen(CLOSES))
        assert world.collector._open is not None
        for name, seed in world.collector._open.seeds.items():
            one = MaskedSum(found.attempt.dimension, found.attempt.bits)
            one.add_packed(SumReport.read(sent[name]).vectors[: one.packed_bytes])
            one.subtract_mask(mask_key(seed, found.ann, name, 0))
            np.testing.assert_array_equal(one.values(), codes[name][0])
    (tmp_path / "shuffle").mkdir()
    with two_servers.world_in(tmp_path / "shuffle") as world:
        shuffled = Announcement.read(world.announce_shuffle())
        report = world.shuffle_report(
            world.shuffler(world.names[0]), shuffled.to_bytes(), bytes(range(16))
        )
        assert world.collector._open is not None
        key, message = world.collector._open.key, ShuffleReport.read(report)
        assert message.name == world.names[0]
        assert key.open(message.ciphertext, payload_info(shuffled.ann)) == bytes(range(16))


def test_the_digests_of_a_list_are_in_memory_once_however_many_read_them(tmp_path: Path) -> None:
    with two_servers.world_in(tmp_path) as world:
        announcement = world.announce_shuffle()
        clients = [world.shuffler(name) for name in world.names]
        reports = [world.shuffle_report(client, announcement, bytes(16)) for client in clients]
        world.relay.reports(reports, OPENS)
        world.relay.root(world.collector.root(world.relay.shuffled_list(CLOSES)))
        assert world.relay.leaves() is world.relay.leaves()
