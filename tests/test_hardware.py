"""The hardware catalogue against derivations that do not use it: clocks, pin rates, data sheets' own totals."""

import copy
import dataclasses
import pickle
import re

import numpy as np
import pytest
from clusterlab import hardware
from clusterlab.hardware import (
    Accelerator,
    Cluster,
    Link,
    Node,
    Part,
    accelerator,
    accelerators,
    encoding_efficiency,
    link,
    links,
    node,
    nodes,
    part,
    parts,
    published,
)
from hypothesis import given
from hypothesis import strategies as st

EVERYTHING = [*accelerators().values(), *links().values(), *nodes().values(), *parts().values()]


# --- Peaks from units, width and clock -------------------------------------------------------------------------------

# (units, FLOP a clock of one unit, MHz). NVIDIA: SMs and boost clocks of the V100, A100 and H100 white papers; a V100
# SM has 8 tensor cores of 64 FMA, an A100 SM 4 of 256, an H100 SM 4 of 512. AMD: compute units and peak engine clocks
# of the product pages; 4 matrix cores a unit of 128, 256 and 512 FMA. Intel: matrix engines of 256 x 256 FMA.
UNITS = {
    ("V100 SXM2 32GB", "fp16"): (80, 8 * 64 * 2, 1530),
    ("V100 PCIe 32GB", "fp16"): (80, 8 * 64 * 2, 1370),
    ("V100 SXM2 32GB", "fp32"): (80, 64 * 2, 1530),
    ("A100 SXM 80GB", "bf16"): (108, 4 * 256 * 2, 1410),
    ("A100 SXM 80GB", "tf32"): (108, 4 * 128 * 2, 1410),
    ("A100 SXM 80GB", "fp32"): (108, 64 * 2, 1410),
    ("A100 SXM 80GB", "fp64"): (108, 32 * 2, 1410),
    ("A100 PCIe 40GB", "int8"): (108, 4 * 512 * 2, 1410),
    ("H100 SXM", "bf16"): (132, 4 * 512 * 2, 1830),
    ("H100 SXM", "fp8"): (132, 4 * 1024 * 2, 1830),
    ("H100 SXM", "tf32"): (132, 4 * 256 * 2, 1830),
    ("H100 SXM", "fp32"): (132, 128 * 2, 1980),
    ("H100 SXM", "fp64"): (132, 64 * 2, 1980),
    ("H100 PCIe", "bf16"): (114, 4 * 512 * 2, 1620),
    ("H100 PCIe", "fp8"): (114, 4 * 1024 * 2, 1620),
    ("H100 PCIe", "fp32"): (114, 128 * 2, 1755),
    ("H200 SXM", "bf16"): (132, 4 * 512 * 2, 1830),
    ("MI250X", "bf16"): (220, 4 * 128 * 2, 1700),
    ("MI300X", "bf16"): (304, 4 * 256 * 2, 2100),
    ("MI300X", "fp8"): (304, 4 * 512 * 2, 2100),
    ("MI300X", "tf32"): (304, 4 * 128 * 2, 2100),
    ("MI300X", "fp32"): (304, 256, 2100),
    ("MI325X", "bf16"): (304, 4 * 256 * 2, 2100),
    ("MI355X", "bf16"): (256, 4 * 512 * 2, 2400),
    ("MI355X", "fp8"): (256, 4 * 1024 * 2, 2400),
    ("MI355X", "fp4"): (256, 4 * 2048 * 2, 2400),
    ("Gaudi 2", "bf16"): (2, 256 * 256 * 2, 1650),
    ("Gaudi 3", "bf16"): (8, 256 * 256 * 2, 1600),
    # TPU v4: Jouppi et al. 2023 (arXiv:2304.01433), 8 matrix units of 128 x 128 at 1,050 MHz
    ("TPU v4", "bf16"): (8, 128 * 128 * 2, 1050),
}


@pytest.mark.parametrize("name, dtype", UNITS)
def test_peak_is_units_times_width_times_clock(name, dtype):
    units, flop, megahertz = UNITS[name, dtype]
    assert accelerator(name).dense_flops[dtype] == pytest.approx(units * flop * megahertz * 1e6, rel=0.01)


def test_two_printed_peaks_of_gaudi_3_are_two_clocks():
    assert 8 * 256 * 256 * 2 * 1.75e9 / 1e12 == pytest.approx(1835, abs=0.5)      # the white paper's first version
    assert 8 * 256 * 256 * 2 * 1.6e9 == pytest.approx(accelerator("Gaudi 3").dense_flops["bf16"], rel=0.001)


# (bits of the bus, bits/s of a pin): stacks of 1,024 bits, memory clocks of nvidia-smi times two; AMD prints both
BUSES = {
    "V100 SXM2 16GB": (4096, 2 * 877e6),
    "A100 SXM 40GB": (5120, 2 * 1215e6),
    "A100 SXM 80GB": (5120, 2 * 1593e6),
    "A100 PCIe 80GB": (5120, 2 * 1512e6),
    "H100 SXM": (5120, 2 * 2619e6),
    "H100 NVL": (6016, 2 * 2619e6),            # 94 of 96 GB, so 94/96 of six stacks
    "H200 SXM": (6144, 2 * 3201e6),
    "MI250X": (8192, 3.2e9),
    "MI300X": (8192, 5.2e9),
    "MI325X": (8192, 6.0e9),
    "MI355X": (8192, 8.0e9),
    "TPU v5e": (2 * 1024, 3.2e9),
}


@pytest.mark.parametrize("name", BUSES)
def test_memory_bandwidth_is_width_times_pin_rate(name):
    bits, rate = BUSES[name]
    printed = 0.025 if name in ("H200 SXM", "MI325X", "MI355X", "H100 NVL") else 0.006    # two printed digits
    assert accelerator(name).memory_bandwidth == pytest.approx(bits * rate / 8, rel=printed)


def test_b200_memory_bandwidth_is_rounded_up_from_its_bus():
    """The driver reports 7,680 bits at 3,996 MHz, 7.67 TB/s; sheets print 8.0 (github.com/pytorch/ao/pull/4002)."""
    assert 7680 / 8 * 2 * 3996e6 == pytest.approx(accelerator("B200").memory_bandwidth, rel=0.045)
    assert "7.67" in accelerator("B200").notes


@pytest.mark.parametrize("device", accelerators().values(), ids=lambda device: device.name)
def test_peaks_halve_with_every_doubling_of_the_format(device):
    """Dense peaks double from tf32 to 16 bits to fp8 (or stand still); a sparse one among them would be a factor 4."""
    for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8"), ("bf16", "int8"), ("fp8", "fp4"), ("fp8", "fp6")):
        if wide in device.dense_flops and narrow in device.dense_flops:
            ratio = device.dense_flops[narrow] / device.dense_flops[wide]
            assert 0.99 < ratio < 2.03 or (narrow == "fp4" and ratio <= 3.0), (wide, narrow)
    if {"bf16", "fp16"} <= set(device.dense_flops):
        assert device.dense_flops["bf16"] == device.dense_flops["fp16"]


@pytest.mark.parametrize("device", accelerators().values(), ids=lambda device: device.name)
def test_the_driver_reports_about_the_label(device):
    """A label counts 10⁹, the memory is built in 2³⁰, and a part is fused off: 0.95 to 1.08 of the label."""
    assert 0.95 <= device.memory / device.memory_label <= 1.08
    assert (device.memory == device.memory_label) == (device.memory_source == "label")


def test_driver_memory_in_mib_as_printed():
    reported = {"A100 SXM 80GB": 81920, "H100 SXM": 81559, "H100 NVL": 95830, "H200 SXM": 143771, "B200": 183359,
                "GB200": 189471, "B300": 275040, "GB300": 284208}
    for name, mib in reported.items():
        assert accelerator(name).memory == mib * 2**20
    assert accelerator("MI300X").memory == 206141652992 and accelerator("MI355X").memory == 309220868096  # rocm-smi


# --- Links -----------------------------------------------------------------------------------------------------------

DATA_RATES = {        # Gb/s of a port, as the standards name them
    "InfiniBand SDR": 8, "InfiniBand DDR": 16, "InfiniBand QDR": 32, "InfiniBand FDR10": 40, "InfiniBand FDR": 54.545,
    "InfiniBand EDR": 100, "InfiniBand HDR100": 100, "InfiniBand HDR": 200, "InfiniBand NDR200": 200,
    "InfiniBand NDR": 400, "InfiniBand XDR": 800, "Ethernet 10G": 10, "Ethernet 25G": 25, "Ethernet 40G": 40,
    "Ethernet 100G": 100, "Ethernet 200G": 200, "Ethernet 400G": 400, "Ethernet 800G": 800,
    "PCIe 3.0 x16": 126.03, "PCIe 4.0 x8": 126.03, "PCIe 5.0 x4": 126.03, "PCIe 6.0 x16": 968, "PCIe 7.0 x8": 968,
}


@pytest.mark.parametrize("name", DATA_RATES)
def test_lanes_signalling_and_encoding_give_the_named_rate(name):
    assert link(name).bandwidth * 8 / 1e9 == pytest.approx(DATA_RATES[name], rel=1e-4)


@pytest.mark.parametrize("name, raw", [("PCIe 3.0 x16", 16), ("PCIe 4.0 x16", 32), ("PCIe 5.0 x16", 64),
                                       ("PCIe 6.0 x16", 128), ("PCIe 7.0 x16", 256), ("InfiniBand SDR", 1.25),
                                       ("InfiniBand EDR", 12.890625), ("InfiniBand NDR", 53.125)])
def test_raw_rate_is_gigatransfers_times_lanes(name, raw):
    assert link(name).raw_bandwidth / 1e9 == raw


@pytest.mark.parametrize("name, printed", [("NVLink 3", 25.0), ("NVLink 4", 26.5625), ("NVLink 5", 53.125)])
def test_nvidia_smi_prints_the_signalling_of_a_link(name, printed):
    """`nvidia-smi nvlink -s` prints 25, 26.562 and 53.125 GB/s a link: lanes · signalling, in one direction."""
    wires = link(name)
    assert wires.raw_bandwidth / wires.links / 1e9 == printed
    assert 0.94 < wires.bandwidth / wires.raw_bandwidth <= 1


@pytest.mark.parametrize("name, marketing", [
    ("NVLink 1", 160), ("NVLink 2", 300), ("NVLink 3", 600), ("NVLink 4", 900), ("NVLink 5", 1800), ("NVLink 6", 3600),
    ("NVLink 4 bridge", 600), ("NVLink 4 H800", 400), ("Infinity Fabric MI250X", 800), ("Infinity Fabric MI300X", 896),
    ("Infinity Fabric MI355X", 1075.2), ("Gaudi 3 RoCE", 1200), ("Gaudi 2 RoCE", 600), ("ICI v5p", 1200),
    ("ICI v5e", 400), ("ICI v6e", 800), ("ICI v7", 1200), ("NeuronLink-v3", 1280)])
def test_the_printed_figure_counts_both_directions(name, marketing):
    assert link(name).bidirectional_bandwidth / 1e9 == pytest.approx(marketing)
    assert link(name).bandwidth / 1e9 == pytest.approx(marketing / 2)


@pytest.mark.parametrize("encoding, share", [("8b/10b", 0.8), ("64b/66b", 32 / 33), ("128b/130b", 64 / 65),
                                             ("PAM4, FLIT 242/256", 0.9453125),
                                             ("PAM4, 256b/257b + RS(544,514)", 16 / 17)])
def test_encoding_efficiency(encoding, share):
    assert encoding_efficiency(encoding) == pytest.approx(share, rel=1e-12)


def test_encoding_without_a_ratio_is_refused():
    with pytest.raises(ValueError, match="NRZ"):
        encoding_efficiency("NRZ")


@given(st.floats(1e6, 1e13), st.integers(1, 64))
def test_bandwidth_laws(per_link, count):
    wires = Link("x", per_link, count)
    assert wires.bandwidth == pytest.approx(sum([per_link] * count))
    assert wires.bidirectional_bandwidth == wires.bandwidth + wires.bandwidth


def test_links_take_arrays():
    sweep = Link("sweep", np.array([1e9, 2e9]), links=3, latency=np.array([0.0, 1e-6]))
    assert sweep.bandwidth.tolist() == [3e9, 6e9]
    with pytest.raises(ValueError, match="per_link"):
        Link("sweep", np.array([1e9, 0.0]))


# --- Data sheets' own totals -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, dtype, total, sparse", [
    ("DGX A100", "fp16", 5e15, 2), ("DGX H100", "fp8", 32e15, 2), ("DGX B200", "fp8", 72e15, 2),
    ("DGX B200", "fp4", 144e15, 2), ("DGX-2", "fp16", 2e15, 1), ("GB200 NVL72", "fp4", 1440e15, 2),
    ("GB200 NVL72", "bf16", 360e15, 2), ("GB200 NVL72", "fp64", 2880e12, 1), ("GB300 NVL72", "fp4", 1080e15, 1),
    ("MI300X Platform", "bf16", 10.4e15, 1), ("MI300X Platform", "fp8", 20.9e15, 1),
    ("MI355X Platform", "fp8", 40.2e15, 1), ("TPU v4 pod", "bf16", 1.1e18, 1), ("TPU v5e pod", "bf16", 50.63e15, 1),
    ("TPU v5e pod", "int8", 100e15, 1), ("TPU v5p pod", "bf16", 4.11e18, 1), ("TPU v6e pod", "bf16", 234.9e15, 1),
    ("TPU v7 pod", "fp8", 42.5e18, 1), ("AWS Trn2", "fp8", 20.8e15, 1)])
def test_node_peaks_add_up_to_the_sheet(name, dtype, total, sparse):
    system = node(name)
    assert system.devices * system.accelerator.dense_flops[dtype] * sparse == pytest.approx(total, rel=0.025)


@pytest.mark.parametrize("name, memory, bandwidth", [        # bytes as labelled, bytes/s
    ("DGX A100", 640e9, 16.3e12), ("DGX A100 320GB", 320e9, 12.4e12), ("DGX-2", 512e9, 14.4e12),
    ("DGX H100", 640e9, 26.8e12), ("DGX H200", 1128e9, 38.4e12), ("DGX B200", 1440e9, 64e12),
    ("GB200 NVL72", 13.4e12, 576e12), ("GB300 NVL72", 20.7e12, 576e12), ("MI300X Platform", 1.536e12, 42.4e12),
    ("MI325X Platform", 2.048e12, 48e12), ("MI355X Platform", 2.304e12, 64e12), ("AWS Trn2", 16 * 96 * 2**30, 46e12)])
def test_node_memory_adds_up_to_the_sheet(name, memory, bandwidth):
    system = node(name)
    assert system.devices * system.accelerator.memory_label == pytest.approx(memory, rel=0.005)
    assert system.devices * system.accelerator.memory_bandwidth == pytest.approx(bandwidth, rel=0.01)


@pytest.mark.parametrize("name, both", [("DGX A100", 4.8e12), ("DGX H100", 7.2e12), ("DGX B200", 14.4e12),
                                        ("GB200 NVL72", 130e12), ("DGX-2", 4.8e12)])
def test_scale_up_adds_up_to_the_sheet(name, both):
    system = node(name)
    assert system.devices * system.scale_up.bidirectional_bandwidth == pytest.approx(both, rel=0.005)


@pytest.mark.parametrize("name, gigabits", [
    ("AWS P4d", 400), ("AWS P5", 3200), ("AWS Trn2", 3200), ("Azure ND H100 v5", 3200), ("GCP A3 Mega", 1600),
    ("DGX-1 V100", 400), ("DGX H100", 3200), ("DGX B300", 6400), ("TPU v5e pod", 6400), ("TPU v6e pod", 25600),
    ("TPU v5p pod", 8960 * 50), ("TPU v7 pod", 9216 * 100), ("Gaudi 3 server", 4800)])
def test_network_adds_up_to_the_page(name, gigabits):
    assert node(name).network_bandwidth * 8 / 1e9 == pytest.approx(gigabits)


@pytest.mark.parametrize("name, bisection, all_reduce, printed", [
    ("TPU v5e pod", 1.6e12, 51.2e12, 1e-9), ("TPU v6e pod", 3.2e12, 102.4e12, 1e-9),
    ("TPU v4 pod", 24e12, 1.1e15, 0.12)])       # v4's totals reckon with 45 to 47 GB/s of the paper's 50: see its note
def test_pod_bisection_and_all_reduce(name, bisection, all_reduce, printed):
    """Halving a torus across its longest side cuts two links of every ring (one direction each)."""
    pod = node(name)
    rings = pod.devices // max(pod.shape)
    assert 2 * rings * pod.scale_up.per_link == pytest.approx(bisection, rel=printed)
    assert pod.devices * pod.scale_up.bandwidth == pytest.approx(all_reduce, rel=printed)


@pytest.mark.parametrize("system", nodes().values(), ids=lambda system: system.name)
def test_nodes_hold_together(system):
    assert system.devices % system.hosts == 0
    assert system.nics % system.hosts == 0
    if system.power is not None and system.accelerator.power is not None:
        assert system.devices * system.accelerator.power < system.power < 3 * system.devices * system.accelerator.power
    if system.wiring == "mesh":
        assert system.scale_up.links % (system.devices - 1) == 0
        assert system.pair_bandwidth * (system.devices - 1) == pytest.approx(system.scale_up.bandwidth)
    if system.wiring == "torus" and system.shape:
        assert system.scale_up.links == 2 * len(system.shape)
        assert system.pair_bandwidth == system.scale_up.per_link
    if system.wiring == "switch":
        assert system.pair_bandwidth == system.scale_up.bandwidth


@pytest.mark.parametrize("name, devices, hosts, cpus, nics, switches", [
    ("DGX-1 V100", 8, 1, 2, 4, None), ("DGX-2", 16, 1, 2, 8, 12), ("DGX A100", 8, 1, 2, 8, 6),
    ("DGX H100", 8, 1, 2, 8, 4), ("DGX B200", 8, 1, 2, 8, 2), ("GB200 NVL72", 72, 18, 36, 72, 18),
    ("GB300 NVL72", 72, 18, 36, 72, 18), ("TPU v5p pod", 8960, 2240, None, 2240, None)])
def test_node_counts(name, devices, hosts, cpus, nics, switches):
    system = node(name)
    assert (system.devices, system.hosts, system.cpus, system.nics, system.switches) \
        == (devices, hosts, cpus, nics, switches)


def test_nvlink_switches_have_the_ports_they_need():
    """Ports of the four generations of NVSwitch (18, 36, 64, 72): every NVLink of every GPU ends in one."""
    for name, ports in {"DGX A100": 36, "DGX H100": 64, "DGX B200": 72, "GB200 NVL72": 72}.items():
        system = node(name)
        assert system.devices * system.scale_up.links <= system.switches * ports
    rack = node("GB200 NVL72")
    assert rack.devices * rack.scale_up.links == rack.switches * 72


def test_cube_mesh_pairs_differ():
    with pytest.raises(ValueError, match="cube-mesh"):
        _ = node("DGX-1 V100").pair_bandwidth


# --- Mistakes people really made -------------------------------------------------------------------------------------

def test_nvlink_beside_ethernet_in_one_direction():
    """900 beside 50 GB/s compares two directions with one: 450 over 50 is 9, not 18."""
    assert link("NVLink 4").bandwidth / link("Ethernet 400G").bandwidth == pytest.approx(9)


def test_nvlink_5_is_terabytes():
    assert link("NVLink 5").bandwidth == 0.9e12


def test_nvlink_over_pcie():
    """Not 900/64 = 14: seven, raw 450/64 or 450/63 after the line code."""
    nvlink, pcie = link("NVLink 4"), link("PCIe 5.0 x16")
    assert nvlink.bandwidth / pcie.raw_bandwidth == pytest.approx(7.03, abs=0.005)
    assert nvlink.bandwidth / pcie.bandwidth == pytest.approx(7.14, abs=0.005)


def test_nvlink_3_sub_link():
    assert link("NVLink 3").per_link == 25e9


def test_h100_utilisation_is_of_the_dense_peak():
    assert 420e12 / accelerator("H100 SXM").dense_flops["bf16"] == pytest.approx(0.425, abs=0.001)


def test_a100_peak_is_not_halved_twice():
    assert accelerator("A100 SXM 80GB").dense_flops["bf16"] == 312e12


def test_a_part_cannot_pass_for_another():
    """MFU of an H100 over an A100's peak reads above 1; the peaks stand 3.2 times apart."""
    assert accelerator("H100 SXM").dense_flops["bf16"] / accelerator("A100 SXM 80GB").dense_flops["bf16"] > 3


def test_a100_all_reduce_ceiling_is_half_of_the_printed_600():
    assert node("DGX A100").scale_up.bandwidth == 300e9


@pytest.mark.parametrize("dtype", ["bf16 sparse", "fp8_sparse", "bfloat16", "int4", ""])
def test_unknown_dtypes_list_those_known(dtype):
    with pytest.raises(LookupError, match="H100 SXM has no published .*only for tf32, bf16, fp16, fp8") as error:
        accelerator("H100 SXM").dense_flops[dtype]
    assert repr(dtype) in str(error.value)


def test_no_peak_is_the_sparse_one():
    sparse = {"A100 SXM 80GB": 624e12, "H100 SXM": 1979e12, "H200 SXM": 1979e12, "B200": 4.5e15, "GB200": 5e15,
              "MI300X": 2614.9e12, "MI355X": 5.03e15, "H100 NVL": 1671e12, "Trainium 2": 2563e12}
    for name, printed in sparse.items():
        assert accelerator(name).dense_flops["bf16"] < 0.6 * printed


# --- Names -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind, short, names", [
    ("accelerator", "H100", ["H100 SXM", "H100 PCIe", "H100 NVL"]),
    ("accelerator", "A100 80GB", ["A100 SXM 80GB", "A100 PCIe 80GB"]),
    ("accelerator", "gaudi", ["Gaudi 2", "Gaudi 3"]),
    ("link", "PCIe 5.0", ["PCIe 5.0 x4", "PCIe 5.0 x8", "PCIe 5.0 x16"]),
    ("link", "InfiniBand", ["InfiniBand SDR", "InfiniBand NDR", "InfiniBand XDR"]),
    ("node", "DGX", ["DGX H100", "DGX A100"]),
    ("part", "Spectrum-4", ["Spectrum-4 SN5400", "Spectrum-4 SN5600"])])
def test_a_name_that_fits_several_parts_lists_them(kind, short, names):
    with pytest.raises(LookupError, match=f"^{kind} '{short}' could be: ") as error:
        getattr(hardware, kind)(short)
    for name in names:
        assert repr(name) in str(error.value)


@pytest.mark.parametrize("kind, wrong, near", [
    ("accelerator", "H100 SMX", "H100 SXM"), ("accelerator", "MI300", "MI300X"), ("accelerator", "TPU v5", "TPU v5p"),
    ("link", "NVLnk 4", "NVLink 4"), ("link", "Infiniband-NDR400", "InfiniBand NDR"), ("node", "DGX H300", "DGX H200"),
    ("part", "QM9700 switch", "Quantum-2 QM9700")])
def test_unknown_names_list_near_ones(kind, wrong, near):
    with pytest.raises(LookupError, match=f"^no {kind} ") as error:
        getattr(hardware, kind)(wrong)
    assert repr(near) in str(error.value) and repr(wrong) in str(error.value)
    assert str(error.value).count("'") <= 2 + 2 * 4, "near names, not all names"


@pytest.mark.parametrize("name", ["", "  ", None, 7, "unheard of"])
def test_nonsense_lists_what_there_is(name):
    with pytest.raises(LookupError, match="NVLink 4"):
        link(name)


@pytest.mark.parametrize("loose, exact", [("H200", "H200 SXM"), ("h100 sxm", "H100 SXM"),
                                          ("A100 80GB SXM", "A100 SXM 80GB"), ("GB200", "GB200"), ("B200", "B200")])
def test_a_shorter_name_passes_where_one_part_fits(loose, exact):
    assert accelerator(loose).name == exact


def test_every_listed_name_finds_itself():
    for look_up, table in ((accelerator, accelerators()), (link, links()), (node, nodes()), (part, parts())):
        assert len(table) > 10
        for name, found in table.items():
            assert look_up(name) is found and found.name == name
        with pytest.raises(TypeError):
            table["mine"] = None


def test_what_the_field_uses_is_there():
    for name in ("V100 SXM2 16GB", "V100 SXM2 32GB", "A100 SXM 40GB", "A100 SXM 80GB", "A100 PCIe 80GB", "H100 SXM",
                 "H100 PCIe", "H100 NVL", "H200 SXM", "B200", "B300", "GB200", "GB300", "MI250X", "MI300X", "MI325X",
                 "MI355X", "TPU v4", "TPU v5e", "TPU v5p", "TPU v6e", "TPU v7", "Gaudi 2", "Gaudi 3", "Trainium 2"):
        assert accelerator(name).memory > 1e10
    for name in ("DGX-1 V100", "DGX A100", "DGX H100", "DGX H200", "DGX B200", "DGX B300", "GB200 NVL72"):
        assert node(name).devices >= 8


# --- Sources ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("record", EVERYTHING, ids=lambda record: record.name)
def test_every_record_has_an_address_and_a_date(record):
    assert re.search(r"https://\S+|arXiv:\d{4}\.\d{4,5}", record.source), record.source
    assert "gist." not in record.source and "wikipedia" not in record.source.lower()
    assert re.fullmatch(r"20[012]\d(-(0[1-9]|1[0-2])(-[0-3]\d)?)?", record.date), record.date
    assert len(record.source.split(";")[0]) > 5, "name the document, not only its address"


def test_what_is_not_from_the_sheet_names_its_own_source():
    for device in accelerators().values():
        assert device.memory_source == "label" or "https://" in device.memory_source
    for wires in links().values():
        assert (wires.latency == 0) == (not wires.latency_source), wires.name


def test_differing_sources_are_noted():
    for name, words in {"B200": ["180", "186", "192", "sparsity"], "H100 SXM": ["1,979", "sparsity"],
                        "MI300X": ["2,614.9", "sparsity"], "TPU v5p": ["GiB", "fp8"], "H100 NVL": ["pair"],
                        "Gaudi 3": ["1,835"]}.items():
        for word in words:
            assert word in accelerator(name).notes, (name, word)
    assert "bisection" in node("GB200 NVL72").notes


# --- Your own hardware, and bad input --------------------------------------------------------------------------------

CABLE = Link("cable", 10e9, 2, 1e-6, "me", "2026-01")
DEVICE = Accelerator("toy", "me", 8e9, 8e9, 1e11, {"fp32": 1e12}, 50, CABLE)
BOX = Node("box", DEVICE, 4, CABLE, "switch", link("Ethernet 100G"), 2, 1, 500)


def test_your_own_hardware():
    cluster = Cluster(BOX, 3, 2.0)
    assert (cluster.devices, cluster.hosts, cluster.power, cluster.accelerator) == (12, 3, 1500, DEVICE)
    assert BOX.network_bandwidth == 25e9 and CABLE.bidirectional_bandwidth == 40e9
    assert DEVICE.dense_flops["fp32"] == 1e12 and list(DEVICE.dense_flops) == ["fp32"] and len(DEVICE.dense_flops) == 1
    assert "bf16" not in DEVICE.dense_flops and DEVICE.dense_flops.get("bf16") is None


@given(st.sampled_from(sorted(nodes())), st.integers(1, 64))
def test_a_cluster_is_its_nodes(name, count):
    cluster = Cluster(node(name), count)
    assert cluster.devices == sum(node(name).devices for _ in range(count))
    assert cluster.hosts == sum(node(name).hosts for _ in range(count))


@pytest.mark.parametrize("record", [CABLE, DEVICE, BOX, Cluster(BOX, 2), part("ConnectX-7")])
def test_records_are_values(record):
    assert pickle.loads(pickle.dumps(record)) == record == copy.deepcopy(record)
    assert hash(record) == hash(copy.deepcopy(record))
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.name = "other"
    changed = dataclasses.replace(record, **({"nodes": 5} if isinstance(record, Cluster) else {"name": "other"}))
    assert changed != record


def test_peaks_are_a_mapping_that_can_be_a_key():
    assert repr(DEVICE.dense_flops) == repr(dict(DEVICE.dense_flops))
    other = dataclasses.replace(DEVICE, dense_flops={"fp32": 3.0})
    assert hash(other.dense_flops) != hash(DEVICE.dense_flops) != hash(repr(DEVICE))
    assert hash(dataclasses.replace(DEVICE).dense_flops) == hash(DEVICE.dense_flops)


@pytest.mark.parametrize("name", ["Gaudi 2", "Gaudi 3"])
def test_a_server_may_wire_fewer_ports_than_an_accelerator_has(name):
    """21 of 24 ports go to the seven peers, three to each."""
    inside, device = node(f"{name} server").scale_up, accelerator(name).scale_up
    assert (inside.links, device.links) == (21, 24) and inside.per_link == device.per_link


def test_peaks_cannot_be_changed():
    with pytest.raises(TypeError):
        DEVICE.dense_flops["fp32"] = 2e12


@pytest.mark.parametrize("cls, wrong", [
    (Link, {"per_link": 0}), (Link, {"per_link": -1.0}), (Link, {"per_link": float("nan")}),
    (Link, {"per_link": float("inf")}), (Link, {"per_link": "fast"}), (Link, {"per_link": True}), (Link, {"links": 0}),
    (Link, {"links": 1.5}), (Link, {"links": True}), (Link, {"latency": -1e-9}), (Link, {"lanes": 0}),
    (Link, {"signalling": 0.0}),
    (Accelerator, {"memory": 0}), (Accelerator, {"memory_label": -1}), (Accelerator, {"memory_bandwidth": 0.0}),
    (Accelerator, {"power": 0}), (Accelerator, {"dense_flops": {}}), (Accelerator, {"dense_flops": {"bf16": 0.0}}),
    (Accelerator, {"dense_flops": {"bf16": float("nan")}}), (Accelerator, {"dense_flops": [1e12]}),
    (Accelerator, {"dense_flops": {"bf16": None}}),
    (Accelerator, {"scale_up": "NVLink 4"}),
    (Node, {"accelerator": "H100 SXM"}), (Node, {"scale_up": None}), (Node, {"devices": 0}), (Node, {"devices": 8.0}),
    (Node, {"hosts": 0}), (Node, {"nics": -1}), (Node, {"nic": None}), (Node, {"wiring": "star"}), (Node, {"power": 0}),
    (Node, {"shape": (3, 3)}),
    (Part, {"kind": "hub"}), (Part, {"ports": 0}), (Part, {"link": None}), (Part, {"price": 0}), (Part, {"power": -1}),
    (Cluster, {"node": "DGX H100"}), (Cluster, {"nodes": 0}), (Cluster, {"nodes": 1.5}),
    (Cluster, {"oversubscription": 0.5}), (Cluster, {"oversubscription": float("inf")}), (Cluster, {"oversubscription": "none"})])
def test_bad_values_are_refused_by_name(cls, wrong):
    good = {Link: CABLE, Accelerator: DEVICE, Node: BOX, Part: part("Quantum-2 QM9700"), Cluster: Cluster(BOX, 2)}[cls]
    argument, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=argument) as error:
        dataclasses.replace(good, **wrong)
    assert repr(value) in str(error.value)


def test_allowed_edges():
    assert Link("x", 1e9, latency=0.0).latency == 0
    assert Link("x", 1).bandwidth == 1
    assert dataclasses.replace(BOX, nics=0, nic=None).nics == 0
    assert dataclasses.replace(BOX, devices=1, wiring="mesh").pair_bandwidth == CABLE.bandwidth
    assert dataclasses.replace(BOX, wiring="pcie").pair_bandwidth == CABLE.bandwidth
    assert dataclasses.replace(BOX, shape=(2, 2)).shape == (2, 2)
    assert Cluster(BOX, 1).oversubscription == 1.0
    assert dataclasses.replace(DEVICE, power=None, scale_up=None).power is None
    assert dataclasses.replace(DEVICE, dense_flops={"fp32": 1.0}).dense_flops["fp32"] == 1


@pytest.mark.parametrize("use, what", [
    (lambda: published(accelerator("TPU v5p"), "power"), "TPU v5p: power is not published"),
    (lambda: Cluster(node("TPU v4 pod"), 1).power, "TPU v4 pod: power is not published"),
    (lambda: node("TPU v4 pod").network_bandwidth, "TPU v4 pod: nic is not published"),
    (lambda: link("NVLink 6").raw_bandwidth, "NVLink 6: lanes is not published"),
    (lambda: published(part("ConnectX-7"), "price"), "ConnectX-7: price is not published")])
def test_what_is_not_published_cannot_be_used(use, what):
    with pytest.raises(ValueError, match=what):
        use()


# --- The price table -------------------------------------------------------------------------------------------------

def test_a_price_list_of_1024_gpus():
    """The sheet's own line for 128 servers: 48 switches 1,728,000, cables 2,621,440, all in all 44,029,440 dollars.

    Its total of 50,429,440 holds 6.4 million more, which is its facility line; ours adds up what it multiplies.
    """
    switches = 48 * part("Quantum-2 QM9700").price
    cables = 1024 * (part("NDR cable, switch to NIC").price + part("NDR cable, switch to switch").price)
    servers = 128 * part("8 x H100 SXM server").price
    assert (switches, cables, servers) == (1_728_000, 2_621_440, 39_680_000)
    assert switches + cables + servers + 128 * 50_000 == 50_429_440


@pytest.mark.parametrize("name, terabits", [("Quantum QM8700", 8), ("Quantum-2 QM9700", 25.6),
                                            ("Quantum-X800 Q3400", 115.2), ("Spectrum-4 SN5600", 51.2)])
def test_switch_bandwidth(name, terabits):
    assert part(name).bandwidth * 8 / 1e12 == pytest.approx(terabits)
    assert part(name).kind == "switch"


def test_transceivers_are_counted_at_both_ends():
    """A twin-port module of 17 W serves two links; the NIC's single one draws 9 W (docs.nvidia.com)."""
    assert part("NDR cable, switch to switch").power == 2 * 17 / 2
    assert part("NDR cable, switch to NIC").power == 17 / 2 + 9
