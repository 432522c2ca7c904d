"""Price lists: our dated TOML, and tables in the form of skypilot-catalog (made up here)."""

from __future__ import annotations

import pytest

from autotune.provision.prices import read_prices
from autotune.workloads.errors import SpecError

CSV = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice,AvailabilityZone
cpu_4x,,,4.0,16.0,0.2,east,,,
cpu_4x,,,4.0,16.0,0.18,west,,0.05,west-a
cpu_4x,,,4.0,16.0,0.18,west,,0.04,west-b
gpu_8x,V100,8.0,92.0,448.0,6.32,east,"{'Gpus': [{'Name': 'V100', 'Count': 8.0}]}",,
gpu_1x,V100,1.0,12.0,64.0,0.9,east,,0.3,
host-1g,,,12.0,85.0,0.74,east,,0.37,east-a
host-1g,,,12.0,85.0,0.95,west,,0.42,west-a
,A100,1.0,,,2.9,east,,1.1,east-a
,A100,1.0,,,2.5,west,,1.0,west-a
"""
TOML = """date = 2026-01-31
currency = "EUR"
source = "an example"
[price.cpu]
per_hour = 0.3
spot_per_hour = 0.1
[price.gpu]
per_hour = 2.5
region = "east"
"""


@pytest.fixture
def listed(tmp_path):
    def read(name, text, **options):
        path = tmp_path / name
        path.write_text(text)
        return read_prices(path, **options)

    return read


@pytest.mark.parametrize(
    ("entry", "options", "price"),
    [
        ("cpu_4x", {}, 0.18),
        ("cpu_4x", {"region": "east"}, 0.2),
        ("cpu_4x", {"spot": True}, 0.04),
        ("V100:8", {}, 6.32),
        ("V100", {}, 0.9),
        ("gpu_1x", {"spot": True}, 0.3),
        ("host-1g + A100:1", {}, 0.95 + 2.5),
        ("host-1g + A100", {"region": "east"}, 0.74 + 2.9),
        ("V100:4", {}, None),
        ("gpu_8x", {"region": "west"}, None),
    ],
)
def test_entries_of_a_catalogue(listed, entry, options, price):
    found = listed("vms.csv", CSV, **options).price(entry)
    assert found == price if price is None else found == pytest.approx(price)


def test_an_accelerator_without_its_host_is_refused(listed):
    with pytest.raises(SpecError, match=r"INSTANCE \+ A100"):
        listed("vms.csv", CSV).price("A100:1")


def test_a_sum_needs_a_region_with_all_of_it(listed):
    with pytest.raises(SpecError, match="no region"):
        listed(
            "vms.csv",
            CSV.replace("host-1g,,,12.0,85.0,0.95,west", "other,,,1,1,1,west").replace(",,,2.9,east", ",,,,east"),
        ).price("host-1g + A100:1")
    with pytest.raises(SpecError, match="host-2g"):
        listed("vms.csv", CSV).price("host-2g + A100:1")


def test_a_list_of_ones_own_is_dated(listed):
    found = listed("prices.toml", TOML)
    assert (found.price("cpu"), found.price("gpu"), found.price("tpu")) == (0.3, 2.5, None)
    assert found.stated == "2026-01-31, EUR, an example"
    assert listed("prices.toml", TOML, spot=True).price("cpu") == 0.1
    assert listed("prices.toml", TOML, region="west").price("gpu") is None


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("prices.toml", TOML.replace("date = 2026-01-31", ""), "state the day"),
        ("prices.toml", TOML.replace("0.3", "-1"), "price.cpu.per_hour is -1"),
        ("prices.toml", TOML.replace("per_hour = 0.3", "per_hour = true"), "is True"),
        ("prices.toml", TOML + "[prices.x]\n", "prices"),
        ("prices.toml", "price = 3\ndate = 2026-01-31\n", "table"),
        ("prices.toml", "=", "not valid TOML"),
        ("vms.csv", "a,b\n1,2\n", "InstanceType"),
        ("vms.csv", CSV.replace("6.32", "cheap"), "line 5, Price is 'cheap'"),
        ("vms.csv", CSV.splitlines()[0], "no such price"),
        ("prices.txt", "x", r"\.toml"),
    ],
)
def test_a_bad_list_is_refused(listed, name, text, words):
    with pytest.raises(SpecError, match=words):
        listed(name, text)


def test_a_list_that_is_not_there(tmp_path):
    with pytest.raises(SpecError, match="cannot read"):
        read_prices(tmp_path / "none.csv")
    with pytest.raises(SpecError, match="no file"):
        read_prices(tmp_path)
