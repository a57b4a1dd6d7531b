"""The operator's folder and the site's: what is read, written and refused."""

import stat
from pathlib import Path

import pytest

from sottovoce.core.errors import ConfigError, DeploymentError, ParameterError, SottovoceError
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.federation import Federation, create_federation
from sottovoce.deployment.machines.site_folder import (
    SiteFolder,
    create_rehearsal_sites,
    create_site,
)

ADDRESS = Address(host="link.example.org", port=9443)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create_federation(tmp_path / "Fed 1", address=ADDRESS, sites=["a", "b"], hosts=["::7"])


def _join(federation: Federation, folder: Path, name: str) -> SiteFolder:
    return create_site(folder, name=name, address=ADDRESS, root_certificate=federation.authority)


def test_a_new_federation_is_read_as_it_was_made(federation: Federation) -> None:
    assert federation.name == "fed-1"
    assert Federation.read(federation.folder) == federation
    assert federation.certificate_problem() is None
    assert federation.public_keys() == {}
    for part in ("certificates", "keys", "link", "runs"):
        assert stat.S_IMODE((federation.folder / part).stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "sites", [["a", "a"], ["a/b"], ["../a"], [""], ["A"], ["-a"], ["a b"], ["a" * 64]]
)
def test_bad_names_of_sites_are_refused_and_nothing_is_written(
    tmp_path: Path, sites: list[str]
) -> None:
    with pytest.raises(ConfigError):
        create_federation(tmp_path / "fed", address=ADDRESS, sites=sites)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_anything_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(DeploymentError, match="is not empty"):
        create_federation(tmp_path, address=ADDRESS, sites=["a"])
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "is not valid TOML"),
        ('name = "f"\naddress = "h:1"', "'sites' is missing"),
        ('name = "f"\naddress = "h:1"\nsites = []\nsite = 1', "unknown key 'site'"),
        ('name = "f"\naddress = "h:1"\nsites = "a"', "'sites' must be a list"),
        ('name = 3\naddress = "h:1"\nsites = []', "'name' must be a valid string"),
        ('name = "f"\naddress = "h"\nsites = []', "toml: an address must be HOST:PORT"),
        ('name = "f"\naddress = "h:1"\nsites = ["a", "a"]', "the site 'a' is listed twice"),
        ('name = "f"\naddress = "h:1"\nsites = ["a/b"]', "a site's name must be"),
        (
            'name = "f"\naddress = "h:1"\nsites = [1]',
            r"'sites\[0\]' must be a valid string",
        ),
        ('name = "f"\naddress = "h:1"\nsites = []\nhosts = ["a b"]', "toml: a host must be"),
        ('name = "../f"\naddress = "h:1"\nsites = []', "'name' must be"),
    ],
)
def test_a_bad_file_is_said_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "federation.toml").write_text(text)
    with pytest.raises((ConfigError, ParameterError), match=said):
        Federation.read(tmp_path)


def test_another_folder_is_no_federation(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a federation's folder"):
        Federation.read(tmp_path)
    with pytest.raises(ConfigError, match="is not a site's folder"):
        SiteFolder.read(tmp_path)
    (tmp_path / "federation.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        Federation.read(tmp_path)


def test_sites_hand_in_their_keys(federation: Federation, tmp_path: Path) -> None:
    a, c = _join(federation, tmp_path / "a", "a"), _join(federation, tmp_path / "c", "c")
    federation = federation.add_site("a", a.folder / "node.pub")
    assert list(federation.public_keys()) == ["a"]
    federation = federation.add_site("c", c.folder / "node.pub")
    assert Federation.read(federation.folder).sites == ("a", "b", "c")
    with pytest.raises(DeploymentError, match="is already the key of 'a'"):
        federation.add_site("b", a.folder / "node.pub")
    with pytest.raises(DeploymentError, match="exists and is not replaced"):
        federation.add_site("a", a.folder / "node.pub")
    with pytest.raises(ConfigError, match="a site's name must be"):
        federation.add_site("../x", a.folder / "node.pub")
    assert list(Federation.read(federation.folder).public_keys()) == ["a", "c"]


def test_a_renewed_certificate_is_by_the_same_authority(federation: Federation) -> None:
    authority, before = federation.authority.read_bytes(), federation.certificate.read_bytes()
    federation.renew_certificate(days=7)
    assert federation.authority.read_bytes() == authority
    assert federation.certificate.read_bytes() != before
    assert federation.certificate_problem() is None
    assert stat.S_IMODE(federation.certificate_key.stat().st_mode) == 0o600
    names = {path.name for path in federation.certificate.parent.iterdir()}
    assert names == {"ca.crt", "ca.key", "link.crt", "link.key"}


def test_a_changed_address_asks_for_a_new_certificate(federation: Federation) -> None:
    path = federation.folder / "federation.toml"
    path.write_text(path.read_text().replace("link.example.org", "other.example.org"))
    changed = Federation.read(federation.folder)
    problem = changed.certificate_problem()
    assert problem is not None
    assert "not for 'other.example.org'; run 'sottovoce deploy certificates" in problem
    changed.renew_certificate(days=7)
    assert changed.certificate_problem() is None


def test_a_site_decides_before_its_node_starts(federation: Federation, tmp_path: Path) -> None:
    site = _join(federation, tmp_path / "a", "a")
    assert site.private_key == site.folder / "node.key"
    assert site.root_certificate == site.folder / "ca.crt"
    assert site.link_problem() is None
    problem = site.policy_problem()
    assert problem is not None
    assert "[policy] lacks mechanisms, level, adjacency, epsilon_per_round" in problem
    assert "no defaults" in problem


def test_a_rehearsal_has_all_that_its_sites_need(tmp_path: Path) -> None:
    federation = create_federation(tmp_path / "f", address=ADDRESS, sites=["a", "b"])
    create_rehearsal_sites(federation)
    assert list(Federation.read(federation.folder).public_keys()) == ["a", "b"]
    for name in ("a", "b"):
        site = SiteFolder.read(federation.folder / "sites" / name)
        assert (site.name, site.policy_problem(), site.link_problem()) == (name, None, None)


SITE = 'name = "a"\n[link]\naddress = "127.0.0.1:1"\n{}\n[policy]\n'


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("", "lacks 'root_certificate' and 'private_key'"),
        ('root_certificate = "x"', "lacks 'private_key'"),
        ('root_certificates = "x"', "did you mean 'root_certificate'"),
        ('insecure = true\nprivate_key = "x"', "'insecure' and 'private_key' exclude each other"),
        ("insecure = 1", "'link.insecure' must be a valid boolean"),
        ("private_key = 1", "'link.private_key' must be a valid string"),
    ],
)
def test_a_bad_link_table_is_said_in_a_sentence(tmp_path: Path, link: str, said: str) -> None:
    (tmp_path / "site.toml").write_text(SITE.format(link))
    with pytest.raises(ConfigError, match=said):
        SiteFolder.read(tmp_path)


@pytest.mark.parametrize("given", ["7200", "7200.0"])
def test_seconds_may_be_whole(tmp_path: Path, given: str) -> None:
    text = f"longest_seconds = {given}\n" + SITE.format("insecure = true")
    (tmp_path / "site.toml").write_text(text)
    assert SiteFolder.read(tmp_path).name == "a"


@pytest.mark.parametrize("given", ["true", '"an hour"'])
def test_seconds_that_are_no_number_are_said_in_a_sentence(tmp_path: Path, given: str) -> None:
    text = f"longest_seconds = {given}\n" + SITE.format("insecure = true")
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(ConfigError, match="'longest_seconds' must be a valid number"):
        SiteFolder.read(tmp_path)


def test_insecure_is_for_one_machine(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(SITE.format("insecure = true"))
    assert SiteFolder.read(tmp_path).root_certificate is None
    assert SiteFolder.read(tmp_path).link_problem() is None
    path.write_text(SITE.format("insecure = true").replace("127.0.0.1", "10.0.0.1"))
    with pytest.raises(ConfigError, match="is for rehearsals on one machine"):
        SiteFolder.read(tmp_path)


def test_a_site_folder_is_made_whole_or_not_at_all(federation: Federation, tmp_path: Path) -> None:
    with pytest.raises(SottovoceError, match="a site's name must be"):
        create_site(
            tmp_path / "x", name="a/b", address=ADDRESS, root_certificate=federation.authority
        )
    with pytest.raises(SottovoceError, match="cannot read"):
        create_site(tmp_path / "x", name="a", address=ADDRESS, root_certificate=tmp_path / "no")
    with pytest.raises(SottovoceError, match="is not a certificate"):
        create_site(
            tmp_path / "x",
            name="a",
            address=ADDRESS,
            root_certificate=federation.folder / "federation.toml",
        )
    assert not (tmp_path / "x").exists()
