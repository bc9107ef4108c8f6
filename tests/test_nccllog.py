"""NCCL's log and nccl-tests' table: what is read is what the lines say; the ranks follow from two columns apart."""
import pytest
from clusterlab import nccllog
from clusterlab.collectives import bus_factor
from hypothesis import given, settings
from hypothesis import strategies as st

OPERATIONS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all")
HEAD = "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong\n"


def table(operation, ranks, sizes, seconds=1e-3):
    """Rows as nccl-tests prints them, from its own definitions: count is a rank's part but for an all-reduce."""
    lines = []
    for size in sizes:
        count = size // 4 if operation == "all-reduce" else size // 4 // ranks
        algbw = size / seconds / 1e9
        busbw = algbw * {"all-reduce": 2 * (ranks - 1) / ranks}.get(operation, (ranks - 1) / ranks)
        redop = "none" if operation.startswith("all-") and operation != "all-reduce" else "sum"
        half = f"{seconds * 1e6:.2f} {algbw:.2f} {busbw:.2f} 0"
        lines.append(f"{size} {count} float {redop} -1 {half} {half}")
    return HEAD + "\n".join(lines)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(OPERATIONS), st.integers(2, 64), st.integers(24, 28))
def test_ranks_and_operation_are_found_from_the_printed_columns(operation, ranks, power):
    size = 2**power // (4 * ranks) * 4 * ranks
    found, count = nccllog.identify(nccllog.results(table(operation, ranks, [size], seconds=1e-4)))
    assert operation in found
    assert count == ranks or operation == "all-reduce" and ranks > 16 and abs(count / ranks - 1) < 0.25


@pytest.mark.parametrize("name", ["table-eight", "table-many", "table-few"])
def test_excerpts_agree_with_their_own_columns(name):
    """algbw is size over time and busbw algbw times the factor, within the printing of two decimals."""
    rows = nccllog.results(nccllog.example(name).text)
    operations, ranks = nccllog.identify(rows)
    for row in rows:
        assert row.algbw == pytest.approx(row.size / row.seconds, rel=0.004)
        assert row.busbw == pytest.approx(row.algbw * bus_factor(operations[0], ranks), rel=0.004)


def test_table_of_many_ranks_names_their_number():
    """The thread says 256 GPUs; with three digits printed the factor 2 · 255/256 can not be told from its neighbours."""
    (operation,), ranks = nccllog.identify(nccllog.results(nccllog.example("table-many").text))
    assert operation == "all-reduce"
    assert 200 < ranks < 350


@pytest.mark.parametrize(("line", "transport"), [
    ("h:1:2 [0] NCCL INFO Channel 00/0 : 9[1] -> 0[0] [receive] via NET/IB/0/GDRDMA", "NET/IB/GDRDMA"),
    ("h:1:2 [0] NCCL INFO Channel 03/0 : 0[0] -> 8[0] [send] via NET/IB/2/Shared", "NET/IB"),
    ("h:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 2[0] [receive] via NET/IBext_v8/1", "NET/IB"),
    ("h:1:2 [0] NCCL INFO Ring 00 : 32 -> 33 [receive] via NET/Socket/0", "NET/Socket"),
    ("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P"),
    ("h:1:2 [2] NCCL INFO Channel 00 : 2[1] -> 0[0] via SHM/direct/direct", "SHM"),
    (" [0] NCCL INFO Ring 00 : 0[1b000] -> 7[41000] via direct shared memory", "SHM")])
def test_each_spelling_of_a_transport(line, transport):
    connection, = nccllog.read(line).connections
    assert connection.transport == transport


def test_the_slowest_connection_decides():
    good, bad = (nccllog.example(name).text for name in ("direct", "socket"))
    assert "memories of the GPUs" in nccllog.read(good).verdict
    mixed = nccllog.read(good + "\n" + bad)
    assert mixed.verdict == "between nodes: sockets, through the kernel, for 1 of 5 lines"
    assert (mixed.connections[0].source, mixed.connections[0].target, mixed.connections[0].way) == (9, 0, "receive")
    inside = nccllog.read("[0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC")
    assert inside.verdict == "no connection between nodes"


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="NCCL_DEBUG=INFO"):
        nccllog.read("NCCL version 2.26.2\nChannel 00/0 : 0 -> 1 via P2P/IPC")
    with pytest.raises(ValueError, match="heading"):
        nccllog.results("33554432 8388608 float sum 1464.2 22.92 45.65 N/A 1458.1 23.01 45.84 N/A")
    with pytest.raises(ValueError, match="8 ranks"):
        nccllog.identify(nccllog.results(HEAD + "1048576 65536 float none -1 10 104.8 91.7 0 10 104.8 91.7 0"))
    with pytest.raises(LookupError, match="socket"):
        nccllog.example("sockets")
