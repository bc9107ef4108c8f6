"""Published values of hardware: the catalogue beside tables, data sheets and conversions other people print."""

from clusterlab.hardware import accelerator, link, node, part
from clusterlab.units import GB, TB, GiB
from published import reproduces

ACCELERATORS = {
    "hw.v100_sxm2": "V100 SXM2 32GB",
    "hw.a100_80_sxm": "A100 SXM 80GB",
    "hw.a100_40_sxm": "A100 SXM 40GB",
    "hw.a100_80_pcie": "A100 PCIe 80GB",
    "hw.h100_sxm": "H100 SXM",
    "hw.h100_pcie": "H100 PCIe",
    "hw.h200_sxm": "H200 SXM",
    "hw.b200_sxm": "B200",
    "hw.gb200": "GB200",
    "hw.gb300": "GB300",
    "hw.mi250x": "MI250X",
    "hw.mi300x": "MI300X",
    "hw.mi355x": "MI355X",
    "hw.tpu_v4": "TPU v4",
    "hw.tpu_v5e": "TPU v5e",
    "hw.tpu_v5p": "TPU v5p",
    "hw.tpu_v7": "TPU v7",
    "hw.gaudi3": "Gaudi 3",
}


def compute(device):
    """Our values in the row's shape: TFLOP/s, GB, TB/s, W, GB/s in one direction."""
    half = "bf16" if "bf16" in device.dense_flops else "fp16"
    values = {key: device.dense_flops[dtype] / 1e12
              for key, dtype in (("bf16", half), ("fp8", "fp8"), ("fp4", "fp4")) if dtype in device.dense_flops}
    return values | {"hbm_GB": device.memory_label / GB, "hbm_TBps": device.memory_bandwidth / TB,
                     "power_W": device.power, "scaleup_GBps_per_dir": device.scale_up.bandwidth / GB}


def only_printed(row, values):
    return {key: value for key, value in values.items() if row["value"][key] is not None}


@reproduces(*(set(ACCELERATORS) - {"hw.mi250x", "hw.tpu_v4", "hw.tpu_v5p"}), kind="definition",
            note="V100 has no bf16: its 125 TFLOP/s are fp16")
def accelerators(row):
    return only_printed(row, compute(accelerator(ACCELERATORS[row["id"]])))


@reproduces("hw.tpu_v4", "hw.tpu_v5p", kind="definition", note="Google's documentation says GiB where the row says GB")
def tpus_in_gib(row):
    device = accelerator(ACCELERATORS[row["id"]])
    values = compute(device) | {"hbm_GB": device.memory_label / GiB}
    return only_printed(row, values)


@reproduces("hw.mi250x", kind="definition",
            note="the row counts 7 links of 50 GB/s; AMD's sheet has 8, one of which may serve the host")
def seven_of_eight_links(row):
    device = accelerator("MI250X")
    values = compute(device) | {"scaleup_GBps_per_dir": (device.scale_up.links - 1) * device.scale_up.per_link / GB}
    return only_printed(row, values)


@reproduces(*(f"hw.nvlink{generation}" for generation in range(1, 7)), kind="definition")
def nvlink(row):
    wires = link(f"NVLink {row['id'][-1]}")
    return [wires.per_link / GB, wires.bandwidth / GB, wires.bidirectional_bandwidth / GB]


@reproduces(*(f"hw.pcie{generation}.x16" for generation in (3, 4, 5, 6)))
def pcie(row):
    return link(f"PCIe {row['id'][7]}.0 x{row['inputs']['lanes']}").bandwidth / GB


@reproduces(*(f"hw.ib.{name}" for name in ("sdr", "ddr", "qdr", "fdr10", "edr", "hdr", "ndr")),
            value=lambda row: row["value"][:2], note="the line code is text, and the adapters' latencies are measured")
def infiniband(row):
    port = link("InfiniBand " + row["id"].split(".")[-1].upper())
    return [port.signalling / 1e9, port.bandwidth * 8 / 1e9]


@reproduces("hw.cx", kind="definition")
def adapters(row):
    return [part(f"ConnectX-{generation}").bandwidth * 8 / 1e9 for generation in (7, 8, 9)]


@reproduces("hw.mem.cx6", kind="definition")
def connectx_6(row):
    return part("ConnectX-6").bandwidth * 8 / 1e9


@reproduces("hw.switch.quantum2", kind="definition")
def quantum_2(row):
    switch = part("Quantum-2 QM9700")
    return [switch.ports, switch.bandwidth / link("InfiniBand NDR200").bandwidth]


@reproduces("hw.switch.sn5600", kind="definition")
def spectrum_4(row):
    return [part(f"Spectrum-4 {name}").bandwidth * 8 / 1e12 for name in ("SN5600", "SN5400")]


@reproduces("hw.switch.q3400", kind="definition")
def quantum_x800(row):
    return part("Quantum-X800 Q3400").ports


@reproduces("hw.switch.qm8700", kind="definition")
def quantum(row):
    return part("Quantum QM8700").ports


@reproduces(*(f"hw.dgx.{name}" for name in ("a100", "h100", "h200", "b200", "b300")), kind="definition")
def dgx(row):
    system = node(f"DGX {row['id'].split('.')[-1].upper()}")
    return {"kW": system.power / 1e3, "mem_GB": system.devices * system.accelerator.memory_label / GB}


@reproduces("hw.nvl72", kind="definition")
def nvl72(row):
    rack = node("GB200 NVL72")
    return [rack.devices * rack.scale_up.bidirectional_bandwidth / TB,
            rack.devices * rack.accelerator.memory_label / TB, rack.power / 1e3]


@reproduces("hw.gb300.rack", note="a tray's budget as NVIDIA states it: 4 GPUs, 1 kW of CPUs, 0.9 kW of the rest")
def gb300_rack(row):
    rack = node("GB300 NVL72")
    tray = rack.devices / rack.hosts * rack.accelerator.power + 1000 + 900
    return rack.hosts * tray / 1e3


@reproduces("hw.ici.v3", kind="definition")
def ici_v3(row):
    wires = link("ICI v3")
    return [wires.per_link, wires.bidirectional_bandwidth / wires.links]


@reproduces("hw.ici.v4", "hw.ici.v5e", "hw.ici.v5p", "hw.ici.v6e", kind="definition", rel=0.112,
            note="the scaling book reckons with nine tenths of what Google's documentation prints a chip: 45 and 90 "
                 "where the documentation and the TPU v4 paper have 50 and 100 GB/s a link")
def ici(row):
    wires = link("ICI " + row["id"].split(".")[-1])
    return [wires.per_link, wires.bidirectional_bandwidth / wires.links]


@reproduces("hw.tpu.v5p.pod", kind="definition")
def v5p_pod(row):
    pod = node("TPU v5p pod")
    return [pod.devices, pod.hosts, 2 * pod.devices]


@reproduces("hw.mem.v100", kind="definition")
def v100_memory(row):
    device = accelerator("V100 SXM2 32GB")
    return [device.memory_label / GB, device.memory_bandwidth / TB]


@reproduces("hw.mem.h100pcie", kind="definition")
def h100_pcie(row):
    device = accelerator("H100 PCIe")
    return [device.power, device.scale_up.bidirectional_bandwidth / GB]


@reproduces("hw.mem.tpu7", kind="definition", rel=0.0015,
            note="192 is GiB in Google's documentation, and its table rounds the bandwidth to 7,380 GB/s")
def ironwood(row):
    device, pod = accelerator("TPU v7"), node("TPU v7 pod")
    return [device.memory_label / GiB, device.memory_bandwidth / TB, pod.devices]


@reproduces("hw.mem.nvswitch")
def nvswitches(row):
    """Ports are one NVLink each; the printed TB/s add both directions."""
    return [[ports, ports * 2 * link(f"NVLink {generation}").per_link / TB]
            for generation, (ports, _) in zip((2, 3, 4, 5), row["value"])]


@reproduces("hw.mem.mi300fp8", kind="definition")
def mi300_fp8(row):
    return accelerator("MI325X").dense_flops["fp8"] / 1e12


@reproduces("hw.mem.mi250x_links", kind="definition")
def mi250x_links(row):
    wires = accelerator("MI250X").scale_up
    return [wires.links, wires.bidirectional_bandwidth / GB]
